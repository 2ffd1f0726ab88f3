"""Finds the sandboxes that nobody owns any more, and removes them.

Invariants: `labels.is_orphan` alone chooses, so only this user's are touched, and of those
only expired ones and ones whose owner surely ended.  What cannot be read is left alone.  One
that cannot be removed does not keep the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sandbox_kernel import host, labels
from sandbox_kernel.errors import SandboxKernelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandbox_kernel.adapters.base import Adapter, SandboxInfo
    from sandbox_kernel.labels import Marks, Owner


class Reason(Enum):
    """Why a sandbox is an orphan."""

    EXPIRED = "its lifetime is over"
    OWNERLESS = "its owner has ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A sandbox to remove.

    Attributes:
        sandbox: As its provider lists it.
        marks: What its labels say.
        reason: Why.
    """

    sandbox: SandboxInfo
    marks: Marks
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What became of an orphan.

    Attributes:
        orphan: Which one.
        error: Why it could not be removed, or `None`: it is gone.
    """

    orphan: Orphan
    error: SandboxKernelError | None = None


def orphans(adapter: Adapter, *, me: Owner, now: float) -> list[Orphan]:
    """Return the orphans that a provider lists, running or not.

    Args:
        adapter: The provider.
        me: This process; only its user's sandboxes count.
        now: Seconds since the epoch.

    Raises:
        SandboxUnavailableError: The provider cannot be asked.
    """
    found = []
    for sandbox in adapter.list(labels.of_user(me.uid)):
        marks = labels.parse(sandbox.labels)
        if marks is None or not labels.is_orphan(marks, me=me, now=now, alive=host.alive):
            continue
        reason = Reason.EXPIRED if now >= marks.expires else Reason.OWNERLESS
        found.append(Orphan(sandbox=sandbox, marks=marks, reason=reason))
    return found


def remove(adapter: Adapter, found: list[Orphan]) -> Iterator[Removal]:
    """Remove the orphans, one with each step, whatever became of the one before."""
    for orphan in found:
        try:
            adapter.remove(orphan.sandbox.sandbox_id)
        except SandboxKernelError as error:
            yield Removal(orphan=orphan, error=error)
        else:
            yield Removal(orphan=orphan)
