"""The counters of both cgroup versions, read from trees of files as the kernel shows them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from sandbox_kernel.guest.posture import Cgroups

if TYPE_CHECKING:
    from pathlib import Path

V1 = {
    "memory/memory.limit_in_bytes": "268435456\n",
    "memory/memory.usage_in_bytes": "5000\n",
    "memory/memory.stat": "cache 9\ntotal_inactive_file 2000\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "pids/pids.max": "100\n",
    "pids/pids.current": "7\n",
    "cpuacct/cpuacct.usage": "1500000000\n",
}
V2 = {
    "cgroup.controllers": "cpu memory pids\n",
    "memory.max": "268435456\n",
    "memory.current": "5000\n",
    "memory.stat": "anon 9\ninactive_file 2000\n",
    "memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 0\n",
    "pids.max": "100\n",
    "pids.current": "7\n",
    "cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
}
BOTH = pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])


def groups(root: Path, files: dict[str, str]) -> Cgroups:
    """Counters of a tree of these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Cgroups(root)


@BOTH
def test_limits_are_read(tmp_path: Path, files: dict[str, str]) -> None:
    cgroups = groups(tmp_path, files)

    assert (cgroups.memory_limit(), cgroups.pids_limit()) == (268435456, 100)


@BOTH
def test_kills_for_want_of_memory_are_counted(tmp_path: Path, files: dict[str, str]) -> None:
    cgroups = groups(tmp_path, files)

    assert cgroups.oom_kills() == 3


@BOTH
def test_use_is_told_without_cache(tmp_path: Path, files: dict[str, str]) -> None:
    cgroups = groups(tmp_path, files)

    stats = cgroups.stats(4, started=time.monotonic() - 2)

    assert stats[:5] == (4, 3000, 268435456, 1500, 7)
    assert 2000 <= stats.uptime_ms < 60_000


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, id="v1"),
        pytest.param({"cgroup.controllers": "", "memory.max": "max\n"}, id="v2"),
    ],
)
def test_no_limit_is_told_apart_from_not_known(tmp_path: Path, files: dict[str, str]) -> None:
    cgroups = groups(tmp_path, files)

    assert (cgroups.memory_limit(), cgroups.pids_limit()) == (0, -1)


def test_nothing_is_made_up(tmp_path: Path) -> None:
    cgroups = groups(tmp_path, {})

    stats = cgroups.stats(1, started=time.monotonic())

    assert (cgroups.oom_kills(), cgroups.memory_limit(), cgroups.pids_limit()) == (-1, -1, -1)
    assert stats[:5] == (1, -1, -1, -1, -1)
