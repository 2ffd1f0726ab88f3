"""The inner seccomp filter: judged as a program for both machines, and tried on this one."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys

import pytest

from sandbox_kernel.guest import seccomp
from sandbox_kernel.guest.seccomp import MACHINES

ALLOW, KILL = 0x7FFF0000, 0x80000000
HERE = os.uname().machine

needs_filter = pytest.mark.skipif(HERE not in MACHINES, reason=f"no filter for {HERE}")


def refused(code: int) -> int:
    """What a filter returns to make a call fail."""
    return 0x00050000 | code


def judged(machine: str, number: int, *args: int, audit: int | None = None) -> int:
    """What the kernel would do with this call: the filter, interpreted."""
    arch = MACHINES[machine].audit if audit is None else audit
    arguments = [*args, *[0] * (6 - len(args))]
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments)
    program = list(struct.iter_unpack("HBBI", seccomp.program(machine)))
    at, accumulator = 0, 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            return int(value)
        else:
            tests = {0x15: accumulator == value, 0x35: accumulator >= value,
                     0x45: bool(accumulator & value)}  # fmt: skip
            at += yes if tests[code] else no


def filtered(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that has the filter on."""
    prelude = (
        "import ctypes, os, sys\n"
        "from sandbox_kernel.guest import seccomp\n"
        "assert seccomp.install()\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
    )
    command = [sys.executable, "-c", prelude + code]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_named_call_is_refused(machine: str) -> None:
    answers = {name: judged(machine, n) for name, n in MACHINES[machine].refused.items()}

    assert answers == dict.fromkeys(MACHINES[machine].refused, refused(errno.EPERM))


@pytest.mark.parametrize("machine", MACHINES)
def test_everything_else_is_allowed(machine: str) -> None:
    table = MACHINES[machine]
    many = {number for number, _ in table.on_processes.values()}
    special = {*table.refused.values(), *many, table.socket, seccomp.CLONE3}

    answers = {number: judged(machine, number) for number in set(range(600)) - special}

    assert set(answers.values()) == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("pid", [0, 1, 2, 77])
def test_no_limit_or_priority_is_put_on_the_supervisor(machine: str, pid: int) -> None:
    table = MACHINES[machine]
    on_one = {
        name: judged(machine, number, *[0] * argument, pid)
        for name, (number, argument) in table.on_process.items()
    } | {
        name: judged(machine, number, one, pid)
        for name, (number, one) in table.on_processes.items()
    }

    answer = refused(errno.EPERM) if pid == seccomp.SUPERVISOR else ALLOW
    assert on_one == dict.fromkeys(on_one, answer)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_no_priority_is_put_on_many_processes_at_once(machine: str, which: int) -> None:
    for number, one in MACHINES[machine].on_processes.values():
        answer = judged(machine, number, which, 0)

        assert answer == (ALLOW if which == one else refused(errno.EPERM))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("family", range(46))
def test_sockets_are_of_three_families(machine: str, family: int) -> None:
    answer = judged(machine, MACHINES[machine].socket, family, 1, 0)

    assert answer == (ALLOW if family in {1, 2, 10} else refused(errno.EAFNOSUPPORT))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("flags", "answer"),
    [
        pytest.param(signal.SIGCHLD, ALLOW, id="fork"),
        pytest.param(0x3D0F00, ALLOW, id="thread"),
        pytest.param(0x4111, ALLOW, id="vfork"),
        *[
            pytest.param(flag | signal.SIGCHLD, refused(errno.EPERM), id=name)
            for name, flag in {
                "mount-namespace": 0x00020000, "cgroup-namespace": 0x02000000,
                "uts-namespace": 0x04000000, "ipc-namespace": 0x08000000,
                "user-namespace": 0x10000000, "pid-namespace": 0x20000000,
                "net-namespace": 0x40000000,
            }.items()
        ],
    ],
)  # fmt: skip
def test_clone_makes_no_namespace(machine: str, flags: int, answer: int) -> None:
    assert judged(machine, MACHINES[machine].clone, flags) == answer


@pytest.mark.parametrize("machine", MACHINES)
def test_clone3_asks_to_be_called_otherwise(machine: str) -> None:
    assert judged(machine, seccomp.CLONE3) == refused(errno.ENOSYS)


