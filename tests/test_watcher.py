"""The watcher outlives the process that started it, and removes what that one left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psutil
import pytest

from sandbox_kernel import watcher
from sandbox_kernel.adapters.none import NoneAdapter
from sandbox_kernel.errors import SandboxPolicyError
from sandbox_kernel.opening import Opener, Plan
from sandbox_kernel.policy import Policy
from tests.orphans import Shelf, exists, made_by, seconds_until_gone, shelf

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

#: Stands for the kernel: has two sandboxes watched, and a child of its own.
KERNEL = """
import subprocess, sys, time
from sandbox_kernel.watcher import Watcher
watcher = Watcher()
for session in {sessions!r}:
    watcher.watch({settings!r}, session)
child = subprocess.Popen(["sleep", "60"], close_fds=False)
print(child.pid, flush=True)
sys.stdin.readline()
watcher.dismiss()
"""

DOCKER = {"provider": "docker"}


class Watched:
    """A process that is watched.

    Attributes:
        process: It.
        watcher: The process that watches.
        child: One that it started, which outlives it.
    """

    def __init__(self, process: subprocess.Popen[str], child: psutil.Process) -> None:
        self.process = process
        self.child = child
        [self.watcher] = (
            each for each in psutil.Process(process.pid).children() if each.pid != child.pid
        )

    def kill(self) -> None:
        """As Jupyter kills a kernel: with its process group."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def dismiss(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.process.wait()

    def seconds_of_watching(self, at_most: float) -> float | None:
        begun = time.monotonic()
        while time.monotonic() - begun < at_most:
            if not self.watcher.is_running() or self.watcher.status() == psutil.STATUS_ZOMBIE:
                return time.monotonic() - begun
            time.sleep(0.02)
        return None


