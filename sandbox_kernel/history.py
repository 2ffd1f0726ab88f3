"""The cells of this session, for the client's `history_request`.  Pure, in memory.

Kept on the host: what was executed is what the client sent, whatever the sandbox says.
"""

from __future__ import annotations

from collections import deque
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

#: As IPython numbers the sessions of its database; ours has just this one.
SESSION = 1
#: Cells that are kept.
LENGTH = 10_000

#: `(session, line, input)` or `(session, line, (input, output))`, as the protocol has it.
Row = tuple[int, int, str | tuple[str, str | None]]


class _Entry(NamedTuple):
    line: int
    code: str
    output: str | None


class History:
    """Append cells; ask as `history_request` does."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque(maxlen=LENGTH)

    def add(self, line: int, code: str, output: str | None = None) -> None:
        """Keep a cell under its execution count, with the text of its result."""
        self._entries.append(_Entry(line, code, output))

    def tail(self, n: int | None, *, output: bool) -> list[Row]:
        """The last `n` cells."""
        entries = list(self._entries)
        return _rows(entries[-n:] if n else entries, output=output)

    def range(self, session: int, start: int, stop: int | None, *, output: bool) -> list[Row]:
        """Cells `start` <= line < `stop`; session 0 is this one, as in IPython."""
        if session not in (0, SESSION):
            return []
        chosen = [e for e in self._entries if start <= e.line and (stop is None or e.line < stop)]
        return _rows(chosen, output=output)

    def search(self, pattern: str, n: int | None, *, output: bool, unique: bool) -> list[Row]:
        """Cells that match a glob, the latest `n`; `unique` keeps the last of equal ones."""
        chosen = [e for e in self._entries if fnmatchcase(e.code, pattern)]
        if unique:
            chosen = sorted({e.code: e for e in chosen}.values(), key=lambda e: e.line)
        return _rows(chosen[-n:] if n else chosen, output=output)


def _rows(entries: Iterable[_Entry], *, output: bool) -> list[Row]:
    if output:
        return [(SESSION, e.line, (e.code, e.output)) for e in entries]
    return [(SESSION, e.line, e.code) for e in entries]
