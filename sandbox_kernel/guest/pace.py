"""Whether cells come so fast that a copy after each would be most of what is done.

A copy takes some milliseconds of the processor.  A person never waits for one, nor does a
notebook whose cells compute; a program that sends trivial cells in a tight loop would.
Pure: instants are handed in.
"""

from __future__ import annotations

#: A cell that takes longer is worth a copy whatever comes next.
QUICK_SECONDS = 0.01
#: Quick cells in a row, each waiting before the last one's copy could begin: a tight loop.
BURST_CELLS = 8
#: In a tight loop there is a copy this often, so that no more than that can be lost.
BURST_SECONDS = 0.1


class Pace:
    """What the last cells were like."""

    def __init__(self) -> None:
        self._quick = 0
        self._copied_at = 0.0

    def ended(self, seconds: float, *, next_waits: bool) -> None:
        """A cell has run for that long, and the next one has come already, or not."""
        self._quick = self._quick + 1 if seconds < QUICK_SECONDS and next_waits else 0

    def copied(self, now: float) -> None:
        """A copy was left."""
        self._copied_at = now

    def hurried(self, now: float) -> bool:
        """Whether the copy may wait until the loop pauses, or for the rest of its time."""
        return self._quick >= BURST_CELLS and now - self._copied_at < BURST_SECONDS
