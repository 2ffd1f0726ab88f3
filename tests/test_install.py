"""The command line installs a kernel that Jupyter starts, and that imports nothing near it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from sandbox_kernel.cli.install import kernel_spec

# Names that the kernel imports, and one of each kind: package, ours, standard library.
IMPORTED = ("docker", "zmq", "ipykernel", "sandbox_kernel", "platformdirs", "json", "tomllib")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


def run(home: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as a user with an empty home, and no Jupyter settings."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "sandbox_kernel", *arguments],
        cwd=cwd or Path(__file__).parent.parent,
        env={**kept, "HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def kernels(prefix: Path) -> Path:
    return prefix / "share" / "jupyter" / "kernels"


def test_install_writes_what_jupyter_reads(home: Path, tmp_path: Path) -> None:
    done = run(home, "install", "--prefix", str(tmp_path), "--set", "timeout_seconds=60")

    assert done.returncode == 0, done.stderr
    manager = KernelSpecManager(kernel_dirs=[str(kernels(tmp_path))])
    spec = manager.get_kernel_spec("aisandbox-docker")
    assert spec.display_name == "aisandbox (docker)"
    assert spec.language == "python"
    assert spec.interrupt_mode == "message"
    assert spec.metadata == {"debugger": False}
    assert spec.argv == [
        sys.executable,
        "-E",
        "-P",
        "-m",
        "sandbox_kernel.launch",
        "-f",
        "{connection_file}",
        "--provider",
        "docker",
        "--set",
        "timeout_seconds=60",
    ]


def test_everybody_can_read_what_is_installed(home: Path, tmp_path: Path) -> None:
    run(home, "install", "--prefix", str(tmp_path))

    target = kernels(tmp_path) / "aisandbox-docker"
    files = sorted(path.name for path in target.iterdir())
    assert files == ["kernel.json", "logo-32x32.png", "logo-64x64.png", "logo-svg.svg"]
    assert all(path.stat().st_mode & stat.S_IROTH for path in [target, *target.iterdir()])


@pytest.mark.parametrize("size", [32, 64])
def test_logo_has_the_size_in_its_name(size: int, home: Path, tmp_path: Path) -> None:
    run(home, "install", "--prefix", str(tmp_path))

    data = (kernels(tmp_path) / "aisandbox-docker" / f"logo-{size}x{size}.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[16:24] == size.to_bytes(4, "big") * 2


def test_name_can_be_chosen(home: Path, tmp_path: Path) -> None:
    options = ("--name", "course", "--display-name", "Course [1]")

    run(home, "install", "--prefix", str(tmp_path), *options)

    spec = json.loads((kernels(tmp_path) / "course" / "kernel.json").read_text())
    assert spec["display_name"] == "Course [1]"


def test_user_s_kernel_goes_to_the_home(home: Path) -> None:
    run(home, "install", "--user")

    assert (home / ".local/share/jupyter/kernels/aisandbox-docker/kernel.json").exists()


def test_list_and_uninstall_find_the_user_s_kernel(home: Path) -> None:
    run(home, "install", "--user", "--name", "mine", "--set", "network=true")

    listed = run(home, "list").stdout
    removed = run(home, "uninstall", "--name", "mine")

    assert "mine: aisandbox (docker)" in listed
    assert "docker, network=true" in listed
    assert removed.returncode == 0
    assert not (home / ".local/share/jupyter/kernels/mine").exists()


def test_list_says_that_the_interpreter_is_gone(home: Path) -> None:
    run(home, "install", "--user", "--name", "mine")
    path = home / ".local/share/jupyter/kernels/mine/kernel.json"
    path.write_text(path.read_text().replace(sys.executable, "/gone/python"))

    listed = run(home, "list").stdout

    assert "cannot start: /gone/python is gone" in listed


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_kernel_of_another_package_is_left_alone(command: str, home: Path, tmp_path: Path) -> None:
    other = kernels(tmp_path) / "python3"
    other.mkdir(parents=True)
    (other / "kernel.json").write_text('{"argv": ["python"], "display_name": "Python"}')

    done = run(home, command, "--prefix", str(tmp_path), "--name", "python3")

    assert done.returncode != 0
    assert json.loads((other / "kernel.json").read_text())["display_name"] == "Python"


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        pytest.param(["--set", "timeout=3"], 2, "`timeout_seconds`", id="unknown-setting"),
        pytest.param(["--set", "timeout_seconds"], 2, "`key=value`", id="no-value"),
        pytest.param(["--set", "memory_bytes=lots"], 2, "a size", id="wrong-kind"),
        pytest.param(["--set", "uid=0"], 2, "outside of", id="out-of-range"),
        pytest.param(["--provider", "dokcer"], 2, "did you mean `docker`", id="unknown-provider"),
        pytest.param(["--name", "../x"], 2, "not a kernel's name", id="path-as-name"),
        pytest.param(["--name", ".."], 2, "not a kernel's name", id="directory-above"),
        pytest.param(["--user"], 2, "choose one of", id="two-places"),
        pytest.param(["--prefix", "/dev/null"], 1, "cannot be written", id="no-such-place"),
    ],
)
def test_misuse_is_one_sentence_and_writes_nothing(
    options: list[str], status: int, said: str, home: Path, tmp_path: Path
) -> None:
    done = run(home, "install", "--prefix", str(tmp_path), *options)

    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "share").exists()


def test_uninstall_of_nothing_is_a_failure_with_a_hint(home: Path, tmp_path: Path) -> None:
    done = run(home, "uninstall", "--prefix", str(tmp_path))

    assert done.returncode == 1
    assert "hint: `sandbox-kernel list`" in done.stderr


@pytest.fixture
def hostile_folder(tmp_path: Path) -> Path:
    """A notebook's folder with modules of those names; each leaves a file when imported."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name in IMPORTED:
        (folder / f"{name}.py").write_text("open('imported-' + __name__, 'w').close()\n")
    return folder


def start(folder: Path, flags: list[str], python_path: str) -> list[str]:
    """Import as the kernel does, in the folder; return the hostile modules that ran."""
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = subprocess.run(
        [*flags, "-c", code, *IMPORTED],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return sorted(path.name for path in folder.glob("imported-*"))


@pytest.mark.parametrize(
    "python_path",
    [
        pytest.param("", id="no-path"),
        pytest.param(":/nonexistent", id="empty-entry-is-the-folder"),
        pytest.param(".", id="dot-is-the-folder"),
    ],
)
def test_kernel_imports_nothing_from_the_notebook_s_folder(
    python_path: str, hostile_folder: Path
) -> None:
    argv = kernel_spec(python=sys.executable, provider="docker", settings=[], display_name="x")[
        "argv"
    ]

    ran = start(hostile_folder, argv[: argv.index("-m")], python_path)

    assert ran == []


def test_hostile_folder_would_have_been_noticed(hostile_folder: Path) -> None:
    assert start(hostile_folder, [sys.executable], "") != []


def test_kernel_s_module_starts_in_a_hostile_folder(hostile_folder: Path) -> None:
    argv = kernel_spec(python=sys.executable, provider="docker", settings=[], display_name="x")[
        "argv"
    ]
    module = argv[: argv.index("-m") + 2]

    done = subprocess.run(
        [*module, "--help"], cwd=hostile_folder, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert list(hostile_folder.glob("imported-*")) == []
