"""`sys.stdout` and `sys.stderr` of the worker.

Invariants: what is written to either, and what is displayed, keeps its order.  No text waits
here, not for the end of its line either: the supervisor gathers it.
"""

from __future__ import annotations

import codecs
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandbox_kernel.guest.link import Link
    from sandbox_kernel.guest.routing import Routing

#: Characters that are encoded at once.
_PIECE = 1024 * 1024

_FDS = {"stdout": 1, "stderr": 2}


def _well_formed(text: str) -> str:
    """Replace lone surrogates, as the wire does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Spool:
    """Text on its way to the supervisor: one way for both streams, so that order is kept."""

    def __init__(self, link: Link, routing: Routing) -> None:
        self._link = link
        self._current_cell = routing.current

    def write(self, name: str, text: str) -> None:
        """Take text for stdout or stderr; it can be read by the supervisor at once."""
        if len(text) > _PIECE:
            # A copy of the whole might be more than the sandbox has memory for.
            for start in range(0, len(text), _PIECE):
                self.write(name, text[start : start + _PIECE])
            return
        try:
            data = text.encode()
        except UnicodeEncodeError:
            data = _well_formed(text).encode()
        if data:
            self._link.write(self._current_cell(), name, data)

    def flush(self) -> None:
        """Make sure that all is out, also after an interrupt."""
        self._link.flush()


class OutStream(io.TextIOBase):
    """A text stream of the cell's; named as ipykernel's."""

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
        """Do nothing that `write` has not done."""
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