@pytest.mark.parametrize(("machine", "audit"), [("x86_64", 0x40000003), ("aarch64", 0x40000028)])
def test_call_of_the_32_bit_abi_kills(machine: str, audit: int) -> None:
    assert judged(machine, 0, audit=audit) == KILL


def test_x32_does_not_exist() -> None:
    assert judged("x86_64", 0x40000000 | 101) == refused(errno.ENOSYS)


def test_machine_that_is_not_known_gets_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    names = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*names[:4], "riscv64")))

    assert seccomp.install() is False


@needs_filter
def test_kernel_refuses_every_named_call() -> None:
    calls = MACHINES[HERE].refused

    process = filtered(
        f"for name, number in {calls}.items():\n"
        "    ctypes.set_errno(0)\n"
        "    result = libc.syscall(number, 0, 0, 0, 0, 0, 0)\n"
        "    print(name, result, ctypes.get_errno())"
    )

    assert process.stdout.split("\n")[:-1] == [f"{name} -1 {errno.EPERM}" for name in calls]


@needs_filter
def test_filter_is_on_and_privileges_are_final() -> None:
    process = filtered("print(open('/proc/self/status').read())")

    assert "NoNewPrivs:\t1" in process.stdout
    assert "Seccomp:\t2" in process.stdout


@pytest.mark.skipif(HERE != "x86_64", reason="the machine code is x86's")
def test_kernel_kills_a_call_of_the_foreign_abi() -> None:
    # mov eax, 20 (getpid of i386); int 0x80; ret
    process = filtered(
        "import mmap\n"
        "code = mmap.mmap(-1, 4096, prot=7)\n"
        "code.write(bytes.fromhex('b814000000cd80c3'))\n"
        "address = ctypes.addressof(ctypes.c_char.from_buffer(code))\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())"
    )

    assert process.returncode == -signal.SIGSYS
    assert process.stdout == ""


WORKS = {
    "subprocess": "import subprocess; assert subprocess.check_output(['echo', 'x']) == b'x\\n'",
    "shell": "assert os.system('true | true') == 0",
    "threads": (
        "import threading; t = threading.Thread(target=print, args=(1,)); t.start(); t.join()"
    ),
    "multiprocessing": (
        "import multiprocessing as m\n"
        "with m.get_context('fork').Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]"
    ),
    "spawned-process": (
        "import multiprocessing as m\n"
        "p = m.get_context('spawn').Process(target=abs, args=(1,)); p.start(); p.join()\n"
        "assert p.exitcode == 0"
    ),
    "semaphores": "import multiprocessing as m; s = m.Semaphore(1); assert s.acquire(timeout=1)",
    "shared-memory": (
        "from multiprocessing.shared_memory import SharedMemory as S\n"
        "s = S(create=True, size=64); s.buf[0] = 1; s.close(); s.unlink()"
    ),
    "asyncio": (
        "import asyncio\n"
        "async def f():\n"
        "    p = await asyncio.create_subprocess_exec('true')\n"
        "    return await p.wait()\n"
        "assert asyncio.run(f()) == 0"
    ),
    "loopback": (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "a = socket.create_connection(server.getsockname()); b, _ = server.accept()\n"
        "a.send(b'x'); assert b.recv(1) == b'x'"
    ),
    "names": "import socket; assert socket.getaddrinfo('127.0.0.1', 80)",
    "sqlite": (
        "import sqlite3, tempfile\n"
        "d = sqlite3.connect(tempfile.mktemp()); d.execute('pragma journal_mode=wal')\n"
        "d.execute('create table t (a)'); d.commit()"
    ),
    "terminal": (
        "import pty\n"
        "pid, fd = pty.fork()\n"
        "if pid == 0: os.execlp('echo', 'echo', 'x')\n"
        "assert os.read(fd, 9) == b'x\\r\\n'"
    ),
    "pexpect": "import pexpect; assert pexpect.run('echo x') == b'x\\r\\n'",
    "memory-map": "import mmap; mmap.mmap(-1, 4096, prot=7).write(b'x')",
    "signals": "import signal; signal.setitimer(signal.ITIMER_REAL, 0.01); signal.sigwait({14})"
    .replace("signal.setitimer", "signal.pthread_sigmask(0, {14}); signal.setitimer"),
}  # fmt: skip


@needs_filter
@pytest.mark.parametrize("name", WORKS)
def test_honest_code_works_as_before(name: str) -> None:
    process = filtered(WORKS[name])

    assert (process.returncode, process.stderr) == (0, "")
