"""One worker process as its supervisor sees it: a pid, a channel, a ring, and two pipes.

Invariants: nothing here blocks.  What the worker says is parsed as hostile.  The forked child
keeps none of the supervisor's fds, and never returns into its code.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from sandbox_kernel import wire
from sandbox_kernel.guest import process, ring

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandbox_kernel.guest.copies import Copy

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


class Output(NamedTuple):
    """Where the output of a worker comes from; a copy that takes its place goes on with it.

    Attributes:
        pipes: By name, as long as anything may write there.
        text: Of its ring.
        bell: The read end; for the reader of the ring.
    """

    pipes: dict[str, int]
    text: ring.Reader
    bell: int


class Child:
    """A worker that was started; all fds are the supervisor's ends, non-blocking."""

    def __init__(
        self,
        pid: int,
        channel: socket.socket,
        dock: socket.socket | None,
        output: Output,
        cell: int = 0,
    ) -> None:
        self.pid = pid
        self.channel = channel
        #: Where it leaves copies of itself, as long as it may.
        self.dock = dock
        self._output = output
        #: `stdout` and `stderr`, as long as anything may write there.
        self.pipes = output.pipes
        #: What it prints.
        self.text = output.text
        #: Becomes readable when there is text and `text` sleeps.
        self.bell = output.bell
        self.connection = wire.Connection(wire.Role.HOST, wire.Role.WORKER, cell=cell)
        #: Bytes that the channel has not taken yet.
        self.outgoing = bytearray()
        #: The channel came to its end, or is of no more use.
        self.closed = False
        #: Why the supervisor killed it, if it did.
        self.condemned: Verdict | None = None
        self._decoders = {name: _Utf8("replace") for name in self.pipes}

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

    def hear_bell(self) -> bytes:
        """What has been rung."""
        try:
            return os.read(self.bell, READ_BYTES)
        except BlockingIOError:
            return b""

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
        self._close_sockets()
        self.text.close()
        os.close(self.bell)
        for fd in self.pipes.values():
            os.close(fd)
        self.pipes.clear()

    def judge(self, status: int, *, oom: bool) -> Verdict:
        """Say why it ended.

        Args:
            status: As of `process.Reaped`.
            oom: Whether the kernel has killed something here for want of memory.
        """
        if self.condemned:
            return self.condemned
        if status >= 0:
            return Verdict("exited", f"status {status}")
        if status == -signal.SIGKILL and oom:
            return Verdict("oom", "")
        return Verdict("crashed", process.signal_name(-status))

    def _close_sockets(self) -> None:
        self.channel.close()
        self.leave_dock()
        self.closed = True

    def leave_dock(self) -> None:
        """Take no more copies of it."""
        if self.dock is not None:
            self.dock.close()
            self.dock = None

    def thaw(self, copy: Copy) -> Child:
        """Let a copy of this worker, which has ended, go on in its place.

        Raises:
            OSError: the copy has ended too.
        """
        self._close_sockets()
        self.text.renew()
        channel, theirs = _channel()
        dock, copies_to = _dock()
        with theirs, copies_to, copy.control:
            socket.send_fds(copy.control, [b"thaw"], [theirs.fileno(), copies_to.fileno()])
        os.kill(copy.pid, signal.SIGCONT)
        return Child(copy.pid, channel, dock, self._output, self.connection.cell)


def start(settings: Mapping[str, object]) -> Child:
    """Fork a worker.

    Raises:
        OSError: no process or memory for it.
    """
    channel, theirs = _channel()
    dock, copies_to = _dock() if settings["checkpoint"] else (None, None)
    memory = ring.allocate()
    bell, rung = os.pipe()
    for fd in (bell, rung):
        os.set_blocking(fd, False)
    readers, writers = {}, {}
    for name in ("stdout", "stderr"):
        readers[name], writers[name] = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_worker(theirs, copies_to, writers, settings, ring.Outlet(memory, rung))
    theirs.close()
    if copies_to is not None:
        copies_to.close()
    for fd in (*writers.values(), rung):
        os.close(fd)
    for fd in readers.values():
        os.set_blocking(fd, False)
        _enlarge(fd)
    return Child(pid, channel, dock, Output(readers, ring.Reader(memory), bell))


def _channel() -> tuple[socket.socket, socket.socket]:
    """Our end and the worker's of its conversation."""
    ours, theirs = socket.socketpair()
    ours.settimeout(0)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHANNEL_BYTES)
    return ours, theirs


def _dock() -> tuple[socket.socket, socket.socket]:
    """Our end and the worker's of a socket for copies; the kernel tells ours who sends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def _enlarge(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        # Over the user's quota of pipe pages, or a kernel without it; only speed is lost.
        return


def _run_worker(
    channel: socket.socket,
    dock: socket.socket | None,
    pipes: Mapping[str, int],
    settings: Mapping[str, object],
    outlet: ring.Outlet,
) -> NoReturn:
    try:
        kept = [sock.fileno() for sock in (channel, dock) if sock is not None]
        process.become_worker([*kept, outlet.bell], pipes["stdout"], pipes["stderr"])

        from sandbox_kernel.guest import worker  # noqa: PLC0415 - the supervisor needs none of it

        worker.main(channel, settings, dock, outlet)
    except Exception:  # noqa: BLE001 - the child's outermost frame: shown, and then it ends
        # The worker may have put a stream of its own there, with nobody to read it yet.
        sys.stderr = sys.__stderr__
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)
