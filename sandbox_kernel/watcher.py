"""The watcher: a process beside the kernel's that removes its sandboxes once it has ended.

It waits on a pipe whose other end only the kernel holds, so that every death of the kernel is
noticed.  Before that it is told which sandboxes to remove, and how their engine is reached.

Invariants: until the kernel has ended it imports nothing but what reads a pipe (3 MB, 9 ms).
Its arguments are constant.  It shares neither session, directory, output nor descriptors with
the kernel, and imports nothing from the notebook's folder.  It removes what it was told of,
and nothing else.
"""

# Without the module `typing`, and everything else that a process that waits does not need.
# ruff: noqa: PLC0415

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sandbox_kernel.adapters.base import Adapter

#: Not `-m`, which takes half as long again; `-E` and `-P` as in the kernelspec.
ARGUMENTS = ("-E", "-P", "-c", "from sandbox_kernel import watcher; watcher.main()")

#: Seconds after the kernel's end in which a sandbox may still appear: it was asked for, and
#: a busy engine had not answered yet.
LINGER_SECONDS = 20.0

#: Seconds between two looks.
LOOK_SECONDS = 0.5

#: The last line of a kernel that has removed its sandboxes itself.
DISMISSED = b"dismissed\n"


class Watcher:
    """The kernel's end of the pipe; the process is started when there is something to watch.

    One that was killed is replaced then, too.  Where none can be started, the sandboxes have
    their own timers, and `reap`.
    """

    def __init__(self) -> None:
        self._pipe: int | None = None

    def watch(self, settings: Mapping[str, str], session: str) -> None:
        """Have a sandbox removed when this process ends; call it before the sandbox is made.

        Args:
            settings: What its adapter is made from, by flat name; no secrets are needed.
            session: As in the sandbox's labels.
        """
        import json

        line = json.dumps({"settings": dict(settings), "session": session}).encode() + b"\n"
        if not self._tell(line):
            self._start()
            self._tell(line)

    def dismiss(self) -> None:
        """Say that nothing is left to remove; the watcher looks once, and ends."""
        self._tell(DISMISSED)
        self._close()

    def _tell(self, line: bytes) -> bool:
        if self._pipe is None:
            return False
        try:
            # Less than `PIPE_BUF`: all of it or nothing.
            return os.write(self._pipe, line) == len(line)
        except OSError:
            return False

    def _start(self) -> None:
        self._close()
        # Closed in every process that is started from here: Python's default.
        read_end, self._pipe = os.pipe()
        # A watcher that somebody stopped must not stop the kernel.
        os.set_blocking(self._pipe, False)
        actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_DUP2, read_end, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            # Or who reads the kernel's output would wait for the watcher's.
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        try:
            # A session of its own, because Jupyter kills a kernel's whole process group.
            os.posix_spawn(
                sys.executable,
                [sys.executable, *ARGUMENTS],
                os.environ,
                file_actions=actions,
                setsid=True,
            )
        except OSError:
            self._close()
        finally:
            os.close(read_end)

    def _close(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            os.close(pipe)


def main() -> None:
    """Wait for the kernel's end, then remove what it left."""
    # No directory is kept busy, and no file open that the kernel had from its parent.
    os.chdir("/")
    descriptors = os.listdir("/proc/self/fd")  # noqa: PTH208 - `pathlib` is not imported
    os.closerange(3, max(map(int, descriptors)) + 1)
    told = sys.stdin.buffer.readlines()
    dismissed = bool(told) and told[-1] == DISMISSED
    _remove(_adapters(line for line in told if line != DISMISSED), dismissed=dismissed)


def _adapters(lines: Iterable[bytes]) -> list[tuple[Adapter, set[str]]]:
    """Return each engine that sandboxes were made on, and their sessions."""
    import json

    from sandbox_kernel import adapters, config
    from sandbox_kernel.settings import Layer

    sessions: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for line in lines:
        told = json.loads(line)
        sessions.setdefault(tuple(told["settings"].items()), set()).add(told["session"])
    found: list[tuple[Adapter, set[str]]] = []
    for settings, names in sessions.items():
        # The kernel's own words; the files may say something else by now.
        configuration = config.resolve([Layer(name="the kernel", values=dict(settings))])
        found.append((adapters.get(configuration.provider)(configuration), names))
    return found


def _remove(places: list[tuple[Adapter, set[str]]], *, dismissed: bool) -> None:
    """Remove what there is, again and again while more may appear."""
    import time

    deadline = time.monotonic() + LINGER_SECONDS
    while True:
        found = [_remove_from(adapter, sessions) for adapter, sessions in places]
        if (dismissed and not any(found)) or time.monotonic() > deadline:
            return
        time.sleep(LOOK_SECONDS)


def _remove_from(adapter: Adapter, sessions: set[str]) -> bool:
    """Remove the sandboxes of some sessions, and say whether there were any."""
    from sandbox_kernel import labels
    from sandbox_kernel.errors import SandboxKernelError

    try:
        found = [
            sandbox.sandbox_id
            for sandbox in adapter.list(labels.of_user(os.getuid()))
            if sandbox.labels.get(labels.SESSION) in sessions
        ]
        for sandbox_id in found:
            adapter.remove(sandbox_id)
    except SandboxKernelError:
        # An engine that does not answer now may do so at the next look.
        return True
    return bool(found)
