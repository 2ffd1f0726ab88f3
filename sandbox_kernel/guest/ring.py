r"""Text from the worker to the supervisor through memory that both map: no system call a line.

The bytes are UTF-8.  Where the stream or the cell changes, or an event was sent meanwhile on the
socket, a mark says so: `\xff`, which UTF-8 never holds, the stream, the cell, and how many events
the worker had sent by then.  Text behind a mark is handed out when as many were received.

Pure: no clock and no system call; whoever writes is given what wakes the reader and what waits.

Rule 1: there is one writer and one reader, and each word of the header is stored by one of them:
    `head` by the writer, `tail` and `asleep` by the reader, all counted from the start.
Rule 2: text stands in the ring at once, and a mark whole or not at all, whatever exception
    a signal handler raises: bytes count only when `head` is stored, by one aligned store.
Rule 3: the reader copies what it reads, then checks it; it keeps its own tail.  What breaks the
    format raises `RemoteProtocolError`, whatever the bytes.
Rule 4: bytes are stored before `head`, and `head` before `asleep` is looked at; the reader the
    other way round.  x86 keeps stores in order, and a lock's release is a full barrier there;
    elsewhere `_fence` is called: a release that an acquire follows orders all around them.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Callable, NamedTuple

from sandbox_kernel.errors import RemoteProtocolError
from sandbox_kernel.guest.streams import PAUSE

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType

#: Bytes of text that the ring holds; a power of two.
SIZE = 256 * 1024
#: Seconds from the first text after quiet to the first look: the rest of its line comes along.
SETTLE = 0.002

#: What is written to the bell: whether text in the worker's pipes is older than what rings.
BEHIND_PIPES, BEHIND_NOTHING = b"\1", b"\0"

_MASK = SIZE - 1
# Words of the header, each in a cache line of its own.
_HEAD, _TAIL, _ASLEEP = 0, 8, 16
_HEADER_BYTES = 192
#: Bytes of the memory that both map.
BYTES = SIZE + _HEADER_BYTES

_MARK = struct.Struct("=BBQQ")
_NAMES = {1: "stdout", 2: "stderr"}
_STREAMS = {name: stream for stream, name in _NAMES.items()}

#: Whether the processor may show another one our stores in another order.
_WEAK = os.uname().machine not in ("x86_64", "i686", "i386")


class Text(NamedTuple):
    """Text for one stream of one cell."""

    cell: int
    name: str
    data: bytes


class Outlet(NamedTuple):
    """What a worker is given for its text.

    Attributes:
        memory: The ring.
        bell: An fd that does not block; what is written there wakes the reader.
    """

    memory: mmap.mmap
    bell: int


def allocate() -> mmap.mmap:
    """Return memory for a ring, which this process and those that it forks share.

    Raises:
        OSError: there is none.
    """
    return mmap.mmap(-1, BYTES)


def _header(memory: mmap.mmap) -> memoryview:
    # Native words: others would be stored byte by byte.
    return memoryview(memory)[SIZE:BYTES].cast("Q")


def _fence(lock: AbstractContextManager[object]) -> None:
    """Order all stores and loads before the call against all behind it."""
    with lock:
        pass
    with lock:
        pass


class Writer:
    """The worker's side; safe from any thread, and from handlers that interrupt it.

    Args:
        memory: The ring.
        wake: Wakes a reader that sleeps.
        wait: Waits a moment for room in a full ring; what it raises ends the `write`.
    """

    def __init__(
        self, memory: mmap.mmap, wake: Callable[[], None], wait: Callable[[], None]
    ) -> None:
        self._memory = memory
        self._header = _header(memory)
        self._wake = wake
        self._wait = wait
        self._backlog: deque[Text] = deque()
        self.resync()

    def resync(self) -> None:
        """Begin anew in a process that was forked, after the reader's `renew`."""
        #: Events that were sent on the socket.
        self.events = 0
        # Another thread may have held them at the moment of the fork.
        self._lock = threading.RLock()
        self._barrier = threading.RLock()
        self._writing = False
        # What the last mark said.
        self._cell, self._name, self._marked = -1, "", -1
        # `head` may come up to here before we ask for the tail again.
        self._limit = 0
        # The sleep that the reader was woken from.
        self._woken = 0

    def write(self, cell: int, name: str, data: bytes) -> None:
        """Put UTF-8 into the ring; when there is no room, wait for it."""
        with self._lock:
            if self._writing and _interrupts_a_write():
                # A finalizer or a signal handler that prints, inside of our own write.
                self._backlog.append(Text(cell, name, data))
                return
            self._writing = True
            try:
                self._put(cell, name, data)
                while self._backlog:
                    self._put(*self._backlog.popleft())
            finally:
                self._writing = False
        if _WEAK:
            _fence(self._barrier)
        if self._header[_ASLEEP] != self._woken:
            asleep = self._header[_ASLEEP]
            self._wake()
            self._woken = asleep

    def flush(self) -> None:
        """Put in what an interrupted write has left behind."""
        # Not inside of our own write, which puts it in when it is done.
        with self._lock:
            while self._backlog and not (self._writing and _interrupts_a_write()):
                self.write(*self._backlog.popleft())

    def _put(self, cell: int, name: str, data: bytes) -> None:
        if cell != self._cell or name != self._name or self.events != self._marked:
            self._put_marked(cell, name, data)
            return
        head = self._header[_HEAD]
        at = head & _MASK
        size = len(data)
        if at + size > SIZE or head + size > self._limit:
            self._put_pieces(b"", data)
            return
        self._memory[at : at + size] = data
        if _WEAK:
            _fence(self._barrier)
        self._header[_HEAD] = head + size

    def _put_marked(self, cell: int, name: str, data: bytes) -> None:
        if not data:
            return
        events = self.events
        # Should an interrupt end this, the next text gets a mark again.
        self._marked = -1
        self._put_pieces(_MARK.pack(0xFF, _STREAMS[name], cell, events), data)
        self._cell, self._name, self._marked = cell, name, events

    def _put_pieces(self, mark: bytes, data: bytes) -> None:
        """Put in what wraps around, or has to wait for room."""
        start = 0
        while start < len(data):
            room = self._room(min(len(mark) + len(data) - start, SIZE // 2))
            end = _cut(data, start + room - len(mark))
            self._store(mark + data[start:end])
            start, mark = end, b""

    def _room(self, wanted: int) -> int:
        while True:
            self._limit = self._header[_TAIL] + SIZE
            room = self._limit - self._header[_HEAD]
            if room >= wanted:
                if _WEAK:
                    _fence(self._barrier)
                return room
            self._wait()

    def _store(self, data: bytes) -> None:
        head = self._header[_HEAD]
        at = head & _MASK
        first = min(len(data), SIZE - at)
        self._memory[at : at + first] = data[:first]
        self._memory[: len(data) - first] = data[first:]
        if _WEAK:
            _fence(self._barrier)
        self._header[_HEAD] = head + len(data)


def _interrupts_a_write() -> bool:
    """Whether the caller's caller was called from within `Writer.write`, in this thread.

    Before Python 3.11 an exception of a signal handler's can skip a `finally`, so that what is
    reset there may be out of date.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code is Writer.write.__code__:
            return True
        frame = frame.f_back
    return False


def _cut(data: bytes, end: int) -> int:
    """Where to cut UTF-8 at or before `end`, so that no character is cut."""
    if end >= len(data):
        return len(data)
    while data[end] & 0xC0 == 0x80:
        end -= 1
    return end


class Reader:
    """The supervisor's side."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._header = _header(memory)
        self._barrier = threading.RLock()
        self._sleeps = 0
        self.renew()

    def renew(self) -> None:
        """Empty the ring for another writer; the one before must not write any more."""
        #: When to call `look`; infinite while the writer will wake us.
        self.look_at = 0.0
        self._events = 0
        self._blocked = False
        self._tail = 0
        self._cell, self._name = 0, "stdout"
        self._header[_HEAD] = self._header[_TAIL] = 0

    @property
    def asleep(self) -> bool:
        """Whether the writer has to wake us."""
        return self.look_at == inf

    @property
    def unread(self) -> bool:
        """Whether there are bytes that can be taken."""
        return not self._blocked and self._header[_HEAD] != self._tail

    def woken(self, now: float) -> None:
        """The writer rang, or `unread` was found to be true: plan a look."""
        # While one is planned, only a writer that waits for room rings.
        self.look_at = now + SETTLE if self.asleep else now

    def event_received(self) -> None:
        """An event of the writer's has come through the socket."""
        self._events += 1
        if self._blocked:
            self._blocked, self.look_at = False, 0.0

    def look(self, now: float) -> list[Text]:
        """What there is by now; plans the next look, or falls asleep.

        Raises:
            RemoteProtocolError: the writer broke the format.
        """
        texts = self.take()
        if texts:
            self.look_at = now + PAUSE
        elif not self.asleep:
            self._sleeps += 1
            self._header[_ASLEEP] = self._sleeps
            _fence(self._barrier)
            self.look_at = now if self.unread else inf
        return texts

    def take(self, *, final: bool = False) -> list[Text]:
        """What there is; with `final` also what was written after events that never came.

        Raises:
            RemoteProtocolError: the writer broke the format.
        """
        size = self._header[_HEAD] - self._tail
        if not 0 <= size <= SIZE:
            raise RemoteProtocolError(f"{size} bytes in a ring of {SIZE}")
        if not size:
            return []
        _fence(self._barrier)
        at = self._tail & _MASK
        data = self._memory[at : min(at + size, SIZE)] + self._memory[: max(at + size - SIZE, 0)]
        texts, taken = self._parse(data, final=final)
        self._tail += taken
        _fence(self._barrier)
        self._header[_TAIL] = self._tail
        return texts

    def _parse(self, data: bytes, *, final: bool) -> tuple[list[Text], int]:
        texts = []
        at = 0
        while at < len(data):
            end = data.find(b"\xff", at)
            if end != at:
                end = end if end != -1 else len(data)
                texts.append(Text(self._cell, self._name, data[at:end]))
                at = end
                continue
            if len(data) - at < _MARK.size:
                raise RemoteProtocolError("a mark is cut off")
            _, stream, cell, events = _MARK.unpack_from(data, at)
            if stream not in _NAMES:
                raise RemoteProtocolError(f"text for stream {stream}")
            if events > self._events and not final:
                self._blocked = True
                break
            self._cell, self._name = cell, _NAMES[stream]
            at += _MARK.size
        return texts, at

    def close(self) -> None:
        """Let go of the memory."""
        self._header.release()
        self._memory.close()
