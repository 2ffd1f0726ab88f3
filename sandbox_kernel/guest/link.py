"""The worker's end of the conversation: whole events and text out, requests in.

Rule 1: an event goes out whole or not at all, whatever exception a signal handler raises.
    A frame fits into one send, which the kernel takes whole or refuses; what is longer is
    sent while signal handlers are held.  The ring, which takes the text, counts the events.
Rule 2: a process that user code forks has no part in the conversation: all prints there.
Rule 3: when the supervisor is gone, so is the worker.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import select
import socket
import termios
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Callable, NoReturn

from sandbox_kernel import wire
from sandbox_kernel.errors import RemoteProtocolError
from sandbox_kernel.guest import ring, signals

#: Above what user code closes or writes by counting, within any usual limit.
_HIGHEST_FD = 1024
#: Between two looks for room in a full ring.
_ROOM_SECONDS = 0.002
#: A thread that waits for a typed line looks this often whether another one has received it.
_POLL_MS = 50
#: Characters of one event that we send; the rest of `MAX_EVENT` is for its other fields.
ROOM = wire.MAX_EVENT - 64 * 1024

_RUNNING = (wire.Phase.BUSY, wire.Phase.WAITING_INPUT)


def move_up(sock: socket.socket) -> socket.socket:
    """Give the socket a high descriptor, closed on exec."""
    return socket.socket(fileno=_move_up(sock.detach()))


def _move_up(fd: int) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = _HIGHEST_FD
    lowest = max(min(soft, _HIGHEST_FD) - 16, 3)
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    os.close(fd)
    return moved


class Link:
    """One worker's conversation with its supervisor; `send` is safe from any thread."""

    def __init__(self, sock: socket.socket, outlet: ring.Outlet) -> None:
        self._forked = False
        self._sock = move_up(sock)
        self._bell = _move_up(outlet.bell)
        self._ring = ring.Writer(outlet.memory, self._ring_bell, self._wait_for_room)
        #: Takes text: a cell, `stdout` or `stderr`, and UTF-8.
        self.write: Callable[[int, str, bytes], None] = self._ring.write
        self._connection = wire.Connection(wire.Role.WORKER, wire.Role.HOST)
        self._requests: deque[wire.Event] = deque()
        self._replies: deque[wire.InputReply] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._backlog: deque[bytes] = deque()
        self._sending = False
        self._sends_whole = True
        self._new_locks()
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def forked(self) -> bool:
        """Whether this process is one that user code forked."""
        return self._forked

    @property
    def running(self) -> bool:
        """Whether a cell runs."""
        return self._connection.phase in _RUNNING

    def _new_locks(self) -> None:
        self._lock = threading.RLock()
        self._receiving = threading.Lock()
        self._asking = threading.Lock()

    def _after_fork(self) -> None:
        # Another thread may have held a lock at the moment of the fork.
        self._new_locks()
        if self._forked:
            return
        self._forked = True
        self.write = _print
        if self._loop is not None:
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def rejoin(self, sock: socket.socket) -> None:
        """In a forked process that takes the worker's place: begin a conversation of its own."""
        self._forked = self._sending = False
        self._ring.resync()
        self.write = self._ring.write
        self._sock = move_up(sock)
        last = self._connection.cell
        self._connection = wire.Connection(wire.Role.WORKER, wire.Role.HOST, cell=last)
        for waiting in (self._requests, self._replies, self._backlog):
            waiting.clear()

    # sending

    def send(self, event: wire.Event) -> None:
        """Send an event; of what cannot be sent now, its text is."""
        if self._forked:
            _print_event(event)
            return
        with self._lock:
            if self._connection.phase not in _RUNNING:
                if self._connection.phase is wire.Phase.STARTING and type(event) is not wire.Ready:
                    return
                event = _between_cells(event)
            data = self._connection.send(event)
            if self._sending:
                # A finalizer or a signal handler that prints, inside of our own send.
                self._backlog.append(data)
                return
            self._sending = True
            try:
                self._write(data)
                while self._backlog:
                    self._write(self._backlog.popleft())
            finally:
                self._sending = False

    def _write(self, data: bytes) -> None:
        try:
            if len(data) <= wire.MAX_FRAME and self._sends_whole:
                sent = self._send_at_once(data)
                if sent == len(data):
                    return
                # gVisor takes what it has room for; from now on we hold signals.
                self._sends_whole = False
                data = data[sent:]
            else:
                self._wait_for(select.POLLOUT, None)
            with signals.held():
                self._sock.sendall(data)
                self._ring.events += 1
        except OSError:
            _leave()

    def _send_at_once(self, data: bytes) -> int:
        while True:
            try:
                # Sent and counted, or neither.
                with signals.held():
                    sent = self._sock.send(data, socket.MSG_DONTWAIT)
                    self._ring.events += sent == len(data)
                    return sent
            except BlockingIOError:
                pass
            # An interrupt may end this wait: nothing of the frame is sent yet.
            self._wait_for(select.POLLOUT, None)

    def _wait_for(self, what: int, timeout_ms: int | None) -> None:
        poll = select.poll()
        poll.register(self._sock, what)
        poll.poll(timeout_ms)

    # text

    def flush(self) -> None:
        """Put into the ring what an interrupted write has left behind; nothing else waits."""
        if not self._forked:
            self._ring.flush()

    def _ring_bell(self) -> None:
        try:
            os.write(self._bell, ring.BEHIND_PIPES if _pipes_hold_text() else ring.BEHIND_NOTHING)
        except BlockingIOError:
            # It has been rung already.
            return
        except BrokenPipeError:
            _leave()
        except OSError:
            # User code has closed it; the supervisor looks now and then all the same.
            return

    def _wait_for_room(self) -> None:
        self._ring_bell()
        time.sleep(_ROOM_SECONDS)

    # receiving

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive requests in `loop` from now on."""
        self._loop = loop
        self._arrived = asyncio.Event()
        loop.add_reader(self._sock.fileno(), self._receive)

    @property
    def called(self) -> bool:
        """Whether there is something to receive."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(self._requests or poll.poll(0))

    async def quiet(self, seconds: float) -> None:
        """Wait that long, or until a request has come."""
        if not self._requests:
            self._arrived.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), seconds)

    async def request(self) -> wire.Event:
        """Return the next request of the host."""
        while not self._requests:
            self._arrived.clear()
            await self._arrived.wait()
        return self._requests.popleft()

    def _receive(self) -> None:
        with self._receiving:
            try:
                data = self._sock.recv(wire.MAX_FRAME, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                _leave()
            if not data:
                _leave()
            try:
                self._take(data)
            except RemoteProtocolError as error:
                os.write(2, f"{error}\n".encode())
                os._exit(1)

    def _take(self, data: bytes) -> None:
        self._connection.receive_data(data)
        event = self._connection.next_event()
        while event is not None:
            if isinstance(event, wire.InputReply):
                self._replies.append(event)
            else:
                self._requests.append(event)
                assert self._loop is not None  # noqa: S101 - `listen` comes first
                self._loop.call_soon_threadsafe(self._arrived.set)
            event = self._connection.next_event()

    def ask(self, prompt: str, *, password: bool) -> str:
        """Return the line that the user types.

        Raises:
            KeyboardInterrupt: The user interrupted the cell instead.
            EOFError: The user typed an end of file.
        """
        with self._asking:
            cell = self._connection.cell
            try:
                # A request that was interrupted still stands: its answer is ours.
                if self._connection.phase is wire.Phase.BUSY:
                    with signals.held():
                        self.send(wire.InputRequest(cell, prompt, password))
                value = self._next_reply(cell, self._take_reply)
            except KeyboardInterrupt:
                raise KeyboardInterrupt("Interrupted by user") from None
        if value == "\x04":
            raise EOFError
        return value

    def _next_reply(self, cell: int, take: Callable[[int], str | None]) -> str:
        value = take(cell)
        while value is None:
            self._wait_for(select.POLLIN, _POLL_MS)
            with signals.held():
                self._receive()
            value = take(cell)
        return value

    def _take_reply(self, cell: int) -> str | None:
        while self._replies:
            reply = self._replies.popleft()
            if reply.cell == cell:
                return reply.value
        return None


def _between_cells(event: wire.Event) -> wire.Event:
    """What may be said only while a cell runs, as something that may be said at any time."""
    if isinstance(event, wire.ExecuteResult):
        return wire.DisplayData(*event, "")
    if isinstance(event, wire.Error):
        return wire.Stream(event.cell, "stderr", "\n".join(event.traceback) + "\n")
    if isinstance(event, wire.Page):
        return wire.Stream(event.cell, "stdout", event.text)
    return event


def _pipes_hold_text() -> bool:
    """Whether the supervisor has still to read what came through fds 1 and 2."""
    try:
        return any(any(fcntl.ioctl(fd, termios.FIONREAD, bytes(4))) for fd in (1, 2))
    except OSError:
        # User code has put something else there.
        return False


def _print_event(event: wire.Event) -> None:
    name, text = "stdout", ""
    if isinstance(event, (wire.DisplayData, wire.ExecuteResult)):
        text = dict(zip(event.mimes, event.values)).get("text/plain", "") + "\n"
    elif isinstance(event, wire.Error):
        name, text = "stderr", "\n".join(event.traceback) + "\n"
    _print(0, name, text.encode("utf-8", "replace"))


def _print(_cell: int, name: str, data: bytes) -> None:
    while data:
        data = data[os.write(2 if name == "stderr" else 1, data) :]


def _leave() -> NoReturn:
    """The supervisor is gone, and nobody is left to tell."""
    os._exit(0)
