"""The inner seccomp filter: system calls that no notebook needs, refused before user code runs.

It stands behind the engine's own filter and narrows the kernel's surface further.

Invariants: `program` is pure and the tables are all it knows; a machine that is not in them
gets no filter and an honest False.  Refused calls fail with EPERM, so that libraries fall back;
only code of a foreign ABI, which no filter could judge, is killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import NamedTuple

from sandbox_kernel.guest import process

# Calls that have the same number on every machine: those since Linux 5.1.
_COMMON = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442, "quotactl_fd": 443,
    "memfd_secret": 447,
}  # fmt: skip


class Machine(NamedTuple):
    """One architecture: its audit number, what is refused, and what is looked into."""

    audit: int
    refused: dict[str, int]
    socket: int
    clone: int
    x32: bool
    #: Calls on one process: number, and which argument names it.
    on_process: dict[str, tuple[int, int]]
    #: Calls on one process or many: number, and the first argument's value for one.
    on_processes: dict[str, tuple[int, int]]


#: By `uname -m`.
MACHINES: dict[str, Machine] = {
    "x86_64": Machine(
        audit=0xC000003E,
        refused={
            **_COMMON,
            "add_key": 248, "request_key": 249, "keyctl": 250, "userfaultfd": 323, "bpf": 321,
            "perf_event_open": 298, "ptrace": 101, "process_vm_readv": 310,
            "process_vm_writev": 311, "kcmp": 312, "name_to_handle_at": 303,
            "open_by_handle_at": 304, "fanotify_init": 300, "fanotify_mark": 301,
            "vmsplice": 278, "mq_open": 240, "mq_unlink": 241, "mq_timedsend": 242,
            "mq_timedreceive": 243, "mq_notify": 244, "mq_getsetattr": 245, "shmget": 29,
            "shmat": 30, "shmctl": 31, "shmdt": 67, "semget": 64, "semop": 65, "semctl": 66,
            "semtimedop": 220, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71,
            "io_setup": 206, "io_destroy": 207, "io_getevents": 208, "io_submit": 209,
            "io_cancel": 210, "io_pgetevents": 333, "modify_ldt": 154, "unshare": 272,
            "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "init_module": 175,
            "delete_module": 176, "finit_module": 313, "kexec_load": 246,
            "kexec_file_load": 320, "syslog": 103, "personality": 135, "quotactl": 179,
            "acct": 163, "swapon": 167, "swapoff": 168, "reboot": 169, "iopl": 172,
            "ioperm": 173, "lookup_dcookie": 212,
        },
        socket=41,
        clone=56,
        x32=True,
        on_process={
            "prlimit64": (302, 0), "sched_setparam": (142, 0), "sched_setscheduler": (144, 0),
            "sched_setaffinity": (203, 0), "sched_setattr": (314, 0),
        },
        on_processes={"setpriority": (141, 0), "ioprio_set": (251, 1)},
    ),
    "aarch64": Machine(
        audit=0xC00000B7,
        refused={
            **_COMMON,
            "add_key": 217, "request_key": 218, "keyctl": 219, "userfaultfd": 282, "bpf": 280,
            "perf_event_open": 241, "ptrace": 117, "process_vm_readv": 270,
            "process_vm_writev": 271, "kcmp": 272, "name_to_handle_at": 264,
            "open_by_handle_at": 265, "fanotify_init": 262, "fanotify_mark": 263,
            "vmsplice": 75, "mq_open": 180, "mq_unlink": 181, "mq_timedsend": 182,
            "mq_timedreceive": 183, "mq_notify": 184, "mq_getsetattr": 185, "shmget": 194,
            "shmat": 196, "shmctl": 195, "shmdt": 197, "semget": 190, "semop": 193,
            "semctl": 191, "semtimedop": 192, "msgget": 186, "msgsnd": 189, "msgrcv": 188,
            "msgctl": 187, "io_setup": 0, "io_destroy": 1, "io_getevents": 4, "io_submit": 2,
            "io_cancel": 3, "io_pgetevents": 292, "unshare": 97, "setns": 268, "mount": 40,
            "umount2": 39, "pivot_root": 41, "init_module": 105, "delete_module": 106,
            "finit_module": 273, "kexec_load": 104, "kexec_file_load": 294, "syslog": 116,
            "personality": 92, "quotactl": 60, "acct": 89, "swapon": 224, "swapoff": 225,
            "reboot": 142, "lookup_dcookie": 18,
        },
        socket=198,
        clone=220,
        x32=False,
        on_process={
            "prlimit64": (261, 0), "sched_setparam": (118, 0), "sched_setscheduler": (119, 0),
            "sched_setaffinity": (122, 0), "sched_setattr": (274, 0),
        },
        on_processes={"setpriority": (140, 0), "ioprio_set": (30, 1)},
    ),
}  # fmt: skip

#: AF_UNIX, AF_INET, AF_INET6: what `socket()` may be asked for.
FAMILIES = (1, 2, 10)
#: Flags of `clone`: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
NAMESPACES = 0x7E020000
#: Its process id, where it can be protected: limits and priorities of a process are open to all of
#: its user, and would starve it of what it needs to see that the host is gone.
SUPERVISOR = 1
#: Its flags lie in memory, where no filter can look; libcs fall back to `clone` on ENOSYS.
CLONE3 = 435

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_MODE_FILTER = 2

# Classic BPF: opcodes, what a filter returns, and offsets in `struct seccomp_data`.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARG0_LOW = 0, 4, 16


def program(machine: str) -> bytes:
    """The filter of one of `MACHINES`, as an array of `struct sock_filter`."""
    table = MACHINES[machine]
    code = [
        _op(_LOAD, _ARCH),
        _op(_EQUAL, table.audit, yes=1),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
    ]
    if table.x32:
        code += [_op(_AT_LEAST, 0x40000000, no=1), _op(_RETURN, _ERRNO | errno.ENOSYS)]
    code += [_op(_EQUAL, CLONE3, no=1), _op(_RETURN, _ERRNO | errno.ENOSYS)]
    for number in sorted(table.refused.values()):
        code += [_op(_EQUAL, number, no=1), _op(_RETURN, _ERRNO | errno.EPERM)]
    for number, argument in table.on_process.values():
        code += [
            _op(_EQUAL, number, no=4),
            _op(_LOAD, _ARG0_LOW + 8 * argument),
            _op(_EQUAL, SUPERVISOR, no=1),
            _op(_RETURN, _ERRNO | errno.EPERM),
            _op(_RETURN, _ALLOW),
        ]
    for number, one in table.on_processes.values():
        code += [
            _op(_EQUAL, number, no=6),
            _op(_LOAD, _ARG0_LOW),
            _op(_EQUAL, one, no=2),
            _op(_LOAD, _ARG0_LOW + 8),
            _op(_EQUAL, SUPERVISOR, no=1),
            _op(_RETURN, _ERRNO | errno.EPERM),
            _op(_RETURN, _ALLOW),
        ]
    code += [
        _op(_EQUAL, table.clone, no=4),
        _op(_LOAD, _ARG0_LOW),
        _op(_ANY_BIT, NAMESPACES, no=1),
        _op(_RETURN, _ERRNO | errno.EPERM),
        _op(_RETURN, _ALLOW),
        _op(_EQUAL, table.socket, yes=1),
        _op(_RETURN, _ALLOW),
        _op(_LOAD, _ARG0_LOW),
    ]
    for family in FAMILIES:
        code += [_op(_EQUAL, family, no=1), _op(_RETURN, _ALLOW)]
    code.append(_op(_RETURN, _ERRNO | errno.EAFNOSUPPORT))
    return b"".join(code)


def install() -> bool:
    """Put the filter on this process and all that it starts; False where there is none."""
    machine = os.uname().machine
    if machine not in MACHINES or struct.calcsize("P") != 8:
        return False
    code = program(machine)
    buffer = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: a count, padding, a pointer.
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code) // 8, _address(buffer)))
    try:
        process.prctl(_PR_SET_NO_NEW_PRIVS, 1)
        process.prctl(_PR_SET_SECCOMP, _MODE_FILTER, _address(header))
    except OSError:
        # A kernel without filters; the host reads it in the posture.
        return False
    return True


def _op(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def _address(buffer: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(buffer)
