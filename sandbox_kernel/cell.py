"""One cell: what is asked of it, where it stands, how it ended.  Values only.

`Run` is the session's own record and is changed only under its lock; `Outcome` is frozen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

    from sandbox_kernel import wire
    from sandbox_kernel.display import safe

#: Past this much output, shown or dropped, a cell is killed.
FLOOD_BYTES = 256 * 1024 * 1024
#: Bytes of errors that a cell may show when its output is over the cap: the user wants to know.
ERROR_BYTES = 256 * 1024
#: Bytes that threads of a finished cell may still print.
LATE_BYTES = 64 * 1024


class State(Enum):
    """What became of the variables."""

    KEPT = "kept"
    RESTORED = "restored"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a cell ended, by the host's and the supervisor's word.

    Attributes:
        error: What was shown as the cell's error, or None if it succeeded.
        pages: Texts for the pager.
        exit_code: 0, or 1 for an error, or what the worker's process ended with.
        duration_ms: Wall-clock time, waiting for a sandbox not included.
        dropped: Bytes of output over the cap.
        checkpoint: Whether its variables would have come back, had it been fatal.
    """

    error: safe.Error | None
    pages: tuple[str, ...]
    provider: str
    sandbox_id: str
    exit_code: int
    timed_out: bool
    duration_ms: int
    dropped: int
    state: State
    checkpoint: bool

    @property
    def ok(self) -> bool:
        """Whether the cell succeeded."""
        return self.error is None


class Stage(Enum):
    """How far a cell has come, or how far it had to be driven."""

    WAITING = "waiting for a sandbox"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    DESTROYED = "its sandbox is being destroyed"


@dataclass(slots=True, kw_only=True)
class Run:
    """The running cell.

    Attributes:
        due: When the next step against it is taken, on the monotonic clock.
        limit_seconds: How long it may run; the policy's timeout, or less.
        paused: Since when it waits for the user; that time does not count.
    """

    execute: wire.Execute
    future: Future[Outcome]
    stage: Stage = Stage.WAITING
    started: float = 0.0
    due: float = inf
    limit_seconds: float = inf
    timed_out: bool = False
    paused: float | None = None
    output_bytes: int = 0
    dropped: int = 0
    errors_left: int = ERROR_BYTES
    error: safe.Error | None = None
    pages: list[str] = field(default_factory=list)

    @property
    def cell(self) -> int:
        """Its number."""
        return self.execute.cell

    def count(self, size: int, cap: int, *, error: bool) -> bool:
        """Count an output of `size` bytes, and say whether it may be shown under `cap`."""
        self.output_bytes += size
        if self.output_bytes <= cap:
            return True
        if error and size <= self.errors_left:
            self.errors_left -= size
            return True
        self.dropped += size
        return False

    @property
    def flooded(self) -> bool:
        """Whether it printed so much that it is killed for it."""
        return self.output_bytes + self.dropped > FLOOD_BYTES


@dataclass(slots=True)
class Remembered:
    """What is kept of a cell: where its output goes, and how much may still come."""

    context: Any
    late_bytes: int = LATE_BYTES
