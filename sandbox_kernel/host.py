"""Facts of this machine that say who owns a sandbox: boot id, process start times.

Reads `/proc` and `/etc/machine-id`, and nothing else; decides nothing.
"""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

from sandbox_kernel.labels import Owner

_PROC = Path("/proc")


def owner() -> Owner:
    """Return this process as the owner of sandboxes."""
    pid = os.getpid()
    machine = f"{_read(Path('/etc/machine-id'))} {socket.gethostname()}"
    return Owner(
        uid=os.getuid(),
        machine=hashlib.sha256(machine.encode()).hexdigest()[:16],
        boot_id=_read(_PROC / "sys/kernel/random/boot_id") or "unknown",
        pid_namespace=str((_PROC / "self/ns/pid").readlink()),
        pid=pid,
        started=start_time(pid) or 0,
    )


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def alive(pid: int, started: int) -> bool:
    """Whether that very process still runs; another one may have got its number."""
    fields = _stat(pid)
    # One that ended is listed until its parent has asked for its exit status.
    return bool(fields) and fields[0] not in ("Z", "X") and int(fields[19]) == started


def _stat(pid: int) -> list[str]:
    """Return what the kernel says of a process, from its state on; `[]` if there is none."""
    # The name stands in brackets and may hold any character: count from the last bracket.
    return _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
