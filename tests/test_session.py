"""The session without Jupyter: life cycle, leaks, and what it does when things break."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from sandbox_kernel import config
from sandbox_kernel.adapters.docker import DockerAdapter, DockerSettings
from sandbox_kernel.cell import State
from sandbox_kernel.launch import make_plan
from sandbox_kernel.opening import Opened, open_sandbox
from sandbox_kernel.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import docker

    from sandbox_kernel.cell import Outcome

pytestmark = pytest.mark.usefixtures("image")

TIMEOUT = 60


def opened(*settings: str) -> Opened:
    arguments = config.parse_arguments("docker", settings)
    return open_sandbox(make_plan(arguments), lambda _: None)


class Collected:
    """A session and what it delivered."""

    def __init__(self, *settings: str) -> None:
        self.outputs: list[Any] = []
        self.session = Session(
            lambda _: opened(*settings), lambda _, output: self.outputs.append(output)
        )

    def run(self, code: str) -> Outcome:
        return self.session.execute(code, None).result(TIMEOUT)

    def text(self, name: str = "stdout") -> str:
        streams = (output for output in self.outputs if getattr(output, "name", "") == name)
        return "".join(stream.text for stream in streams)


@pytest.fixture
def collected() -> Iterator[Collected]:
    made = Collected("timeout_seconds=20")
    yield made
    made.session.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the path is the kernel's


def test_twenty_cycles_leave_nothing_behind(engine: docker.DockerClient) -> None:
    def cycle() -> None:
        made = Collected()
        made.run("1 + 1")
        made.session.close()

    cycle()
    threads, files = threading.active_count(), descriptors()

    for _ in range(20):
        cycle()

    assert threading.active_count() == threads
    assert descriptors() <= files
    ours = {"label": "sandbox-kernel.pid=" + str(os.getpid())}
    deadline = time.monotonic() + 10
    while engine.api.containers(all=True, filters=ours) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert engine.api.containers(all=True, filters=ours) == []


def test_a_session_that_was_never_used_closes(engine: docker.DockerClient) -> None:
    session = Session(lambda _: opened())
    session.start()

    session.close()

    assert not [t for t in threading.enumerate() if t.name.startswith("sandbox-")]


def test_a_sandbox_that_somebody_removed_is_replaced(
    collected: Collected, engine: docker.DockerClient
) -> None:
    collected.run("x = 1")
    about = collected.session.about.result(TIMEOUT)
    assert about is not None
    engine.containers.get(about.sandbox_id).remove(force=True)
    time.sleep(1)
    outcome = collected.run("x")

    assert outcome.error is not None
    assert outcome.error.ename == "NameError"
    assert outcome.sandbox_id != about.sandbox_id
    assert "variables are gone" in collected.text("stderr")


def test_a_sandbox_that_is_removed_under_a_cell_is_told(
    collected: Collected, engine: docker.DockerClient
) -> None:
    collected.run("1")
    about = collected.session.about.result(TIMEOUT)
    assert about is not None
    running = collected.session.execute("import time; time.sleep(20)", None)
    time.sleep(0.5)
    engine.containers.get(about.sandbox_id).remove(force=True)
    outcome = running.result(10)
    after = collected.run("1 + 1")

    assert outcome.error is not None
    assert outcome.error.ename == "SandboxDiedError"
    assert outcome.state is State.LOST
    assert after.ok


def test_a_missing_image_is_told_and_mended_without_a_restart(image: str, tmp_path: Path) -> None:
    names = iter(["sandbox-kernel/no-such-image", image])
    session = Session(lambda _: opened(f"image={next(names)}"))
    failed = session.execute("1", None).result(TIMEOUT)
    works = session.execute("1", None).result(TIMEOUT)
    session.close()

    assert failed.error is not None
    assert failed.error.ename == "SandboxUnavailableError"
    assert "sandbox-kernel/no-such-image" in failed.error.evalue
    assert "hint: pull it" in failed.error.evalue
    assert works.ok


def test_an_engine_that_is_not_there_is_told(tmp_path: Path) -> None:
    adapter = DockerAdapter(DockerSettings(host=f"unix://{tmp_path}/absent.sock"))

    def without_engine(_: object) -> Opened:
        plan = make_plan(config.parse_arguments("docker", []))
        return open_sandbox(
            type(plan)(provider="docker", adapter=adapter, policy=plan.policy, labels=plan.labels),
            lambda _: None,
        )

    session = Session(without_engine)
    outcome = session.execute("1", None).result(TIMEOUT)
    session.close()

    assert outcome.error is not None
    assert outcome.error.ename == "SandboxUnavailableError"
    assert "hint:" in outcome.error.evalue
    assert "Traceback" not in outcome.error.evalue


def test_an_image_without_python_is_told(engine: docker.DockerClient, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /x\n")
    engine.images.build(path=str(tmp_path), tag="sandbox-kernel-test/empty")
    session = Session(lambda _: opened("image=sandbox-kernel-test/empty"))
    outcome = session.execute("1", None).result(TIMEOUT)
    session.close()
    engine.images.remove("sandbox-kernel-test/empty")

    assert outcome.error is not None
    assert outcome.error.ename == "SandboxUnavailableError"
    assert "python3" in outcome.error.evalue


@pytest.mark.parametrize(
    ("code", "within"),
    [
        pytest.param("while True: pass", 1, id="loop"),
        pytest.param("import time; time.sleep(600)", 1, id="sleep"),
        pytest.param("!sleep 600", 1, id="command"),
        pytest.param("import subprocess; subprocess.run(['sleep', '600'])", 1, id="child"),
        pytest.param("import asyncio; await asyncio.sleep(600)", 1, id="await"),
    ],
)
def test_an_interrupt_stops_the_cell_and_keeps_the_state(
    collected: Collected, code: str, within: float
) -> None:
    collected.run("x = 1")
    running = collected.session.execute(code, None)
    time.sleep(0.7)
    begun = time.monotonic()
    collected.session.interrupt()
    outcome = running.result(TIMEOUT)
    seconds = time.monotonic() - begun
    left = collected.run("x")

    # As in ipykernel: an interrupted command is a command that failed, and no error.
    assert outcome.ok == code.startswith("!")
    assert not outcome.timed_out
    assert seconds < within
    assert outcome.state is State.KEPT
    assert left.ok


def test_code_that_swallows_interrupts_is_killed_after_the_grace(collected: Collected) -> None:
    collected.run("1")
    running = collected.session.execute(
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass", None
    )
    time.sleep(0.5)
    begun = time.monotonic()
    collected.session.interrupt()
    outcome = running.result(TIMEOUT)
    after = collected.run("1 + 1")

    assert time.monotonic() - begun < 5
    assert outcome.error is not None
    assert outcome.error.ename == "KeyboardInterrupt"
    assert after.ok


def test_waiting_for_the_user_does_not_run_against_the_deadline() -> None:
    made = Collected("timeout_seconds=1.5")
    asked = threading.Event()

    def deliver(_: object, output: Any) -> None:
        made.outputs.append(output)
        if hasattr(output, "prompt"):
            asked.set()

    made.session.deliver = deliver
    running = made.session.execute("input('? ')", None, allow_stdin=True)
    assert asked.wait(TIMEOUT)
    time.sleep(2.5)
    made.session.input_reply(1, "late")
    outcome = running.result(TIMEOUT)
    made.session.close()

    assert outcome.ok
    assert not outcome.timed_out


def test_the_twenty_first_question_is_an_end_of_file() -> None:
    made = Collected("timeout_seconds=20")

    def deliver(_: object, output: Any) -> None:
        made.outputs.append(output)
        if hasattr(output, "prompt"):
            made.session.input_reply(output.cell, "yes")

    made.session.deliver = deliver
    running = made.session.execute(
        "n = 0\nwhile True:\n    input('? '); n += 1", None, allow_stdin=True
    )
    outcome = running.result(TIMEOUT)
    made.session.close()

    assert outcome.error is not None
    assert outcome.error.ename == "EOFError"
    assert sum(hasattr(output, "prompt") for output in made.outputs) == 20
