"""Hostile cells against the real engine: what eats memory, processes, files, time (class R)."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.jupyter import Kernel, started

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

pytestmark = pytest.mark.usefixtures("image")

SWALLOW = "while 1:\n try:\n  while 1: pass\n except BaseException: pass"
IGNORE = "import signal; signal.signal(2, signal.SIG_IGN)\nwhile True: pass"


@pytest.fixture(scope="module")
def kernel(image: str) -> Iterator[Kernel]:
    with started("timeout_seconds=6") as running:
        running.run("kept = [1, 2, 3]")
        yield running


@pytest.fixture(autouse=True)
def _answers_and_remembers(request: pytest.FixtureRequest) -> Iterator[None]:
    """K+: the next cell answers, with the variables that were there before."""
    yield
    if "kernel" in request.fixturenames:
        after = request.getfixturevalue("kernel").run("kept")
        assert after.value == "[1, 2, 3]"
        assert after.seconds < 15


@pytest.mark.parametrize(
    ("code", "enames"),
    [
        pytest.param("while True: pass", {"SandboxTimeoutError"}, id="R1-loop"),
        pytest.param(SWALLOW, {"SandboxTimeoutError"}, id="R3-swallowed-interrupts"),
        pytest.param("x = []\nwhile 1: x.append(bytearray(1 << 20))",
                     {"SandboxMemoryError", "MemoryError"}, id="R5-memory"),
        pytest.param("import os\nwhile 1: os.fork()",
                     {"BlockingIOError", "SandboxTimeoutError", "SandboxCrashError",
                      "SandboxMemoryError"},
                     id="R6-fork-bomb"),
        pytest.param("import threading, time\nfor i in range(10_000):\n"
                     "    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()",
                     {"RuntimeError"}, id="R7-thread-bomb"),
        pytest.param("import os; os.makedirs('/sandbox/many')\nfor i in range(5000):\n"
                     "    open(f'/sandbox/many/{i}', 'w').close()", {"OSError"}, id="R9-inodes"),
        pytest.param("import os\nfds = []\nfor i in range(10_000):\n"
                     "    fds.append(os.open('/dev/null', os.O_RDONLY))", {"OSError"},
                     id="R10-descriptors"),
        pytest.param("import os\nwith open('/sandbox/sparse', 'wb') as f: f.truncate(1 << 40)\n"
                     "raise OSError(27, 'only if it was allowed to')", {"OSError"},
                     id="R11-sparse-file"),
        pytest.param("import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
                     {"PermissionError"}, id="R19-real-time"),
    ],
)  # fmt: skip
def test_it_ends_with_the_reason(kernel: Kernel, code: str, enames: set[str]) -> None:
    result = kernel.run(code)
    # What fills the disk or holds descriptors is the cell's own to clean up.
    kernel.run(
        "import os, shutil\n"
        "shutil.rmtree('/sandbox/many', ignore_errors=True)\n"
        "if os.path.exists('/sandbox/sparse'): os.remove('/sandbox/sparse')\n"
        "for fd in globals().pop('fds', []): os.close(fd)"
    )

    assert result.ename in enames
    assert result.seconds < 20


def test_r2_ignored_interrupts_end_within_five_seconds(kernel: Kernel) -> None:
    begun = []

    def stop(running: Kernel) -> None:
        time.sleep(0.5)
        begun.append(time.monotonic())
        running.interrupt()

    result = kernel.run(IGNORE, meanwhile=stop)

    assert time.monotonic() - begun[0] < 5
    assert result.ename == "KeyboardInterrupt"
    assert result.sandbox["state"] == "restored"


def test_r13_r15_a_gigabyte_of_output_costs_the_host_nothing(kernel: Kernel) -> None:
    process = psutil.Process(kernel.manager.provisioner.pid)
    before = process.memory_info().rss
    first = kernel.run("for i in range(20_000): print('A' * 65536)")
    second = kernel.run("import sys; n = sys.stdout.write('x' * (1 << 28))")
    after = process.memory_info().rss

    for result in (first, second):
        assert result.sandbox["truncated"]
        assert result.stderr.count("output truncated") == 1
        assert len(result.stdout) <= 8 << 20
    assert after - before < 100 << 20


def test_r16_a_sandbox_that_has_lived_its_time_is_replaced(engine: docker.DockerClient) -> None:
    with started("lifetime_seconds=4") as short:
        first = short.run("x = 1").sandbox["sandbox_id"]
        result = short.run("import time; time.sleep(10**9)")
        after = short.run("1 + 1")

        assert result.ename == "SandboxDiedError"
        assert result.seconds < 8
        assert after.value == "2"
        assert after.sandbox["sandbox_id"] != first
        assert not engine.containers.list(filters={"id": first})


def test_r18_a_daemon_lives_in_the_box_and_dies_with_it(engine: docker.DockerClient) -> None:
    with started() as running:
        sandbox = running.run(
            "import os\nif os.fork() == 0:\n    os.setsid()\n"
            "    if os.fork(): os._exit(0)\n    while True: pass\nos.wait()"
        ).sandbox["sandbox_id"]
        top = engine.containers.get(sandbox).top()["Processes"]
        pids = [int(row[1]) for row in top]
        assert len(pids) >= 3

    deadline = time.monotonic() + 5
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, pids))


def test_t28_a_child_that_ignores_signals_does_not_outlive_the_deadline(
    engine: docker.DockerClient,
) -> None:
    with started("timeout_seconds=1") as running:
        running.run("x = 1")
        result = running.run(
            "import os, signal\nprint('begun')\n"
            "for number in (2, 15): signal.signal(number, signal.SIG_IGN)\n"
            "if os.fork() == 0: os.setsid()\n"
            "while True: pass"
        )
        after = running.run("x")
        top = engine.containers.get(after.sandbox["sandbox_id"]).top(ps_args="-eo pid,pcpu,stat")

    running_processes = [row for row in top["Processes"] if row[2].startswith("R")]
    assert result.ename == "SandboxTimeoutError"
    assert result.stdout == "begun\n"
    assert after.value == "1"
    assert running_processes == []


def test_l8_a_restart_in_a_running_cell_makes_a_new_box(engine: docker.DockerClient) -> None:
    with started() as running:
        old = running.run("x = 1").sandbox["sandbox_id"]
        running.submit("import time; time.sleep(60)")
        time.sleep(0.5)
        running.manager.restart_kernel(now=False)
        running.client.wait_for_ready(timeout=60)
        result = running.run("x")

        assert result.ename == "NameError"
        assert result.sandbox["sandbox_id"] != old
        assert not engine.containers.list(all=True, filters={"id": old})


def test_l4_a_kernel_that_was_stopped_for_a_while_goes_on() -> None:
    with started() as running:
        running.run("x = 1")
        pid = running.manager.provisioner.pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(pid, signal.SIGCONT)
        result = running.run("x")

    assert result.value == "1"
