"""`sys.stdout` and `sys.stderr` of the worker.

Invariants: what is written to either, and what is displayed, keeps its order on the socket.
Text waits at most for the end of its line, of its `print`, or of the cell: there is no timer.
"""

from __future__ import annotations

import codecs
import io
import os
import threading
from typing import TYPE_CHECKING, Any

from sandbox_kernel import wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandbox_kernel.guest.link import Link
    from sandbox_kernel.guest.routing import Routing

#: Characters that wait at most for the end of their line.
_WAITING = 8 * 1024
#: Characters of one event, so that it fits in a frame: as ASCII, or as escapes.
_ASCII_STEP = 24 * 1024
_STEP = 2 * 1024

_FDS = {"stdout": 1, "stderr": 2}


class Spool:
    """Text on its way to the socket: one queue for both streams, so that order is kept."""

    def __init__(self, link: Link, routing: Routing) -> None:
        self._link = link
        self._current_cell = routing.current
        self._cell = 0
        self._name = ""
        self._texts: list[str] = []
        self._size = 0
        self._lock = threading.RLock()
        # A child must not print again what waits here.
        os.register_at_fork(before=self.flush, after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()

    def write(self, name: str, text: str) -> None:
        """Take text for stdout or stderr.

        `print(..., end="")` ends with an empty write: that is as good as the end of a line,
        and so is a carriage return.
        """
        cell = self._current_cell()
        with self._lock:
            if name != self._name or cell != self._cell:
                self._send()
                self._name, self._cell = name, cell
            self._texts.append(text)
            if "\n" in text or not text or "\r" in text:
                self._send()
                return
            self._size += len(text)
            if self._size > _WAITING:
                self._send()

    def flush(self) -> None:
        """Send all that waits."""
        with self._lock:
            self._send()

    def _send(self) -> None:
        text = "".join(self._texts)
        self._texts.clear()
        self._size = 0
        if len(text) > _STEP:
            self._send_long(text)
        elif text:
            self._link.send(wire.Stream(self._cell, self._name, text))

    def _send_long(self, text: str) -> None:
        step = _ASCII_STEP if text.isascii() else _STEP
        for start in range(0, len(text), step):
            piece = text[start : start + step]
            self._link.send(wire.Stream(self._cell, self._name, piece))


class OutStream(io.TextIOBase):
    """A text stream that makes `stream` events; named as ipykernel's."""

    encoding = "UTF-8"

    def __init__(self, name: str, spool: Spool) -> None:
        self.name = name
        self.buffer = _Buffer(self)
        self._spool = spool
        self._write = spool.write

    def write(self, text: str) -> int:
        """Write text; return its length."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text)}")
        self._write(self.name, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        """Write texts, without line ends between them."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Send what waits for the end of its line."""
        self._spool.flush()

    def close(self) -> None:
        """Flush only: the notebook's later cells print too."""
        self.flush()

    def writable(self) -> bool:
        """Return true."""
        return True

    def fileno(self) -> int:
        """Return 1 or 2, whose other end the supervisor reads."""
        return _FDS[self.name]


class _Buffer(io.BufferedIOBase):
    """The bytes below an `OutStream`; characters may be cut between two writes."""

    def __init__(self, stream: OutStream) -> None:
        self.name = stream.name
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes | bytearray | memoryview | Any) -> int:
        """Write UTF-8; return the number of bytes."""
        raw = bytes(memoryview(data))
        text = self._decoder.decode(raw)
        if text:
            self._stream.write(text)
        return len(raw)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()
