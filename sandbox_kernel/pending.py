"""Requests to the guest that wait for their answer.

Every one is answered: by the guest, or with None when its time is over or the sandbox is
gone.  Knows no clock of its own: instants are handed in.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from concurrent.futures import Future


class Pending(NamedTuple):
    """One request: who waits, until when, and the code that it is about."""

    future: Future[Any]
    due: float
    code: str


class Requests:
    """The requests under way, by the number that the wire carries."""

    def __init__(self) -> None:
        self._number = 0
        self._waiting: dict[int, Pending] = {}

    def add(self, future: Future[Any], due: float, code: str) -> int:
        """Mint the number of a request."""
        self._number += 1
        self._waiting[self._number] = Pending(future, due, code)
        return self._number

    def code(self, number: int) -> str | None:
        """The code that an answer is about; None if nobody waits for it."""
        pending = self._waiting.get(number)
        return pending.code if pending is not None else None

    def answer(self, number: int, value: object) -> None:
        """Hand an answer over; one that nobody waits for is dropped."""
        pending = self._waiting.pop(number, None)
        if pending is not None:
            pending.future.set_result(value)

    def expire(self, now: float) -> None:
        """Answer those whose time is over with None; `inf` means all."""
        for number, pending in list(self._waiting.items()):
            if now >= pending.due:
                self.answer(number, None)

    @property
    def due(self) -> float:
        """When the next one expires."""
        return min((pending.due for pending in self._waiting.values()), default=inf)
