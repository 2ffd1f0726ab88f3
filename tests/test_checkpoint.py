"""Copies of the worker that bring the variables back: real processes, most of them in a box."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from sandbox_kernel import wire
from tests.guests import DOCKER, MIB, Guest, started, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

#: The adapter's box with its default memory, and no threads of a library's.
BOX = (
    *("512m" if option == "256m" else option for option in DOCKER),
    *("--cpus", "1", "-e", "OPENBLAS_NUM_THREADS=1", "-e", "MPLCONFIGDIR=/tmp"),
)
#: The seconds after which a cell that does not end is killed, as at a deadline.
SECONDS = 0.3


@contextmanager
def guest_in(box: tuple[str, ...] = (), **settings: int) -> Iterator[Guest]:
    wanted = {"checkpoint": True, "memory_bytes": 512 * MIB, **settings}
    with started(box, scripted=False, **wanted) as guest:
        assert isinstance(guest.next(), wire.Hello)
        yield guest


@pytest.fixture
def guest() -> Iterator[Guest]:
    """An ordinary process: for what is the same in a box."""
    with guest_in() as guest:
        yield guest


@pytest.fixture
def boxed(engine: docker.DockerClient, image: str) -> Iterator[Guest]:
    """PID 1 of a box."""
    with guest_in((*BOX, image)) as guest:
        yield guest


def run(guest: Guest, code: str, *, kill: bool = False) -> wire.Event:
    """Run a cell, kill it if it is said not to end; return its reply or verdict."""
    cell = guest.start(code)
    if kill:
        time.sleep(SECONDS)
        guest.send(wire.KillWorker(cell))
    return guest.finish()[-1]


def shown(guest: Guest, expression: str) -> str:
    return text(guest.run(f"print({expression}, end='')"))


def copies(guest: Guest) -> wire.Checkpoints:
    """What the guest says of its copies once it is at rest."""
    guest.until_quiet(0.3)
    return guest.checkpoints


def restored(event: wire.Event) -> tuple[str, int]:
    """What became of the variables, and the cell after which they were so."""
    assert isinstance(event, wire.Verdict), event
    return event.state, event.after


# --- what comes back --------------------------------------------------------------------------


LOAD = """
import asyncio, ctypes, os, random, signal, sys, threading, time
import numpy as np, pandas as pd, matplotlib.pyplot as plt
big = np.ones(25_000_000)
frame = pd.DataFrame({'n': range(1000)})
figure = plt.figure()
ticks = 0
async def tick():
    global ticks
    while True:
        await asyncio.sleep(0.01)
        ticks += 1
