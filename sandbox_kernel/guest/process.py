"""What the supervisor asks of the kernel about processes: hardening, signals, fds, killing.

Invariant: after `harden` and `ignore_signals`, same-uid code can neither trace the supervisor
nor read its memory, and no signal but SIGKILL and SIGSTOP, which PID 1 never gets from inside,
can end or stop it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36

#: Fds from here on are the supervisor's own; below stands what the code may close by accident.
PRIVATE_FD = 200
#: The highest fd that the supervisor can have, with room to spare.
LAST_FD = PRIVATE_FD + 64
#: Out of 1000, which stand for all memory of the sandbox: pressure takes the worker and what it
#: started before the supervisor, and there is room above for a copy of it.
WORKER_OOM_SCORE = 100
#: Seconds in which all processes must have ended, before the supervisor ends anyway.
END_SECONDS = 2.0

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, first: int, second: int = 0) -> None:
    """Call the system call of this name.

    Raises:
        OSError: the kernel refused.
    """
    arguments = [ctypes.c_ulong(value) for value in (first, second, 0, 0)]
    if _libc.prctl(option, *arguments) == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def harden(nofile: int) -> None:
    """Close this process to others of its uid, adopt orphans, and set the limits.

    Args:
        nofile: Open files of each process, if the engine does not set fewer.
    """
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = nofile if hard == resource.RLIM_INFINITY else min(nofile, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


def ignore_signals() -> None:
    """Ignore every signal that can be; a real fault still ends the process."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)


def restore_signals() -> None:
    """Give a forked child the signals of a fresh Python, but SIGINT, which it sets itself."""
    signal.set_wakeup_fd(-1)
    ignored = {signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)


def watch_children() -> int:
    """Return an fd that becomes readable when a child has ended."""
    reader, writer = (_private(fd) for fd in os.pipe())
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # The wake-up fd is written only for signals that Python handles.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def take_stream() -> tuple[int, int]:
    """Move the host's stream from fds 0 and 1 to private ones, and leave /dev/null there.

    Fd 2 stays: what the supervisor itself has to say when it fails goes there.
    """
    ours = _private(0, close=False), _private(1, close=False)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0, inheritable=False)
    os.dup2(null, 1, inheritable=False)
    os.close(null)
    for fd in ours:
        os.set_blocking(fd, False)
    return ours


def become_worker(kept: Iterable[int], stdout: int, stderr: int) -> None:
    """In the forked child: let go of all that is the supervisor's, and be traceable again.

    Args:
        kept: The other fds that stay open.
        stdout: What becomes fd 1.
        stderr: What becomes fd 2.
    """
    os.setpgid(0, 0)
    restore_signals()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    lowest = 3
    for fd in sorted(kept):
        os.closerange(lowest, fd)
        lowest = fd + 1
    os.closerange(lowest, LAST_FD)
    prctl(PR_SET_DUMPABLE, 1)
    offer(os.getpid(), WORKER_OOM_SCORE)


def offer(pid: int, score: int) -> None:
    """Say how soon a process is to be taken when memory runs out: 0 last, 1000 first."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(score))
    except OSError:
        # It has ended, or there is no /proc that can be written: the kernel's own choice holds.
        return


def interrupt(leader: int) -> None:
    """SIGINT to a process's group, so that what it runs in the foreground ends too."""
    try:
        os.killpg(leader, signal.SIGINT)
    except ProcessLookupError:
        # It left its own group; the pid is still its own until it is reaped.
        os.kill(leader, signal.SIGINT)


def kill_descendants(keep: frozenset[int] = frozenset()) -> bool:
    """SIGKILL all processes but this one, those that detached themselves too.

    Args:
        keep: Frozen processes that are left as they are.

    Returns:
        Whether there was none left to kill.
    """
    if os.getpid() == 1:
        # At once, so that nobody can start another one while we look.
        _kill(-1, signal.SIGSTOP if keep else signal.SIGKILL)
    left = [pid for pid in descendants() if pid not in keep]
    for pid in left:
        _kill(pid)
    return not left


def descendants() -> list[int]:
    """The processes that come from this one; orphans are among them, as it adopts them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent(entry), []).append(int(entry.name))
    found, waiting = [], [os.getpid()]
    while waiting:
        offspring = children.get(waiting.pop(), [])
        found += offspring
        waiting += offspring
    return found


class Reaped(NamedTuple):
    """What `reap` collected.

    Attributes:
        statuses: Exit status by pid; the negative number of the signal that ended it.
        none_left: Whether no child exists any more.
    """

    statuses: dict[int, int]
    none_left: bool


def reap() -> Reaped:
    """Collect all children that have ended, adopted ones too."""
    statuses: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return Reaped(statuses, none_left=True)
        if pid == 0:
            return Reaped(statuses, none_left=False)
        statuses[pid] = os.waitstatus_to_exitcode(status)


def signal_name(number: int) -> str:
    """`SIGSEGV` and the like; real-time signals have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end(status: int) -> NoReturn:
    """End the sandbox: all processes, then this one."""
    deadline = time.monotonic() + END_SECONDS
    while True:
        kill_descendants()
        if os.getpid() == 1 or reap().none_left or time.monotonic() > deadline:
            # With PID 1 the kernel ends its whole namespace.
            os._exit(status)
        time.sleep(0.002)


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        # Gone already, or of another uid and so none that our code could have started.
        return


def _parent(entry: Path) -> int:
    try:
        stat = (entry / "stat").read_bytes()
    except OSError:
        return 0
    # The name in parentheses may hold anything, parentheses too.
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def _private(fd: int, *, close: bool = True) -> int:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lowest = PRIVATE_FD if files == resource.RLIM_INFINITY else min(PRIVATE_FD, max(files - 16, 3))
    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    if close:
        os.close(fd)
    return copy
