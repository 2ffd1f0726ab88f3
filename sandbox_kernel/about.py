"""What is said of a sandbox itself: which it is, what it uses, in Jupyter's words.  Pure.

Values from the host's own knowledge and the supervisor's report; never from user code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandbox_kernel.policy import MIB

if TYPE_CHECKING:
    from sandbox_kernel.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What runs, once it runs.

    Attributes:
        protected: Whether code can neither kill, trace nor read the supervisor.
        inner_filter: Whether the guest's own system call filter is on.
    """

    provider: str
    sandbox_id: str
    policy: Policy
    python: str
    shell: str
    protected: bool
    inner_filter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the sandbox uses, by its own cgroup; -1 where that is not known."""

    memory_bytes: int
    memory_limit: int
    cpu_ms: int
    pids: int
    uptime_ms: int


def language_info(about: About | None) -> dict[str, object]:
    """What `kernel_info` says of the language: ipykernel's words, the sandbox's Python."""
    return {
        "name": "python",
        "version": about.python if about is not None else "3",
        "mimetype": "text/x-python",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "pygments_lexer": "ipython3",
        "nbconvert_exporter": "python",
        "file_extension": ".py",
    }


def banner(about: About | None) -> str:
    """One line: what runs where, under which limits, and which promise is not kept."""
    if about is None:
        return "aisandbox: no sandbox is running"
    policy = about.policy
    limits = (
        f"network {'on' if policy.network else 'off'}",
        f"{policy.memory_bytes / MIB:.0f} MiB",
        f"{policy.cpus:g} CPU",
        f"{policy.timeout_seconds:g} s a cell",
    )
    weak = "" if about.protected else "; the supervisor in it is not protected from the code"
    where = f"Python {about.python} in {policy.image}"
    return f"aisandbox ({about.provider}): {where}; {', '.join(limits)}{weak}"


def usage_content(usage: Usage | None, last: Usage | None) -> dict[str, Any]:
    """A `usage_reply`: the sandbox as if it were the machine; `last` for the share of CPU."""
    content: dict[str, Any] = {"hostname": "sandbox"}
    if usage is None:
        return content
    before = (last.uptime_ms, last.cpu_ms) if last is not None else (0, 0)
    elapsed = usage.uptime_ms - before[0]
    if usage.cpu_ms >= 0 and elapsed > 0:
        content["kernel_cpu"] = round(100 * max(usage.cpu_ms - before[1], 0) / elapsed, 1)
    if usage.memory_bytes >= 0:
        content["kernel_memory"] = usage.memory_bytes
    if usage.memory_limit > 0:
        content["host_virtual_memory"] = {
            "total": usage.memory_limit,
            "used": usage.memory_bytes,
            "available": usage.memory_limit - usage.memory_bytes,
            "percent": round(100 * usage.memory_bytes / usage.memory_limit, 1),
        }
    return content