task = asyncio.ensure_future(tick())
expected = random.Random(7).random()
x = 'kept'
"""

# Every one of them changes first what must be as before afterwards.
SPOIL = "x = 'spoilt'; big[:1000] = 0; frame['n'] = 0; task.cancel(); random.random()\n"

ENDLESS = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"

FATAL = {
    "c-loop": ("max(iter(int, 1))", "killed"),
    "swallowed-interrupts": (ENDLESS, "killed"),
    "deaf": ("signal.signal(2, signal.SIG_IGN)\nwhile True: time.sleep(9)", "killed"),
    "fork-bomb": ("while True:\n    try: os.fork()\n    except OSError: pass", "killed"),
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", "killed"),
    "sigkill": ("os.kill(os.getpid(), 9)", "crashed"),
    "sigsegv": ("ctypes.string_at(0)", "crashed"),
    "sigterm": ("os.kill(os.getpid(), 15)", "crashed"),
    "abort": ("os.abort()", "crashed"),
    "alarm": ("signal.setitimer(signal.ITIMER_REAL, .01); time.sleep(9)", "crashed"),
    "whole-group": ("os.killpg(0, 9)", "crashed"),
    "c-recursion": (
        "sys.setrecursionlimit(10**9)\ndef f(n): return sorted([0], key=f)\nf(0)",
        "crashed",
    ),
    "exit-0": ("os._exit(0)", "exited"),
    "exit-3": ("os._exit(3)", "exited"),
    "exec": ("os.execv('/bin/true', ['true'])", "exited"),
    "exit-in-thread": (
        "threading.Thread(target=os._exit, args=(5,)).start(); time.sleep(9)",
        "exited",
    ),
    "stdout-closed": ("os.close(1); os.close(2); sys.stdout = None; os._exit(1)", "exited"),
    "all-files-closed": ("os.closerange(0, 4096); time.sleep(9)", "crashed"),
    "daemon": (
        "if os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0:\n        while True: pass\n    os._exit(0)\nos._exit(1)",
        "exited",
    ),
    "out-of-memory": ("l = []\nwhile True: l.append(bytearray(1 << 20))", "oom"),
    "one-huge-array": ("np.ones(10**9)", "oom"),
    "forged-frames": (
        "import gc\nlink, = [o for o in gc.get_objects() if type(o).__name__ == 'Link']\n"
        "link._sock.sendall(b'nonsense' * 5000); time.sleep(9)",
        "crashed",
    ),
}


def test_variables_come_back_after_every_fatal_cell(boxed: Guest) -> None:
    assert run(boxed, LOAD) == wire.ExecuteReply(1, "ok", 0, 0)
    run(boxed, "random.seed(7)")

    wrong = {}
    for name, (code, kind) in FATAL.items():
        event = run(boxed, SPOIL + code, kill=kind == "killed")
        before = boxed.connection.cell - 1
        state = shown(
            boxed,
            "x, big.sum() == 25e6, frame['n'].sum(), task.done(), ticks > 0, "
            "random.random() == expected, type(figure).__name__",
        )
        run(boxed, "random.seed(7)")
        told = (type(event).__name__, getattr(event, "kind", ""), getattr(event, "state", ""))
        if told != ("Verdict", kind, "restored") or event.after != before:
            wrong[name] = event
        elif state != "kept True 499500 False True True Figure":
            wrong[name] = state
    later = shown(boxed, "ticks"), shown(boxed, "(time.sleep(.1), ticks)[1]")

    assert wrong == {}
    # The task goes on between the cells.
    assert int(later[0]) > 0
    processes = shown(boxed, "sorted(p for p in os.listdir('/proc') if p.isdigit())")
    # The supervisor, this worker, the copy to fall back on, and the one to go back to.
    assert len(eval(processes)) <= 4


def test_answer_after_a_kill_is_quick(boxed: Guest) -> None:
    run(boxed, LOAD)
    took = []
    for _ in range(5):
        cell = boxed.start("max(iter(int, 1))")
        time.sleep(0.1)
        begun = time.monotonic()
        boxed.send(wire.KillWorker(cell))
        boxed.finish()
        took.append(time.monotonic() - begun)

    assert sorted(took)[2] < 0.1, took


def test_in_and_out_are_as_before(guest: Guest) -> None:
    guest.run("21 * 2")
    guest.run("import os; os._exit(1)")

    assert shown(guest, "In[1], Out[1], _") == "21 * 2 42 42"
    assert shown(guest, "In[3].startswith('print'), len(In)") == "True 5"


def test_first_cell_may_be_fatal_too(guest: Guest) -> None:
    assert restored(run(guest, "import os; os._exit(1)")) == ("restored", 0)
    assert shown(guest, "1 + 1") == "2"


def test_worker_that_dies_between_cells_comes_back(guest: Guest) -> None:
    guest.run("import asyncio, os, signal\nx = 1\npid = os.getpid()")
    guest.until_quiet(0.2)
    pid = int(shown(guest, "pid"))
    guest.until_quiet(0.2)
    os.kill(pid, signal.SIGKILL)

    verdict = guest.until(wire.Verdict)

    assert restored(verdict) == ("restored", 2)
    assert verdict.cell == 0
    assert shown(guest, "x") == "1"


def test_what_ends_every_copy_between_cells_is_undone(guest: Guest) -> None:
    guest.run("import asyncio, os\nx = 1")
    guest.run(
        "x = 2\nasync def die():\n    await asyncio.sleep(.2)\n    os._exit(1)\n"
        "task = asyncio.ensure_future(die())"
    )

    verdicts = [event for event in guest.until_quiet(1) if isinstance(event, wire.Verdict)]

    assert [restored(verdict) for verdict in verdicts] == [("restored", 2), ("restored", 1)]
    assert shown(guest, "x") == "1"


def test_what_was_printed_last_is_not_lost(guest: Guest) -> None:
    guest.run("print('before')")
    events = guest.run("import os; print('last', end=''); os._exit(1)")

    assert text(events) == "last"
    assert text(guest.run("print('after')")) == "after\n"


def test_loop_of_signals_goes_on(guest: Guest) -> None:
    guest.run(
        "import asyncio, os, signal\ngot = []\nasync def handle():\n"
        "    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, got.append, 1)\n"
        "await handle()"
    )
    guest.run("os._exit(1)")
    guest.run("os.kill(os.getpid(), signal.SIGUSR1); await asyncio.sleep(.05)")

    assert shown(guest, "got") == "[1]"


def test_without_checkpoints_variables_are_lost() -> None:
    with guest_in(checkpoint=False) as guest:
        guest.run("x = 1")

        assert restored(run(guest, "import os; os._exit(1)")) == ("lost", 0)
        assert shown(guest, "'x' in globals()") == "False"


# --- what user code sees of it ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        pytest.param("try: os.wait()\nexcept ChildProcessError: print(1)", "1\n", id="children"),
        pytest.param("print(os.getpgrp() == os.getpid())", "True\n", id="group"),
        pytest.param("print(len(os.listdir('/proc/self/task')))", "1\n", id="threads"),
        pytest.param("print(os.getpid() == pid)", "True\n", id="pid"),
        pytest.param(
            "fds = sorted(map(int, os.listdir('/proc/self/fd')))\n"
            "print([fd for fd in fds if 2 < fd < 900 and fd not in known])",
            "[]\n",
            id="files",
        ),
    ],
)
def test_user_code_does_not_meet_copies(guest: Guest, code: str, seen: str) -> None:
    guest.run("import os\npid = os.getpid()\nknown = list(map(int, os.listdir('/proc/self/fd')))")
    guest.run("")

    assert text(guest.run(code)) == seen


def test_random_numbers_go_on_as_without_copies(guest: Guest) -> None:
    guest.run("import random; random.seed(3)")

    assert shown(guest, "random.random() == random.Random(3).random()") == "True"


def test_process_with_threads_is_not_copied(guest: Guest) -> None:
    guest.run("import threading, time, os\nstop = threading.Event()")
    guest.run("threading.Thread(target=stop.wait).start()")
    with_thread = copies(guest)
    guest.run("stop.set(); time.sleep(.1)")

    assert with_thread == wire.Checkpoints(["0", "1"], "threads")
    assert copies(guest).skipped == ""


def test_process_without_files_is_not_copied(guest: Guest) -> None:
    guest.run("import os\nfds = []\ntry:\n    while True: fds.append(os.dup(0))\n"
              "except OSError: pass")  # fmt: skip
    full = copies(guest)
    guest.run("for fd in fds: os.close(fd)")

    assert full.skipped == "resources"
    assert copies(guest).skipped == ""


def test_large_process_is_not_copied() -> None:
    with guest_in(memory_bytes=200 * MIB) as guest:
        guest.run("x = bytearray(160 << 20)")
        large = copies(guest)
        guest.run("del x")

        assert large == wire.Checkpoints(["0"], "memory")
        assert copies(guest).skipped == ""


def test_silent_cells_are_not_counted(guest: Guest) -> None:
    guest.run("x = 1")
    kept = copies(guest)
    guest.send(wire.Execute(2, "y = 2", True, False, False, 2))

    events = [*guest.finish(), *guest.until_quiet(0.2)]

    assert kept.cells == ["0", "1"]
    assert events == [wire.ExecuteReply(2, "ok", 0, 0)]


# --- memory -----------------------------------------------------------------------------------


def test_honest_cell_does_not_fail_because_of_its_copy(boxed: Guest) -> None:
    run(boxed, "import numpy as np\nbig = np.ones(25_000_000)")

    # 200 MiB are changed in place, and 230 more fit beside them, but not beside the copy's.
    ends = [
        run(boxed, "big += 1\nmore = np.ones(230 * 2**17)\nmore += 1\ndel more") for _ in range(12)
    ]

    assert {end[1:] for end in ends} == {("ok", 0, 0)}
    assert shown(boxed, "big.sum()") == str(13 * 25e6)


def test_small_process_may_fill_all_memory_too(boxed: Guest) -> None:
    run(boxed, "import numpy as np\nsmall = np.ones(7_500_000)")

    ends = [run(boxed, "small += 1\nmore = np.ones(350 * 2**17)\ndel more") for _ in range(10)]

    assert {type(end) for end in ends} == {wire.ExecuteReply}


def test_cell_that_fills_all_memory_is_undone(boxed: Guest) -> None:
    run(boxed, "import numpy as np\nbig = np.ones(25_000_000)")
    ends = []
    for _ in range(12):
        ends.append(
            restored(run(boxed, "big[0] = 5\nl = []\nwhile True: l.append(np.ones(2**17))"))
        )
        assert shown(boxed, "big.sum()") == "25000000.0"

    assert {state for state, _ in ends} == {"restored"}


def test_full_tmpfs_does_not_cost_the_copy(boxed: Guest) -> None:
    run(boxed, "import numpy as np\nbig = np.ones(25_000_000)")

    end = run(
        boxed,
        "open('/tmp/f', 'wb').write(bytes(100 << 20))\nl = []\n"
        "while True: l.append(np.ones(2**17))",
    )

    assert restored(end) == ("restored", 1)


# --- going back -------------------------------------------------------------------------------


def rewind(guest: Guest, cell: int) -> wire.Rewound:
    guest.send(wire.Rewind(7, cell))
    return guest.until(wire.Rewound)


@pytest.mark.parametrize("back", [1, 2, 3])
def test_rewind_goes_back_any_kept_number_of_cells(back: int) -> None:
    with guest_in(checkpoints=3) as guest:
        for number in range(1, 6):
            guest.run(f"x = {number}")
        assert copies(guest).cells == ["2", "3", "4", "5"]

        answer = rewind(guest, 5 - back)

        assert answer == wire.Rewound(7, "restored", 5 - back)
        assert shown(guest, "x") == str(5 - back)


def test_rewind_to_what_is_not_kept_does_nothing(guest: Guest) -> None:
    for number in range(1, 5):
        guest.run(f"x = {number}")

    assert rewind(guest, 1) == wire.Rewound(7, "kept", 0)
    assert shown(guest, "x") == "4"


def test_cell_sent_right_after_a_rewind_waits_for_it(guest: Guest) -> None:
    guest.run("x = 1")
    guest.run("x = 2")
    copies(guest)
    guest.send(wire.Rewind(7, 1))

    assert shown(guest, "x") == "1"


# --- hostile ----------------------------------------------------------------------------------

DOCK = """
import gc, os, socket, time
dock, = [o for o in gc.get_objects() if type(o).__name__ == 'Dock']
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("dock._sock.send(b'copy 1')", id="copy-without-socket"),
        pytest.param("dock._sock.send(b'nonsense')", id="nonsense"),
        pytest.param("dock._sock.send(b'copy 1' * 100)", id="long"),
        pytest.param("dock._sock.send(b'memory 99')", id="cell-to-come"),
        pytest.param(
            "a, b = socket.socketpair()\n"
            "socket.send_fds(dock._sock, [b'copy 1'], [a.fileno(), b.fileno()])",
            id="worker-itself",
        ),
        pytest.param(
            "if os.fork() == 0:\n    socket.send_fds(dock._sock, [b'copy 1'], [0, 0])\n"
            "    time.sleep(9)\ntime.sleep(9)",
            id="no-sockets",
        ),
        pytest.param(
            "a, b = socket.socketpair(); socket.send_fds(dock._sock, [b'memory 1'], [a.fileno()])",
            id="reason-with-socket",
        ),
    ],
)
def test_worker_that_lies_about_copies_is_killed(guest: Guest, code: str) -> None:
    guest.run("x = 1")

    end = run(guest, f"{DOCK}\n{code}\ntime.sleep(9)")

    assert isinstance(end, wire.Verdict)
    assert (end.kind, end.detail) == ("crashed", "broke the protocol")
    assert shown(guest, "x") == "1"


