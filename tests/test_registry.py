"""An adapter is found by its name, nothing else is loaded, and nothing is fallen back to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sandbox_kernel import adapters
from sandbox_kernel.adapters.base import require
from sandbox_kernel.adapters.docker import DockerAdapter
from sandbox_kernel.config import Configuration, resolve
from sandbox_kernel.errors import SandboxPolicyError, SandboxUnavailableError
from sandbox_kernel.policy import Policy
from sandbox_kernel.settings import Layer

ROOT = Path(__file__).parent.parent


def distribution(tmp_path: Path, entry: str) -> None:
    """Lay out what pip would leave of a package with one entry point."""
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sandbox_kernel.adapters]\n{entry}\n")


def test_docker_gets_its_settings() -> None:
    layer = Layer(name="test", values={"docker.host": "unix:///x.sock"})

    adapter = adapters.get("docker")(resolve([layer]))

    assert isinstance(adapter, DockerAdapter)
    assert adapter.endpoint().url == "unix:///x.sock"


def test_unknown_name_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(SandboxPolicyError, match="no provider `dokcer`") as caught:
        adapters.get("dokcer")

    assert "did you mean `docker`" in str(caught.value)
    assert "`none`" in str(caught.value)


def test_other_distributions_add_providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "cloud = other_adapter:make")
    (tmp_path / "other_adapter.py").write_text("def make(configuration):\n    return 'made'\n")
    monkeypatch.syspath_prepend(tmp_path)

    adapter = adapters.get("cloud")(Configuration())

    assert adapter == "made"
    assert "cloud" in adapters.names()


def test_built_in_name_cannot_be_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "docker = other_adapter:make")
    (tmp_path / "other_adapter.py").write_text("def make(configuration):\n    return 'made'\n")
    monkeypatch.syspath_prepend(tmp_path)

    adapter = adapters.get("docker")(Configuration())

    assert isinstance(adapter, DockerAdapter)


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param("broken = no_such_module_at_all:make", id="no-module"),
        pytest.param("broken = json:no_such_name", id="no-name"),
    ],
)
def test_broken_package_is_named(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, entry)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(SandboxUnavailableError, match="`broken` cannot be loaded") as caught:
        adapters.get("broken")

    assert caught.value.hint is not None


def test_looking_up_imports_no_vendor_s_package() -> None:
    code = (
        "import sys; from sandbox_kernel import adapters, config; "
        "configuration = config.resolve([]); "
        "adapters.get('docker')(configuration); adapters.get('none')(configuration); "
        "print(sorted({'docker', 'requests', 'importlib.metadata', 'ipykernel'} & {*sys.modules}))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_none_refuses_every_use_and_says_how_to_switch_one_on() -> None:
    adapter = adapters.get("none")(Configuration())
    require(adapter, Policy())

    with pytest.raises(SandboxPolicyError, match="`none` runs nothing") as caught:
        adapter.create(Policy(), ["python3"], {}, print)

    assert "sandbox-kernel install --provider docker" in str(caught.value.hint)
    assert "config.toml" in str(caught.value.hint)


def test_none_has_nothing_to_list_or_remove() -> None:
    adapter = adapters.get("none")(Configuration())

    adapter.remove("x")

    assert list(adapter.list({})) == []
