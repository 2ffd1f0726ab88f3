"""Which cell a piece of output belongs to: the one whose code, or task, makes it.

Invariant: the same answer as ipykernel 7.4 gives.  A task, and a thread that was given a
copy of the context, belongs to the cell that started it; a plain thread has no context of
its own, and belongs to the latest cell.
"""

from __future__ import annotations

from contextvars import ContextVar


class Routing:
    """The running cell, seen from any task or thread."""

    def __init__(self) -> None:
        self._own: ContextVar[int] = ContextVar("cell")
        self._latest = 0

    def begin(self, cell: int) -> None:
        """From here on this context, and all that is copied from it, belongs to `cell`."""
        self._own.set(cell)
        self._latest = cell

    def current(self) -> int:
        """Return the cell that the caller's output belongs to; 0 before the first cell."""
        return self._own.get(self._latest)