@contextmanager
def watched(
    *sessions: str, settings: dict[str, str] = DOCKER, cwd: Path | None = None
) -> Iterator[Watched]:
    code = KERNEL.format(sessions=sessions, settings=settings)
    process = subprocess.Popen(
        [sys.executable, "-E", "-P", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=cwd,
        start_new_session=True,
    )
    made = Watched(process, psutil.Process(int(process.stdout.readline())))
    try:
        yield made
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        for each in (made.child, made.watcher):
            if each.is_running():
                each.kill()


@pytest.fixture
def containers(engine: docker.DockerClient, image: str) -> Iterator[Shelf]:
    with shelf(engine) as made:
        yield made


@pytest.mark.parametrize("status", ["created", "running", "paused", "exited"])
def test_a_killed_process_s_sandbox_is_removed_in_any_state(
    engine: docker.DockerClient, containers: Shelf, status: str
) -> None:
    left = containers.put(made_by("s1"), status)
    with watched("s1") as kernel:
        kernel.kill()

        assert seconds_until_gone(engine, left, at_most=5) is not None


def test_each_session_of_it_is_removed_and_no_other(
    engine: docker.DockerClient, containers: Shelf
) -> None:
    mine = [containers.put(made_by(session)) for session in ("s1", "s2")]
    others = [
        containers.put(made_by("s3")),
        containers.put(made_by("s1", uid=os.getuid() + 1)),
        containers.put({"session": "s1"}),
    ]
    with watched("s1", "s2") as kernel:
        kernel.kill()

        for left in mine:
            assert seconds_until_gone(engine, left, at_most=5) is not None
    assert all(exists(engine, other) for other in others)


def test_a_sandbox_that_appears_later_is_removed_too(
    engine: docker.DockerClient, containers: Shelf
) -> None:
    with watched("s1") as kernel:
        kernel.kill()
        time.sleep(5)
        late = containers.put(made_by("s1"))

        assert seconds_until_gone(engine, late, at_most=5) is not None


def test_nothing_is_removed_while_the_process_lives(
    engine: docker.DockerClient, containers: Shelf
) -> None:
    mine = containers.put(made_by("s1"), "running")
    with watched("s1") as kernel:
        kernel.process.send_signal(signal.SIGSTOP)

        assert kernel.seconds_of_watching(at_most=2) is None
    assert exists(engine, mine)


def test_a_dismissed_watcher_ends_at_once(engine: docker.DockerClient) -> None:
    with watched("s1") as kernel:
        kernel.dismiss()

        assert kernel.seconds_of_watching(at_most=2) is not None


def test_a_dismissed_watcher_still_removes_what_is_left(
    engine: docker.DockerClient, containers: Shelf
) -> None:
    left = containers.put(made_by("s1"), "running")
    with watched("s1") as kernel:
        kernel.dismiss()

        assert seconds_until_gone(engine, left, at_most=5) is not None
        assert kernel.seconds_of_watching(at_most=5) is not None


def test_an_engine_that_cannot_be_reached_ends_the_watch_in_time(tmp_path: Path) -> None:
    nowhere = {"provider": "docker", "docker.host": f"unix://{tmp_path}/none.sock"}
    with watched("s1", settings=nowhere) as kernel:
        kernel.kill()
        seconds = kernel.seconds_of_watching(at_most=watcher.LINGER_SECONDS + 10)

    assert seconds is not None
    assert seconds > watcher.LINGER_SECONDS - 1


def test_a_watcher_that_was_killed_is_replaced(
    engine: docker.DockerClient, containers: Shelf
) -> None:
    left = containers.put(made_by("s2"))
    made = watcher.Watcher()
    made.watch(DOCKER, "s1")
    [first] = _watchers()
    first.kill()
    first.wait()
    made.watch(DOCKER, "s2")
    [second] = _watchers()
    made.dismiss()

    assert second.pid != first.pid
    assert seconds_until_gone(engine, left, at_most=5) is not None
    second.wait(timeout=5)


def _watchers() -> list[psutil.Process]:
    return [
        each
        for each in psutil.Process().children()
        if each.status() != psutil.STATUS_ZOMBIE and watcher.ARGUMENTS[-1] in each.cmdline()
    ]


def test_it_shares_nothing_with_the_kernel(tmp_path: Path) -> None:
    with watched("s1", cwd=tmp_path) as kernel:
        _wait_until_it_reads(kernel.watcher)
        process = kernel.watcher
        session = os.getsid(process.pid)
        directory = process.cwd()
        descriptors = Path(f"/proc/{process.pid}/fd").iterdir()
        links = {each.name: str(each.readlink()) for each in descriptors}

    assert session == process.pid
    assert directory == "/"
    assert links.pop("0").startswith("pipe:")
    assert links == {"1": os.devnull, "2": os.devnull}


def test_its_arguments_are_constant() -> None:
    with watched("s1", settings={**DOCKER, "docker.host": "tcp://127.0.0.1:9"}) as kernel:
        _wait_until_it_reads(kernel.watcher)
        arguments = kernel.watcher.cmdline()

    assert arguments == [sys.executable, *watcher.ARGUMENTS]


def test_it_is_small() -> None:
    with watched("s1") as kernel:
        _wait_until_it_reads(kernel.watcher)
        memory = kernel.watcher.memory_full_info()
        times = kernel.watcher.cpu_times()

    assert memory.uss < 8 << 20
    assert times.user + times.system < 0.2


def _wait_until_it_reads(process: psutil.Process) -> None:
    deadline = time.monotonic() + 10
    while process.cwd() != "/" or process.num_fds() > 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)


class SlowAdapter(NoneAdapter):
    """Refuses after a while."""

    def __init__(self) -> None:
        super().__init__(Path("config.toml"))
        self.asked, self.answer = threading.Event(), threading.Event()

    def create(self, *arguments: object) -> NoReturn:
        self.asked.set()
        self.answer.wait(10)
        super().create(*arguments)


def test_a_sandbox_that_is_being_made_keeps_the_watcher_from_being_dismissed() -> None:
    adapter = SlowAdapter()
    opener = Opener(lambda: Plan(provider="slow", adapter=adapter, policy=Policy(), labels={}))
    adapter.asked.wait(10)
    while_asked = opener.idle
    adapter.answer.set()
    with pytest.raises(SandboxPolicyError):
        opener(lambda _: None)

    assert not while_asked
    assert opener.idle


def test_files_beside_the_notebook_are_not_imported(
    tmp_path: Path, engine: docker.DockerClient, containers: Shelf
) -> None:
    for name in ("json", "time", "sandbox_kernel", "docker", "platformdirs", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})"
        )
    left = containers.put(made_by("s1"))
    with watched("s1", cwd=tmp_path) as kernel:
        kernel.kill()

        assert seconds_until_gone(engine, left, at_most=5) is not None
    assert not (tmp_path / "ran").exists()
