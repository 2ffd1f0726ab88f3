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
    SandboxPolicyError,
    SandboxTimeoutError,
    SandboxUnavailableError,
)
from sandbox_kernel.policy import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandbox_kernel import wire
    from sandbox_kernel.cell import Run
    from sandbox_kernel.policy import Policy

#: Characters of what an image printed in place of the guest that a message repeats.
_SHOWN = 300

TOLD = {
    State.KEPT: "its variables are kept",
    State.LOST: "all variables are lost",
}


def state_of(verdict: wire.Verdict | wire.Rewound) -> State:
    """What became of the variables, by the supervisor's word."""
    return State.RESTORED if verdict.state == "restored" else State.LOST


def killed(verdict: wire.Verdict, policy: Policy, run: Run, told: str) -> tuple[str, str]:
    """Return the name and the text of the error for a cell whose worker died.

    Args:
        verdict: The supervisor's.
        policy: What the cell ran under.
        run: The cell.
        told: What became of the variables.
    """
    if verdict.kind == "oom":
        limit = f"{policy.memory_bytes / MIB:.0f} MiB"
        return SandboxMemoryError.__name__, f"killed: out of memory (limit {limit}); {told}"
    if verdict.kind == "killed" and run.timed_out:
        return timeout(run, f"had to be killed; {told}")
    if verdict.kind == "killed" and run.flooded:
        return SandboxCrashError.__name__, f"killed: it printed without end; {told}"
    if verdict.kind == "killed":
        text = f"the cell did not stop when interrupted and was killed; {told}"
        return KeyboardInterrupt.__name__, text
    return SandboxCrashError.__name__, f"the worker ended: {verdict.detail}; {told}"


def timeout(run: Run, what: str) -> tuple[str, str]:
    """The same for a cell that ran past its deadline."""
    limit = f"{run.limit_seconds:g} s"
    return SandboxTimeoutError.__name__, f"the cell ran longer than {limit} and {what}"


def no_way_back(back: int, targets: Sequence[tuple[int, int]]) -> tuple[str, str]:
    """The error for a `%sandbox rewind` to what is not kept."""
    ways = "; ".join(f"{way}: to before `In [{number}]`" for way, number in targets)
    error = SandboxPolicyError(
        f"the sandbox cannot go back {back} cells" if back else "the sandbox could not go back",
        hint=f"what is kept: {ways or 'nothing'}; the policy's `checkpoints` says how many cells",
    )
    return SandboxPolicyError.__name__, str(error)


def no_looser(run: Run, policy: Policy) -> tuple[str, str]:
    """The error for a cell that asks for more time than the policy gives."""
    error = SandboxPolicyError(
        f"`--timeout {run.limit_seconds:g}` is more than the policy's {policy.timeout_seconds:g} s",
        hint="a cell can only tighten it; `timeout_seconds` of the configuration sets it",
    )
    return SandboxPolicyError.__name__, str(error)


def between_cells(verdict: wire.Verdict, told: str) -> str:
    """The notice in the next cell when a worker died while none ran."""
    return f"between two cells the worker ended ({verdict.detail}): {told}"


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
