"""One worker process as its supervisor sees it: a pid, a channel, and two pipes.

Invariants: nothing here blocks.  What the worker says is parsed as hostile.  The forked child
keeps none of the supervisor's fds, and never returns into its code.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from sandbox_kernel import wire
from sandbox_kernel.guest import process

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Bytes of one read; larger ones would be mapped and unmapped each time.
READ_BYTES = 64 * 1024
#: The kernel clamps both to what it allows without privileges.
_CHANNEL_BYTES = 1024 * 1024
_PIPE_BYTES = 256 * 1024
#: Python < 3.10 has no name for it.
_F_SETPIPE_SZ = 1031

_Utf8 = getincrementaldecoder("utf-8")


class Verdict(NamedTuple):
    """Why a worker ended: a kind of `wire.Verdict`, and its detail."""

    kind: str
    detail: str


class Child:
    """A worker that was started; all fds are the supervisor's ends, non-blocking."""

    def __init__(self, pid: int, channel: socket.socket, pipes: dict[str, int]) -> None:
        self.pid = pid
        self.channel = channel
        #: `stdout` and `stderr`, as long as anything may write there.
        self.pipes = pipes
        self.connection = wire.Connection(wire.Role.HOST, wire.Role.WORKER)
        #: Bytes that the channel has not taken yet.
        self.outgoing = bytearray()
        #: The channel came to its end, or is of no more use.
        self.closed = False
        #: Why the supervisor killed it, if it did.
        self.condemned: Verdict | None = None
        self._decoders = {name: _Utf8("replace") for name in pipes}

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.connection.phase is not wire.Phase.STARTING

    def send(self, event: wire.Event) -> None:
        """Send it a request, now or as soon as it reads."""
        self.outgoing += self.connection.send(event)
        self.write()

    def write(self) -> None:
        """Write as much as the channel takes."""
        while self.outgoing:
            try:
                sent = self.channel.send(self.outgoing)
            except BlockingIOError:
                return
            except OSError:
                # It closed its end; the read side will tell, and the wait status why.
                self.outgoing.clear()
                return
            del self.outgoing[:sent]

    def receive(self) -> int:
        """Feed what the channel holds to `connection`; return how many bytes."""
        try:
            data = self.channel.recv(READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        self.closed = not data
        self.connection.receive_data(data)
        return len(data)

    def read_pipe(self, name: str) -> bytes | None:
        """What one pipe holds; `None` if that is nothing for now or for ever."""
        try:
            data = os.read(self.pipes[name], READ_BYTES)
        except BlockingIOError:
            return None
        if data:
            return data
        os.close(self.pipes.pop(name))
        return None

    def decode(self, name: str, data: bytes, *, final: bool = False) -> str:
        """Bytes as text; a character that is cut in two waits for its rest, unless `final`."""
        return self._decoders[name].decode(data, final)

    def close(self) -> None:
        """Close all fds."""
        self.channel.close()
        for fd in self.pipes.values():
            os.close(fd)
        self.pipes.clear()
        self.closed = True


def start(settings: Mapping[str, object]) -> Child:
    """Fork a worker.

    Raises:
        OSError: no process or memory for it.
    """
    channel, theirs = socket.socketpair()
    readers, writers = {}, {}
    for name in ("stdout", "stderr"):
        readers[name], writers[name] = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_worker(theirs, writers, settings)
    theirs.close()
    for fd in writers.values():
        os.close(fd)
    for fd in readers.values():
        os.set_blocking(fd, False)
        _enlarge(fd)
    channel.settimeout(0)
    return Child(pid, channel, readers)


def _enlarge(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        # Over the user's quota of pipe pages, or a kernel without it; only speed is lost.
        return


def _run_worker(
    channel: socket.socket, pipes: Mapping[str, int], settings: Mapping[str, object]
) -> NoReturn:
    try:
        process.become_worker(channel.fileno(), pipes["stdout"], pipes["stderr"])
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHANNEL_BYTES)

        from sandbox_kernel.guest import worker  # noqa: PLC0415 - the supervisor needs none of it

        worker.main(channel, settings)
    except Exception:  # noqa: BLE001 - the child's outermost frame: shown, and then it ends
        # The worker may have put a stream of its own there, with nobody to read it yet.
        sys.stderr = sys.__stderr__
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)