FORGED = """
a, b = socket.socketpair(); c, d = socket.socketpair()
if os.fork() == 0:
    socket.send_fds(dock._sock, [b'copy 1'], [a.fileno(), c.fileno()])
    while True: open('/tmp/alive', 'a').write('x')
time.sleep(.3)
size = os.path.getsize('/tmp/alive') if os.path.exists('/tmp/alive') else 0
time.sleep(.3)
print((os.path.getsize('/tmp/alive') if os.path.exists('/tmp/alive') else 0) - size)
"""


def test_who_says_to_be_a_copy_is_frozen(boxed: Guest) -> None:
    boxed.run("x = 1")

    assert text(boxed.run(DOCK + FORGED)) == "0\n"


def test_copy_that_does_not_answer_is_passed_over(boxed: Guest) -> None:
    boxed.run("x = 1")

    end = run(boxed, DOCK + FORGED + "os._exit(1)")

    assert restored(end) == ("restored", 1)
    assert shown(boxed, "x") == "1"


def test_without_its_dock_a_worker_has_no_more_copies(guest: Guest) -> None:
    guest.run("x = 1")
    guest.run(f"{DOCK}\ndock._sock.close()")
    guest.run("x = 3")

    assert restored(run(guest, "os._exit(1)")) == ("restored", 1)
