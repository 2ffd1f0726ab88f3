"""From a worker's end until the next one answers: which copy goes on, and what the host is told.

Invariants: the host is told once, when it is known what became of the variables.  A copy that
does not answer in time is passed over for an older one, and after few of them for a fresh worker.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from sandbox_kernel import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox_kernel.guest.child import Child
    from sandbox_kernel.guest.copies import Copies

#: In which a copy must answer; it has nothing to load.
_THAW_SECONDS = 2.0
#: Copies that are tried: the host waits for its answer.
_MOST_TRIES = 2


class Recovery:
    """One recovery after the other.

    Args:
        copies: Where copies are taken from.
        send: Takes the event for the host.
    """

    def __init__(self, copies: Copies, send: Callable[[wire.Event], None]) -> None:
        self._copies = copies
        self._send = send
        self._answer: wire.Verdict | wire.Rewound | None = None
        self._back_to: int | None = None
        self._tries = 0
        #: The cell that was gone back to last.
        self._restored: int | None = None
        #: When the copy that was thawed is late.
        self.due_at = inf

    @property
    def underway(self) -> bool:
        """Whether the host waits to be told."""
        return self._answer is not None

    def begin(self, answer: wire.Verdict | wire.Rewound, *, back_to: int | None = None) -> None:
        """A worker has ended, or is about to.

        Args:
            answer: What the host will be told, but for `state` and `after`.
            back_to: The last cell that the next worker may have run, if that is not all one.
        """
        if self._answer is not None:
            return
        if isinstance(answer, wire.Verdict) and not answer.cell and self._restored is not None:
            # What it brought back has ended it between cells, and would end its copy as well.
            again = self._copies.cells[-1:] == [self._restored]
            back_to = self._restored - 1 if again else None
        self._answer, self._back_to, self._tries = answer, back_to, 0

    def go_back(self, wish: wire.Rewind, *, possible: bool) -> bool:
        """Whether there is a copy to go back to, for which the worker now has to end.

        Args:
            wish: What the host asks for; if not, it is told so.
            possible: Whether there is a worker that lives.
        """
        if possible and wish.cell in self._copies.cells and not self.underway:
            self.begin(wire.Rewound(wish.request, "lost", 0), back_to=wish.cell)
            return True
        self._send(wire.Rewound(wish.request, "kept", 0))
        return False

    def next_worker(self, last: Child, now: float) -> Child | None:
        """Thaw a copy of the worker that ended; `None`: there is none, and the host was told."""
        while self._tries < _MOST_TRIES:
            copy = self._copies.take(self._back_to)
            if copy is None:
                break
            self._tries += 1
            self._back_to = copy.cell
            try:
                worker = last.thaw(copy)
            except OSError:
                self._copies.discard(copy)
                continue
            self.due_at = now + _THAW_SECONDS
            return worker
        self._restored = None
        self._copies.give_up()
        last.close()
        self._tell("lost", 0)
        return None

    def answered(self) -> None:
        """The worker is ready: if it was a copy, the host is told."""
        if self._answer is not None:
            self._restored = self._back_to
            self._tell("restored", self._back_to or 0)

    def _tell(self, state: str, after: int) -> None:
        answer, self._answer = self._answer, None
        self.due_at = inf
        if answer is not None:
            self._send(answer._replace(state=state, after=after))
