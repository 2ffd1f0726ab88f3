"""The facts of this sandbox, as seen from inside: limits, privileges, use of resources.

Invariants: every fact is read or tried, never assumed from a setting; what cannot be read is
-1, empty, or the unsafe answer.  Runs before user code, and reads only.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sandbox_kernel import wire
from sandbox_kernel.guest import process

#: What cgroup v1 shows for "no limit" is near 2**63; nothing real is above this.
_NO_LIMIT = 1 << 50
#: That one-shot runs can use.
_INTERPRETERS = ("python3", "node", "sh")
#: `uname -r` of gVisor, where PID 1 can be killed from inside.
_GVISOR_RELEASE = "4.4.0"


class Outer(NamedTuple):
    """What the engine set, read before the supervisor hardens itself."""

    no_new_privs: int
    seccomp: int
    cap_bnd: str
    interfaces: list[str]


def outer() -> Outer:
    """Read what our own hardening would hide or make unreadable afterwards."""
    status = _status()
    try:
        interfaces = sorted(name for _, name in socket.if_nameindex())
    except OSError:
        interfaces = []
    return Outer(
        no_new_privs=int(status.get("NoNewPrivs", "-1")),
        seccomp=int(status.get("Seccomp", "-1")),
        cap_bnd=status.get("CapBnd", ""),
        interfaces=interfaces,
    )


def hello(facts: Outer, *, seccomp_inner: bool, protected: bool) -> wire.Hello:
    """The guest's first event."""
    groups = Cgroups()
    return wire.Hello(
        version=wire.VERSION,
        python=".".join(map(str, sys.version_info[:3])),
        shell="python" if find_spec("IPython") is None else "ipython",
        languages=[name for name in _INTERPRETERS if _on_path(name)],
        pid=os.getpid(),
        uid=os.getuid(),
        gid=os.getgid(),
        no_new_privs=facts.no_new_privs,
        seccomp=facts.seccomp,
        seccomp_inner=seccomp_inner,
        cap_bnd=facts.cap_bnd,
        interfaces=facts.interfaces,
        root_writable=_root_writable(),
        memory_bytes=groups.memory_limit(),
        pids_limit=groups.pids_limit(),
        nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        kernel=os.uname().release,
        env_names=sorted(os.environ),
        protected=protected,
    )


def protected() -> bool:
    """Whether same-uid code is kept away from this process; tried by a child like the worker.

    That a signal does not end PID 1 cannot be tried without ending it where it does; so only
    PID 1 of a real Linux counts.
    """
    supervisor = os.getpid()
    if supervisor != 1 or os.uname().release == _GVISOR_RELEASE:
        return False
    pid = os.fork()
    if pid == 0:
        try:
            process.prctl(process.PR_SET_DUMPABLE, 1)
            os._exit(1 if _can_reach(supervisor) else 0)
        finally:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


def _can_reach(pid: int) -> bool:
    for name in ("mem", "environ", "maps", "fd/0"):
        try:
            os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
        except OSError:
            continue
        return True
    return False


class Cgroups:
    """This sandbox's own counters, of cgroup v1 or v2; -1 where they cannot be read."""

    def __init__(self, mounted: Path = Path("/sys/fs/cgroup")) -> None:
        self._mounted = mounted
        self._v2 = (mounted / "cgroup.controllers").exists()
        self._paths = _own_paths()

    def memory_limit(self) -> int:
        """Bytes; 0: no limit."""
        return self._limit("memory", "memory.max" if self._v2 else "memory.limit_in_bytes")

    def pids_limit(self) -> int:
        """Processes and threads; 0: no limit."""
        return self._limit("pids", "pids.max")

    def oom_kills(self) -> int:
        """How many processes the kernel has killed here for want of memory."""
        name = "memory.events" if self._v2 else "memory.oom_control"
        return self._field("memory", name, "oom_kill")

    def stats(self, request: int, started: float) -> wire.Stats:
        """The answer to a `StatsRequest`.

        Args:
            request: Its number.
            started: When the supervisor began, by the monotonic clock.
        """
        return wire.Stats(
            request=request,
            memory_bytes=self.memory_used(),
            memory_limit=self.memory_limit(),
            cpu_ms=self._cpu_ms(),
            pids=self._number("pids", "pids.current"),
            uptime_ms=int((time.monotonic() - started) * 1000),
        )

    def memory_used(self) -> int:
        """Bytes, without page cache that the kernel can drop, as `docker stats` counts it."""
        used = self._number("memory", "memory.current" if self._v2 else "memory.usage_in_bytes")
        cache = "inactive_file" if self._v2 else "total_inactive_file"
        return (
            used if used < 0 else max(used - max(self._field("memory", "memory.stat", cache), 0), 0)
        )

    def _cpu_ms(self) -> int:
        if self._v2:
            microseconds = self._field("cpu", "cpu.stat", "usage_usec")
            return microseconds // 1000 if microseconds >= 0 else -1
        nanoseconds = self._number("cpuacct", "cpuacct.usage")
        return nanoseconds // 1_000_000 if nanoseconds >= 0 else -1

    def _limit(self, controller: str, name: str) -> int:
        text = self._read(controller, name).strip()
        if text == "max":
            return 0
        if not text.isdigit():
            return -1
        return int(text) if int(text) < _NO_LIMIT else 0

    def _number(self, controller: str, name: str) -> int:
        text = self._read(controller, name).strip()
        return int(text) if text.isdigit() else -1

    def _field(self, controller: str, name: str, key: str) -> int:
        for line in self._read(controller, name).splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == key and words[1].isdigit():
                return int(words[1])
        return -1

    def _read(self, controller: str, name: str) -> str:
        """A file of our group: below our own path, or at the top of a mount that shows only us."""
        root = self._mounted if self._v2 else self._mounted / controller
        own = root / self._paths.get("" if self._v2 else controller, "")
        return _text(own / name) or _text(root / name)


def _own_paths() -> dict[str, str]:
    """Controller -> our path in its tree; cgroup v2 has the one controller ""."""
    paths: dict[str, str] = {}
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path.lstrip("/")
    return paths


def _status() -> dict[str, str]:
    pairs = (line.partition(":") for line in _text(Path("/proc/self/status")).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _on_path(program: str) -> bool:
    # Without `shutil`, whose import costs more than all of this module.
    return any(os.access(Path(folder, program), os.X_OK) for folder in os.get_exec_path())


def _root_writable() -> bool:
    if os.statvfs("/").f_flag & os.ST_RDONLY:
        return False
    # Some kernels say so only here; the last mount on a place is the one that shows.
    mounts = [line.split() for line in _text(Path("/proc/self/mounts")).splitlines()]
    options = [mount[3] for mount in mounts if mount[1] == "/"]
    return not options or "ro" not in options[-1].split(",")


def _text(path: Path) -> str:
    """A file of the kernel's; empty where there is none for us."""
    try:
        return path.read_text()
    except OSError:
        return ""
