"""Which cells made the variables what they are, and to which of them one can go back.

Pure.  Invariant: what is kept is the supervisor's word; which cells there were is the host's own
knowledge.  Cells are the wire's numbers; a person is told those of `In [...]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sandbox_kernel import wire

_WHY = {
    "memory": "the variables take too much of the sandbox's memory",
    "threads": "a library or the code has threads running, which no copy would have",
    "resources": "the sandbox has no process or open file left for it",
}


class Step(NamedTuple):
    """A cell that has run, by the wire's number and by that of `In [...]`."""

    cell: int
    number: int


class Lineage:
    """The cells of one sandbox, from its start to its variables of now."""

    def __init__(self) -> None:
        self._steps = [Step(0, 0)]
        self._kept: frozenset[int] = frozenset()
        self._skipped = ""
        self._noted = ""

    def told(self, checkpoints: wire.Checkpoints) -> None:
        """The supervisor has said which copies there are."""
        self._kept = frozenset(int(cell) for cell in checkpoints.cells if cell.isdecimal())
        self._skipped = checkpoints.skipped

    def ran(self, cell: int, number: int) -> None:
        """A cell has ended, and its variables are kept."""
        self._steps.append(Step(cell, number))

    def back_at(self, after: int) -> str:
        """The variables are again as after that cell; say so."""
        place = next((i for i, step in enumerate(self._steps) if step.cell == after), 0)
        undone = self._steps[place + 1 :]
        del self._steps[place + 1 :]
        if not undone:
            return "variables are as they were before this cell"
        return f"variables are as they were before `In [{undone[0].number}]`"

    def fresh(self) -> None:
        """All variables are gone."""
        del self._steps[1:]

    @property
    def net(self) -> bool:
        """Whether the variables of now come back when the next cell is fatal."""
        return self._steps[-1].cell in self._kept

    @property
    def note(self) -> str:
        """Why there is no net, when that is news; else ""."""
        why = "" if self.net else self._skipped
        if why == self._noted:
            return ""
        self._noted = why
        if not why:
            return ""
        return (
            f"no checkpoint: {_WHY[why]}; should a cell have to be killed, its variables go back"
            " to an older one, or are lost"
        )

    def target(self, back: int) -> int | None:
        """The cell after which the variables were so, `back` cells ago; None: not kept."""
        if not 0 < back < len(self._steps):
            return None
        cell = self._steps[-1 - back].cell
        return cell if cell in self._kept else None

    @property
    def targets(self) -> tuple[tuple[int, int], ...]:
        """How many cells one can go back, each with the first `In [...]` that this undoes."""
        ways = range(1, len(self._steps))
        return tuple(
            (back, self._steps[-back].number) for back in ways if self.target(back) is not None
        )
