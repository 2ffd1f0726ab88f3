from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from sandbox_kernel.adapters.docker_image import RECIPE_LABEL, VERSIONS_LABEL
from sandbox_kernel.adapters.docker_recipe import Recipe
from sandbox_kernel.cli.image import image_app
from sandbox_kernel.errors import SandboxPolicyError, SandboxUnavailableError
from sandbox_kernel.policy import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import docker

ROOT = Path(__file__).parent.parent

NO_ENGINE = "unix:///nonexistent/docker.sock"

#: Modules that were imported and have no compiled file.
UNCOMPILED = """
import os, sys
import IPython, matplotlib.pyplot, numpy, pandas
files = {name: getattr(module, "__cached__", None) for name, module in sys.modules.items()}
print(sorted(name for name, file in files.items() if file and not os.path.exists(file)))
"""


def boxed(
    engine: docker.DockerClient, image: str, command: Sequence[str], user: int = NOBODY
) -> tuple[int, str]:
    """Run a command as a sandbox would; return its exit status and all that it wrote."""
    container = engine.containers.create(
        image,
        list(command),
        user=f"{user}:{user}",
        network_mode="none",
        read_only=True,
        cap_drop=["ALL"],
        mem_limit="512m",
        tmpfs={"/tmp": "size=64m", "/sandbox": "size=64m,mode=1777"},
        environment={"HOME": "/sandbox"},
        use_config_proxy=False,
    )
    try:
        container.start()
        status = container.wait(timeout=60)["StatusCode"]
        return status, container.logs().decode()
    finally:
        container.remove(force=True)


def build(*arguments: str) -> str:
    result = CliRunner().invoke(image_app, ["build", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@contextmanager
def fresh_name(engine: docker.DockerClient) -> Iterator[str]:
    """A name for an image, which is removed afterwards."""
    name = f"sandbox-kernel/test-{uuid.uuid4().hex[:8]}"
    yield name
    if engine.images.list(name):
        engine.images.remove(name, force=True)


@pytest.fixture
def name(engine: docker.DockerClient) -> Iterator[str]:
    with fresh_name(engine) as name:
        yield name


@pytest.fixture(scope="module")
def built(engine: docker.DockerClient, image: str) -> Iterator[tuple[str, str]]:
    """An image built here, and what the command printed.

    Its base is the image itself, which has all of the requirements: nothing is downloaded.
    """
    with fresh_name(engine) as name:
        yield name, build("--base", image, "--tag", name)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["python3", "-I", "-c", "print(6 * 7)"], id="python3"),
        pytest.param(["node", "-e", "console.log(6 * 7)"], id="node"),
        pytest.param(["sh", "-c", "echo $((6 * 7))"], id="sh"),
    ],
)
def test_interpreter_runs(engine: docker.DockerClient, image: str, command: list[str]) -> None:
    status, output = boxed(engine, image, command)

    assert (status, output) == (0, "42\n")


def test_no_program_is_suid_or_sgid(engine: docker.DockerClient, image: str) -> None:
    status, output = boxed(
        engine, image, ["find", "/", "-xdev", "-type", "f", "-perm", "/6000"], user=0
    )

    assert (status, [line for line in output.splitlines() if "denied" not in line]) == (0, [])


def test_no_volume_and_no_entrypoint(engine: docker.DockerClient, image: str) -> None:
    config = engine.images.get(image).attrs["Config"]

    assert not config["Volumes"]
    assert not config["Entrypoint"]
    assert config["User"] == f"{NOBODY}:{NOBODY}"


def test_labels_tell_the_versions(engine: docker.DockerClient, image: str) -> None:
    script = "import numpy, platform; print(numpy.__version__, platform.python_version())"

    _, output = boxed(engine, image, ["python3", "-I", "-c", script])

    labels = engine.images.get(image).labels
    versions = json.loads(labels[VERSIONS_LABEL])
    assert [versions["numpy"], versions["python"]] == output.split()
    assert {"ipython", "pandas", "matplotlib", "node", "pip"} <= versions.keys()
    assert labels["org.opencontainers.image.version"]


