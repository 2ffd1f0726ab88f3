"""What is said of a cell that did not end well.  Pure.

Invariant: only the supervisor's verdict, the provider's word and the host's own clock
decide; nothing here reads what user code printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandbox_kernel.cell import State
from sandbox_kernel.errors import (
    SandboxCrashError,
    SandboxDiedError,
    SandboxKernelError,
    SandboxMemoryError,
    SandboxTimeoutError,
    SandboxUnavailableError,
)
from sandbox_kernel.policy import MIB

if TYPE_CHECKING:
    from sandbox_kernel import wire
    from sandbox_kernel.policy import Policy

#: Characters of what an image printed in place of the guest that a message repeats.
_SHOWN = 300

TOLD = {
    State.KEPT: "its variables are kept",
    State.RESTORED: "variables are as they were before this cell",
    State.LOST: "all variables are lost",
}


def state_of(verdict: wire.Verdict) -> State:
    """What became of the variables, by the supervisor's word."""
    return State.RESTORED if verdict.state == "restored" else State.LOST


def killed(
    verdict: wire.Verdict, policy: Policy, *, timed_out: bool, flooded: bool
) -> tuple[str, str]:
    """Return the name and the text of the error for a cell whose worker died."""
    told = TOLD[state_of(verdict)]
    if verdict.kind == "oom":
        limit = f"{policy.memory_bytes / MIB:.0f} MiB"
        return SandboxMemoryError.__name__, f"killed: out of memory (limit {limit}); {told}"
    if verdict.kind == "killed" and timed_out:
        return timeout(policy, f"had to be killed; {told}")
    if verdict.kind == "killed" and flooded:
        return SandboxCrashError.__name__, f"killed: it printed without end; {told}"
    if verdict.kind == "killed":
        text = f"the cell did not stop when interrupted and was killed; {told}"
        return KeyboardInterrupt.__name__, text
    return SandboxCrashError.__name__, f"the worker ended: {verdict.detail}; {told}"


def timeout(policy: Policy, what: str) -> tuple[str, str]:
    """The same for a cell that ran past its deadline."""
    limit = f"{policy.timeout_seconds:g} s"
    return SandboxTimeoutError.__name__, f"the cell ran longer than {limit} and {what}"


def between_cells(verdict: wire.Verdict) -> str:
    """The notice in the next cell when a worker died while none ran."""
    return f"between two cells the worker ended ({verdict.detail}): {TOLD[state_of(verdict)]}"


def death(why: str, skipped: bytes) -> SandboxKernelError:
    """The error for a sandbox whose stream ended.

    Args:
        why: The provider's word, "" if it has none.
        skipped: What was printed instead of the guest's first frame.
    """
    said = f", it said {skipped[-_SHOWN:]!r}" if skipped.strip() else ""
    return SandboxDiedError(f"the sandbox ended ({why or 'its stream was closed'}{said})")


def not_ready(error: SandboxKernelError) -> SandboxKernelError:
    """The error for a sandbox that ended before the guest said hello."""
    if not isinstance(error, SandboxDiedError):
        return error
    return SandboxUnavailableError(
        f"no sandbox could be started: {error.message}",
        hint=error.hint or "any image with `python3` >= 3.9 works; `docker run IMAGE python3 -V`",
    )
