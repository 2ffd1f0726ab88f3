"""A real guest for the tests: the supervisor as a process, here or in the engine's box.

The host's end is the plain wire over pipes, without an adapter or a session.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sandbox_kernel import bootstrap, wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MIB = 1024 * 1024
#: Seconds for any one event; a test that waits longer has failed.
TIMEOUT = 20

SETTINGS: dict[str, bootstrap.Setting] = {
    "memory_bytes": 256 * MIB,
    "output_bytes": 8 * MIB,
    "window_bytes": 4 * MIB,
    "replay": False,
    "deadman_seconds": 60.0,
    "lifetime_seconds": 3600.0,
    "idle_seconds": 3600.0,
    "network": False,
    "stdin": True,
    "image": "test",
    "checkpoint": False,
    "checkpoints": 1,
    "nofile": 1024,
}

#: The box of the docker adapter, as options of `docker run`.
DOCKER = (
    "docker", "run", "-i", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL",
    "--security-opt", "no-new-privileges", "-u", "65534:65534", "-w", "/sandbox",
    "--tmpfs", "/tmp", "--tmpfs", "/sandbox", "-m", "256m", "--memory-swap", "256m",
    "--pids-limit", "100",
)  # fmt: skip

_WORKER = "sandbox_kernel.guest.worker"
AnEvent = TypeVar("AnEvent")


def sources() -> tuple[tuple[str, str], ...]:
    """The guest, with the scripted worker in the place of the real one."""
    script = Path(__file__).with_name("scripted_worker.py").read_text()
    ours = dict(bootstrap.modules()) | {_WORKER: script}
    return tuple(ours.items())


class Guest:
    """The host's end of one guest."""

    def __init__(self, process: subprocess.Popen[bytes], container: str, window: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.stdin, self.stdout = process.stdin, process.stdout
        #: The name of its container, or "" for a plain process.
        self.container = container
        self.connection = wire.Connection(wire.Role.HOST, wire.Role.GUEST, window=window)
        #: Whether what arrives is acknowledged.
        self.acknowledges = True
        #: The last word on copies of the worker.
        self.checkpoints = wire.Checkpoints([], "")

    def send(self, event: wire.Event) -> None:
        self.stdin.write(self.connection.send(event))
        self.stdin.flush()

    def next(self, seconds: float = TIMEOUT) -> wire.Event:
        """The next event; `EOFError` when the guest ended."""
        deadline = time.monotonic() + seconds
        while (event := self.connection.next_event()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.stdout], [], [], left)[0]:
                raise TimeoutError(f"no event within {seconds} s")
            data = os.read(self.stdout.fileno(), 256 * 1024)
            if not data:
                raise EOFError
            self.connection.receive_data(data)
            if self.acknowledges and (ack := self.connection.ack_due):
                self.send(ack)
        if isinstance(event, wire.Checkpoints):
            self.checkpoints = event
        return event

    def until(self, kind: type[AnEvent]) -> AnEvent:
        """The next event of this type; others are passed over."""
        while not isinstance(event := self.next(), kind):
            continue
        return event

    def until_quiet(self, seconds: float = 0.5) -> list[wire.Event]:
        """All events until none came for a while."""
        events: list[wire.Event] = []
        while True:
            try:
                events.append(self.next(seconds))
            except TimeoutError:
                return events

    def start(self, code: str) -> int:
        """Begin a cell; return its number."""
        cell = self.connection.cell + 1
        self.send(wire.Execute(cell, code, False, True, True, cell))
        return cell

    def finish(self) -> list[wire.Event]:
        """All events up to the end of the running cell."""
        events = [self.next()]
        while self.connection.phase is not wire.Phase.IDLE:
            events.append(self.next())
        return events

    def run(self, code: str) -> list[wire.Event]:
        """Run a cell; return what came of it, the reply or verdict last."""
        self.start(code)
        return self.finish()

    def ended(self) -> int:
        """The exit status of the guest, whose stream must end in time."""
        deadline = time.monotonic() + TIMEOUT
        # An engine counts a container as running until its output was read.
        while select.select([self.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
            if not os.read(self.stdout.fileno(), MIB):
                break
        return self.process.wait(max(deadline - time.monotonic(), 0.1))


def text(events: Sequence[wire.Event], name: str = "stdout") -> str:
    """All text of one stream."""
    return "".join(e.text for e in events if isinstance(e, wire.Stream) and e.name == name)


@contextmanager
def started(
    box: Sequence[str] = (), *, scripted: bool = True, **settings: bootstrap.Setting
) -> Iterator[Guest]:
    """A guest under `box`, the beginning of a command; its `hello` is not read yet.

    Its worker is the scripted one, or the real one.
    """
    wanted = {**SETTINGS, **settings}
    container = f"supervisor-test-{uuid.uuid4().hex}" if box else ""
    named = [*box[:2], "--name", container, *box[2:]] if box else []
    process = subprocess.Popen(
        [*named, *bootstrap.ARGV],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    with process:
        guest = Guest(process, container, int(wanted["window_bytes"]))
        guest.stdin.write(bootstrap.pack(wanted, sources() if scripted else bootstrap.modules()))
        guest.stdin.flush()
        try:
            yield guest
        finally:
            # The guest's own way to end on that is what clears the box, here as in life.
            guest.stdin.close()
            guest.ended()