def test_everything_imported_is_compiled(engine: docker.DockerClient, image: str) -> None:
    status, output = boxed(engine, image, ["python3", "-I", "-c", UNCOMPILED])

    assert (status, output) == (0, "[]\n")


def test_pip_without_network_says_so_at_once(engine: docker.DockerClient, image: str) -> None:
    status, output = boxed(engine, image, ["timeout", "5", "python3", "-m", "pip", "install", "x"])

    assert status == 1
    assert "No matching distribution found" in output
    assert "externally-managed" not in output


def test_build_shows_progress_and_versions(built: tuple[str, str]) -> None:
    name, output = built

    assert "Step 1/" in output
    assert f"built {name}: python 3." in output


def test_built_image_works(engine: docker.DockerClient, built: tuple[str, str]) -> None:
    name, _ = built

    status, output = boxed(engine, name, ["node", "-e", "console.log(1)"])

    assert (status, output) == (0, "1\n")


def test_build_leaves_no_other_image(engine: docker.DockerClient, built: tuple[str, str]) -> None:
    name, _ = built
    recipe = engine.images.get(name).labels[RECIPE_LABEL]

    found = engine.images.list(filters={"label": f"{RECIPE_LABEL}={recipe}"})

    assert [image.tags for image in found] == [[f"{name}:latest"]]


def test_build_if_changed_of_the_same_does_nothing(built: tuple[str, str], image: str) -> None:
    name, _ = built

    output = build("--base", image, "--tag", name, "--if-changed")

    assert output == f"{name} is up to date\n"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Recipe("debian", "sha256:2", ()), id="base-moved"),
        pytest.param(Recipe("debian", "sha256:1", (Path("numpy-2.whl"),)), id="newer-wheel"),
    ],
)
def test_another_recipe_has_another_digest(other: Recipe) -> None:
    assert other.digest() != Recipe("debian", "sha256:1", ()).digest()


def test_build_refuses_a_base_that_is_not_there(engine: docker.DockerClient, name: str) -> None:
    with pytest.raises(SandboxUnavailableError, match="could not be pulled") as caught:
        build("--base", "sandbox-kernel/nonexistent:1", "--tag", name)

    assert "--base" in str(caught.value.hint)
    assert not engine.images.list(name)


def test_build_refuses_a_base_with_a_volume(
    engine: docker.DockerClient, image: str, name: str
) -> None:
    engine.images.build(
        fileobj=BytesIO(f"FROM {image}\nVOLUME /data\n".encode()), tag=name, rm=True
    )

    with pytest.raises(SandboxUnavailableError, match="VOLUME"):
        build("--base", name, "--tag", f"{name}-built")


def test_build_stops_at_a_base_without_python(
    engine: docker.DockerClient, image: str, name: str
) -> None:
    recipe = f'FROM {image}\nUSER root\nRUN rm "$(command -v python3)"\n'
    engine.images.build(fileobj=BytesIO(recipe.encode()), tag=name, rm=True)

    with pytest.raises(SandboxUnavailableError, match=r"stopped at `Step \d+/.*python3: not found"):
        build("--base", name, "--tag", f"{name}-built")

    digest = Recipe(name, str(engine.images.get(name).id), ()).digest()
    assert not engine.images.list(all=True, filters={"label": f"{RECIPE_LABEL}={digest}"})


def test_build_refuses_a_directory_without_wheels(tmp_path: Path) -> None:
    with pytest.raises(SandboxPolicyError, match="holds no wheel"):
        build("--wheels", str(tmp_path))


def test_build_without_engine_is_one_sentence_and_a_hint() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "sandbox_kernel", "image", "build"],
        check=False,
        env={**os.environ, "DOCKER_HOST": NO_ENGINE},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )

    message, hint = result.stderr.splitlines()
    assert result.returncode == 1
    assert NO_ENGINE in message
    assert hint.startswith("hint: ")


def test_engine_script_names_what_does_not_answer() -> None:
    script = ROOT / "scripts" / "engine.sh"

    result = subprocess.run(
        [script],
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DOCKER_HOST": NO_ENGINE},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )

    assert result.returncode == 1
    assert result.stderr == f"{script}: no engine answers at DOCKER_HOST=`{NO_ENGINE}`\n"
