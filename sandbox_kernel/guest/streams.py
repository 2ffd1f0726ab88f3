"""Output on its way to the host: gathered into few events, and counted against the caps.

Pure: no clock and no I/O; the caller says what time it is.

Invariants: text keeps its order; no more than one gathering's worth of it is held back; what a
cell may send is bounded however it is cut, and what is dropped is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandbox_kernel import wire

if TYPE_CHECKING:
    from typing import Any

#: Characters that go out without waiting for more; with JSON's quotes they fit in one frame.
FULL = 24 * 1024
#: Seconds between two sendings while text keeps coming.
PAUSE = 0.020
#: Bytes that threads and tasks of a finished cell may still print.
LATE_BYTES = 64 * 1024
#: Finished cells that are remembered; older ones print no more.
LATE_CELLS = 1000
#: Bytes beyond the cap that are kept for errors: a traceback must show, however much was printed.
ERROR_BYTES = 256 * 1024


class Gatherer:
    """Text that waits to be sent, in order."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, str, list[str]]] = []
        self._size = 0
        self._sent_at = float("-inf")

    def add(self, cell: int, name: str, text: str) -> None:
        """Put `text` behind what waits already."""
        if not text:
            return
        if not self._runs or self._runs[-1][0] != cell or self._runs[-1][1] != name:
            self._runs.append((cell, name, []))
        self._runs[-1][2].append(text)
        self._size += len(text)

    @property
    def due_at(self) -> float | None:
        """When to call `take`; `None` while nothing waits.

        That is at once after a quiet time, or when enough has come together.
        """
        if not self._runs:
            return None
        return float("-inf") if self._size >= FULL else self._sent_at + PAUSE

    def take(self, now: float) -> list[wire.Stream]:
        """All that waits, as events that each fit in a frame."""
        events: list[wire.Stream] = []
        for cell, name, pieces in self._runs:
            text = "".join(pieces)
            starts = range(0, len(text), FULL)
            events += [wire.Stream(cell, name, text[start : start + FULL]) for start in starts]
        if events:
            self._runs, self._size, self._sent_at = [], 0, now
        return events


class Meter:
    """What each cell may still send.

    Args:
        limit: Bytes of output of one cell, all kinds together.
    """

    def __init__(self, limit: int) -> None:
        #: The cell that runs; 0 between cells.
        self.cell = 0
        #: Bytes that the running cell put out, sent or not; 0 between cells.
        self.seen = 0
        #: Bytes of the running cell that were not sent.
        self.dropped = 0
        self._limit = limit
        # Before the first cell a worker may say why it cannot start.
        self._left: dict[int, int] = {0: LATE_BYTES}
        self._errors_left = 0

    def begin(self, cell: int) -> None:
        """A cell starts to run."""
        self.cell, self.seen, self.dropped = cell, 0, 0
        self._left[cell] = self._limit
        self._errors_left = ERROR_BYTES

    def finish(self) -> int:
        """The running cell ended; return how many of its bytes were dropped."""
        self._left.pop(self.cell, None)
        self._left[self.cell] = LATE_BYTES
        self.seen = 0
        while len(self._left) > LATE_CELLS:
            del self._left[next(iter(self._left))]
        self.cell = 0
        return self.dropped

    def spent(self, cell: int) -> bool:
        """Whether nothing more of this cell can be sent."""
        return self._left.get(cell, 0) <= 0

    def drop(self, cell: int, size: int) -> None:
        """Count output that is not sent."""
        if cell == self.cell:
            self.seen += size
            self.dropped += size

    def text(self, cell: int, text: str) -> str:
        """The part of `text` that may be sent; the rest is counted as dropped."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if self.whole(cell, size, drop=False):
            return text
        room = max(self._left.get(cell, 0), 0)
        kept = text.encode("utf-8", "replace")[:room].decode("utf-8", "ignore")
        # Nothing shorter may follow what was cut off.
        self._left[cell] = 0
        if cell == self.cell:
            self.seen += size
            self.dropped += size - len(kept.encode())
        return kept

    def whole(self, cell: int, size: int, *, drop: bool = True) -> bool:
        """Whether `size` bytes may be sent; they are counted either way unless not `drop`."""
        left = self._left.get(cell, 0)
        if size > left:
            if drop:
                self.drop(cell, size)
            return False
        self._left[cell] = left - size
        if cell == self.cell:
            self.seen += size
        return True

    def error(self, cell: int, size: int) -> bool:
        """Whether an error of `size` bytes may be sent; it has room of its own."""
        if self.whole(cell, size, drop=False):
            return True
        if cell != self.cell or size > self._errors_left:
            self.drop(cell, size)
            return False
        self._errors_left -= size
        self.seen += size
        return True


def weight(event: Any) -> int:
    """The size of an event in characters, which for all but text is also its bytes."""
    size = 32
    for value in event:
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, list):
            size += sum(map(len, value)) + len(value)
    return size
