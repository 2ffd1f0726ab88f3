"""The kernel as a process: signals, configuration that is wrong, an engine that is not there."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.jupyter import Kernel, started

if TYPE_CHECKING:
    from pathlib import Path

    import docker

pytestmark = pytest.mark.usefixtures("image")


def pid(kernel: Kernel) -> int:
    return kernel.manager.provisioner.pid


def test_a_signal_interrupts_as_a_message_does() -> None:
    with started() as kernel:
        kernel.run("x = 1")
        result = kernel.run(
            "import time; time.sleep(20)",
            meanwhile=lambda k: (time.sleep(0.5), os.kill(pid(k), signal.SIGINT)),
        )
        after = kernel.run("x")

    assert result.ename == "KeyboardInterrupt"
    assert after.value == "1"


def test_a_killed_kernel_leaves_no_container(engine: docker.DockerClient) -> None:
    with started() as kernel:
        sandbox = kernel.run("1").sandbox["sandbox_id"]
        os.kill(pid(kernel), signal.SIGKILL)
        deadline = time.monotonic() + 5
        while engine.containers.list(filters={"id": sandbox}) and time.monotonic() < deadline:
            time.sleep(0.05)

        assert not engine.containers.list(filters={"id": sandbox})


def test_shutdown_is_quick_and_removes_the_container(engine: docker.DockerClient) -> None:
    with started() as kernel:
        sandbox = kernel.run("1").sandbox["sandbox_id"]
        begun = time.monotonic()
        kernel.manager.shutdown_kernel(now=False)
        seconds = time.monotonic() - begun

    assert seconds < 2
    assert not engine.containers.list(all=True, filters={"id": sandbox})


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        pytest.param(
            "[policy]\nmemory_byte = 5\n",
            ["SandboxPolicyError", "config.toml", "line 2", "memory_byte", "memory_bytes"],
            id="unknown-key",
        ),
        pytest.param(
            "[policy\n", ["SandboxPolicyError", "config.toml", "line 1"], id="broken-toml"
        ),
        pytest.param(
            "[policy]\ntimeout_seconds = 'soon'\n",
            ["SandboxPolicyError", "config.toml", "line 2", "timeout_seconds"],
            id="wrong-type",
        ),
    ],
)
def test_a_wrong_configuration_is_the_cells_error_and_mended_in_place(
    tmp_path: Path, config: str, parts: list[str]
) -> None:
    file = tmp_path / "sandbox-kernel" / "config.toml"
    file.parent.mkdir()
    file.write_text(config)
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    with started(env=environment) as kernel:
        result = kernel.run("1")
        file.write_text("[policy]\ntimeout_seconds = 5\n")
        after = kernel.run("1 + 1")

    shown = f"{result.ename}: {result.error['evalue']}"
    for part in parts:
        assert part in shown
    assert after.value == "2"


def test_an_unknown_provider_lists_the_known() -> None:
    with started(provider="dokcer") as kernel:
        result = kernel.run("1")

    assert result.ename == "SandboxPolicyError"
    assert "`docker`" in result.error["evalue"]


def test_provider_none_says_how_to_switch_one_on() -> None:
    with started(provider="none") as kernel:
        result = kernel.run("1")

    assert result.ename == "SandboxPolicyError"
    assert "hint:" in result.error["evalue"]


def test_without_an_engine_the_kernel_lives_and_says_what_is_missing(tmp_path: Path) -> None:
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    with started(env=environment) as kernel:
        first = kernel.run("1")
        second = kernel.run("1")

    for result in (first, second):
        assert result.ename == "SandboxUnavailableError"
        assert "hint:" in result.error["evalue"]
        assert len("".join(result.error["traceback"]).splitlines()) < 5
    assert first.reply["metadata"]["sandbox"]["state"] == "lost"


def test_files_beside_the_notebook_are_not_imported(tmp_path: Path) -> None:
    for name in ("docker", "json", "zmq", "sandbox_kernel", "IPython"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})"
        )
    with started(cwd=str(tmp_path)) as kernel:
        result = kernel.run("1 + 1")

    assert result.value == "2"
    assert not (tmp_path / "ran").exists()


def test_the_host_process_stays_small_under_a_flood() -> None:
    with started("timeout_seconds=4") as kernel:
        kernel.run("1")
        process = psutil.Process(pid(kernel))
        before = process.memory_info().rss
        result = kernel.run("while True: print('A' * 65536)")
        after = process.memory_info().rss

    assert result.sandbox["truncated"]
    assert after - before < 100 << 20


def test_a_sandbox_uses_no_disk_for_what_it_prints(engine: docker.DockerClient) -> None:
    with started("timeout_seconds=4") as kernel:
        sandbox = kernel.run("1").sandbox["sandbox_id"]
        kernel.run("while True: print('A' * 65536)")
        root = engine.info()["DockerRootDir"]
        used = subprocess.run(
            ["du", "-sk", f"{root}/containers/{sandbox}"],
            capture_output=True,
            text=True,
            check=True,
        )

    assert int(used.stdout.split()[0]) < 1024
