"""Fork a process that is a child of this process's parent, and no child of its own.

`os.fork` twice does the same for twice the time.  Invariant: as after `os.fork`, Python's own
hooks have run on both sides; the C library's have not, which matter only to processes with
several threads, and those are not forked here.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal

_CLONE_PARENT = 0x00008000
_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000
#: Where the C library keeps the number of the running thread; the child has another.
_PR_GET_TID_ADDRESS = 40
_CLONE = {"x86_64": 56, "aarch64": 220}

# Unlike `CDLL` it keeps Python's lock, so that nothing of Python runs between the hooks.
_libc = ctypes.PyDLL(None, use_errno=True)


def fork() -> int:
    """Return 0 in the new process, and its id in this one.

    Raises:
        OSError: The kernel, or this processor's table, does not have what this needs, or there
            is no room for a process.
    """
    number = _CLONE.get(platform.machine())
    address = ctypes.c_void_p()
    if number is None or _libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0):
        raise OSError(f"cannot fork a sibling on {platform.machine()}")
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    # x86_64 and aarch64 differ in the order of the last two.
    last = (address.value, 0) if number == _CLONE["x86_64"] else (0, address.value)
    arguments = [ctypes.c_long(value or 0) for value in (number, flags, 0, 0, *last)]
    _libc.syscall.restype = ctypes.c_long
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(_libc.syscall(*arguments))
    problem = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(problem, os.strerror(problem))
    return pid
