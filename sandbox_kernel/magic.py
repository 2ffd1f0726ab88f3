"""`%sandbox` and `%%sandbox`: what a cell may ask of the kernel itself.  Pure.

Invariants: such a cell is read here, on the host, and the sandbox never sees the line.  It can
look, go back to what was, and tighten a limit for itself; it can loosen nothing.
"""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox_kernel.errors import SandboxPolicyError
from sandbox_kernel.policy import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandbox_kernel.about import About, Usage

_USAGE = "write `%sandbox`, `%sandbox rewind N`, or `%%sandbox --timeout SECONDS` above a cell"
_LINE = re.compile(r"%sandbox(?:\s+(?P<words>[^\n]*))?")
_CELL = re.compile(r"%%sandbox(?P<words>[^\n]*)(?:\n(?P<code>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Show:
    """Show what the sandbox is and uses."""


@dataclass(frozen=True, slots=True)
class Rewind:
    """Go back that many cells."""

    cells: int


@dataclass(frozen=True, slots=True)
class Tightened:
    """Run the code under a limit of its own."""

    code: str
    timeout_seconds: float


Wish = Show | Rewind | Tightened


def parse(code: str) -> Wish | None:
    """What a cell asks of the kernel; None: nothing, it is for the sandbox.

    Raises:
        SandboxPolicyError: It asks for what there is not; the hint says what there is.
    """
    stripped = code.strip()
    if match := _CELL.fullmatch(stripped):
        return Tightened(match["code"] or "", _timeout(match["words"].split()))
    match = _LINE.fullmatch(stripped)
    if match is None:
        return None
    match (match["words"] or "").split():
        case []:
            return Show()
        case ["rewind"]:
            return Rewind(1)
        case ["rewind", number] if number.isdecimal() and int(number) > 0:
            return Rewind(int(number))
        case words:
            raise SandboxPolicyError(f"there is no `%sandbox {' '.join(words)}`", hint=_USAGE)


def _timeout(words: Sequence[str]) -> float:
    match [part for word in words for part in word.split("=", 1)]:
        case ["--timeout", text]:
            try:
                seconds = float(text)
            except ValueError:
                seconds = math.nan
            if 0 < seconds < math.inf:
                return seconds
            raise SandboxPolicyError(f"`{text}` is no number of seconds above 0", hint=_USAGE)
        case _:
            raise SandboxPolicyError(f"there is no `%%sandbox {' '.join(words)}`", hint=_USAGE)


def rows(
    about: About | None, usage: Usage | None, targets: Sequence[tuple[int, int]]
) -> tuple[tuple[str, str], ...]:
    """What `%sandbox` shows, as pairs of a name and a value."""
    if about is None:
        return (("sandbox", "none is running; the next cell starts one"),)
    policy = about.policy
    found = [
        ("provider", f"{about.provider} ({about.sandbox_id[:12]})"),
        ("image", policy.image),
        ("network", "on" if policy.network else "off"),
        ("timeout", f"{policy.timeout_seconds:g} s a cell"),
        ("CPUs", f"{policy.cpus:g}"),
        ("processes", f"at most {policy.pids_limit}"),
        ("display", policy.display.value),
    ]
    if usage is not None:
        used = _mib(usage.memory_bytes)
        found += [
            ("memory", f"{used} of {policy.memory_bytes / MIB:.0f} MiB used"),
            ("CPU time", f"{usage.cpu_ms / 1000:.1f} s" if usage.cpu_ms >= 0 else "not known"),
            ("up for", f"{usage.uptime_ms / 1000:.0f} s"),
        ]
    found.append(("rewind", _targets(targets) if policy.checkpoint else "off by policy"))
    return tuple(found)


def _targets(targets: Sequence[tuple[int, int]]) -> str:
    if not targets:
        return "nothing is kept to go back to"
    return "; ".join(f"{back}: to before In [{count}]" for back, count in targets)


def _mib(size: int) -> str:
    return f"{size / MIB:.0f}" if size >= 0 else "an unknown part"


def as_text(pairs: Sequence[tuple[str, str]]) -> str:
    """The pairs as lines."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def as_html(pairs: Sequence[tuple[str, str]]) -> str:
    """The pairs as a table; all values are escaped."""
    lines = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in pairs
    )
    return f"<table>{''.join(lines)}</table>"
