"""Facts of this machine that say who owns a sandbox: boot id, process start times.

Reads `/proc` and nothing else; decides nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def boot_id() -> str:
    """A name that the kernel makes at each boot; "" where there is none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is no such process."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name stands in brackets and may hold any character: count from the last bracket.
    return int(stat.rpartition(")")[2].split()[19])


def alive(pid: int, started: int) -> bool:
    """Whether that very process still runs; another one may have got its number."""
    return start_time(pid) == started


def user() -> int:
    """The user id that sandboxes are labelled with."""
    return os.getuid()
