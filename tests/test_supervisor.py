"""The supervisor as a real process: what it tells, survives, and ends.

Most tests run twice: as an ordinary process, where it must find what it kills, and as PID 1 of
the engine's box, where signals from inside do not reach it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandbox_kernel import wire
from sandbox_kernel.guest import streams
from tests.guests import DOCKER, MIB, Guest, started, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    Start = Callable[..., AbstractContextManager[Guest]]

IMAGES = ("sandbox-kernel/python", "base-test:bookworm")

FLOOD = "while True: os.write(1, b'x' * 4096)"
DEAF = "signal.signal(2, signal.SIG_IGN)\nwhile True: time.sleep(9)"


def docker_box() -> tuple[str, ...]:
    """The command that runs a box, or a skip that says what is missing."""
    if shutil.which("docker") is None:
        pytest.skip("no `docker` command")
    for image in IMAGES:
        command = ["docker", "image", "inspect", image]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return (*DOCKER, image)
    pytest.skip(f"no engine, or none of its images is {' or '.join(IMAGES)}")


@contextmanager
def greeted(box: tuple[str, ...], **settings: int | float | bool | str) -> Iterator[Guest]:
    with started(box, **settings) as guest:
        assert isinstance(guest.next(), wire.Hello)
        yield guest


@pytest.fixture(params=["process", "box"])
def start(request: pytest.FixtureRequest) -> Start:
    """Starts a guest that has said hello, in one of both ways."""
    return partial(greeted, docker_box() if request.param == "box" else ())


@pytest.fixture
def guest(start: Start) -> Iterator[Guest]:
    with start() as guest:
        yield guest


@pytest.fixture
def local() -> Iterator[Guest]:
    """An ordinary process: for what is the same in a box."""
    with greeted(()) as guest:
        yield guest


@pytest.fixture
def boxed() -> Iterator[Guest]:
    """PID 1 of a box: for what needs the engine."""
    with greeted(docker_box()) as guest:
        yield guest


OK = wire.ExecuteReply(1, "ok", 0, 0)


# --- posture --------------------------------------------------------------------------------


def test_posture_of_the_box_is_told() -> None:
    with started(docker_box()) as guest:
        hello = guest.next()

    assert isinstance(hello, wire.Hello)
    assert (hello.version, hello.pid, hello.uid, hello.gid) == (wire.VERSION, 1, 65534, 65534)
    assert (hello.no_new_privs, hello.seccomp, hello.seccomp_inner) == (1, 2, True)
    assert hello.cap_bnd.strip("0") == ""
    assert hello.interfaces == ["lo"]
    assert not hello.root_writable
    assert (hello.memory_bytes, hello.pids_limit, hello.nofile) == (256 * MIB, 100, 1024)
    assert {"python3", "sh"} <= set(hello.languages)
    assert "PATH" in hello.env_names
    assert hello.protected


def test_posture_without_a_box_is_told() -> None:
    with started() as guest:
        hello = guest.next()

    assert isinstance(hello, wire.Hello)
    assert hello.uid == os.getuid()
    assert hello.kernel == os.uname().release
    assert not hello.protected


def test_worker_is_apart_from_its_supervisor(guest: Guest) -> None:
    events = guest.run(
        # The listing itself takes one more.
        "ours = {'0', '1', '2', str(sock.fileno()), str(outlet.bell)}\n"
        "extra = set(os.listdir('/proc/self/fd')) - ours\n"
        "score = open('/proc/self/oom_score_adj').read().strip()\n"
        "os.write(1, repr((len(extra), os.getpgrp() == os.getpid(), score)).encode())"
    )

    assert text(events) == "(1, True, '100')"


@pytest.mark.parametrize("path", ["mem", "environ", "maps", "fd/0", "fd/1", "fd/200"])
def test_user_code_cannot_open_the_supervisor(boxed: Guest, path: str) -> None:
    events = boxed.run(f"open('/proc/1/{path}', 'rb')")

    assert [e.ename for e in events if isinstance(e, wire.Error)] == ["PermissionError"]


def test_user_code_cannot_signal_the_supervisor(boxed: Guest) -> None:
    boxed.run("for number in signal.valid_signals(): os.kill(1, number)")

    assert boxed.run("") == [wire.ExecuteReply(2, "ok", 0, 0)]


# --- requests -------------------------------------------------------------------------------


def test_ping_is_answered(guest: Guest) -> None:
    guest.send(wire.Ping(7))

    assert guest.next() == wire.Pong(7)


def test_request_before_the_worker_is_ready_waits_for_it() -> None:
    with greeted((), start_seconds=0.5) as guest:
        guest.send(wire.Complete(1, "x", 1))
        events = [guest.next(), *guest.run("os.write(1, b'hi')")]

    assert events == [
        wire.CompleteReply(1, ["x!"], [""], 0, 1),
        wire.Stream(1, "stdout", "hi"),
        OK,
    ]


def test_large_code_arrives_whole(local: Guest) -> None:
    events = local.run(f"text = '{'x' * 5 * MIB}'\nos.write(1, b'%d' % len(text))")

    assert text(events) == str(5 * MIB)


def test_line_for_the_worker_is_handed_on(local: Guest) -> None:
    local.start("say(wire.InputRequest(cell, 'name: ', False)); os.write(1, hear().value.encode())")
    request = local.next()
    local.send(wire.InputReply(1, "Ada"))

    assert request == wire.InputRequest(1, "name: ", False)
    assert text(local.finish()) == "Ada"


def test_answer_that_nobody_asked_for_is_dropped(local: Guest) -> None:
    events = local.run("say(wire.CompleteReply(99, ['forged'], [''], 0, 0))")

    assert events == [OK]


def test_use_of_the_box_is_told(boxed: Guest) -> None:
    boxed.run("waste = b'x' * 50_000_000\nfor _ in range(10 ** 7): pass")
    boxed.send(wire.StatsRequest(3))

    stats = boxed.next()

    assert isinstance(stats, wire.Stats)
    assert stats.request == 3
    assert 50_000_000 < stats.memory_bytes < stats.memory_limit == 256 * MIB
    assert stats.pids == 2
    assert stats.cpu_ms > 100
    assert stats.uptime_ms > 100


# --- output ---------------------------------------------------------------------------------


def test_output_of_subprocesses_comes_before_the_reply(guest: Guest) -> None:
    events = guest.run("os.system('echo out; echo err >&2')")

    assert text(events) == "out\n"
    assert text(events, "stderr") == "err\n"
    assert events[-1] == OK


def test_text_and_displays_keep_their_order(local: Guest) -> None:
    shown = wire.DisplayData(1, ["text/plain"], ["d"], [], "")

    events = local.run(
        "for text in 'ab':\n"
        "    say(wire.Stream(cell, 'stdout', text))\n"
        "    say(wire.DisplayData(cell, ['text/plain'], ['d'], [], ''))"
    )

    assert events == [
        wire.Stream(1, "stdout", "a"), shown, wire.Stream(1, "stdout", "b"), shown, OK,
    ]  # fmt: skip


def test_printed_text_and_displays_keep_their_order(local: Guest) -> None:
    events = local.run(
        "for i in range(300):\n"
        "    put(f'{i}\\n', 'stderr' if i % 3 else 'stdout')\n"
        "    if i % 2: say(wire.DisplayData(cell, ['text/plain'], [f'{i}\\n'], [], ''))"
    )

    shown = [e.values[0] if isinstance(e, wire.DisplayData) else e.text for e in events[:-1]]
    assert "".join(shown) == "".join(f"{i}\n" * (1 + i % 2) for i in range(300))


def test_text_shows_before_its_line_ends(local: Guest) -> None:
    local.start(f"put('Loading'); put(' ')\n{DEAF}")

    assert local.next(seconds=2) == wire.Stream(1, "stdout", "Loading ")


def test_text_of_a_worker_that_cannot_ring_shows_while_its_cell_runs(local: Guest) -> None:
    local.start(f"os.close(outlet.bell)\ntry: put('silent')\nexcept OSError: pass\n{DEAF}")

    assert local.next(seconds=2) == wire.Stream(1, "stdout", "silent")


def test_text_comes_before_what_is_written_to_the_pipes_behind_it(local: Guest) -> None:
    outputs = [text(local.run("put('a'); os.system('echo b')")) for _ in range(10)]

    assert outputs == ["ab\n"] * 10


def test_text_comes_behind_what_the_pipes_hold_already(local: Guest) -> None:
    outputs = []
    for _ in range(10):
        time.sleep(0.03)
        outputs.append(text(local.run("os.write(1, b'a'); put('b', behind=True)")))

    assert outputs == ["ab"] * 10


def test_what_a_subprocess_wrote_comes_before_text_behind_it(local: Guest) -> None:
    local.start("import subprocess; subprocess.run(['echo', 'a']); time.sleep(0.1); put('b')")

    assert text(local.finish()) == "a\nb"


def test_character_cut_in_two_arrives_whole(local: Guest) -> None:
    events = local.run("os.write(1, b'\\xe2\\x82'); time.sleep(0.1); os.write(1, b'\\xac')")

    assert text(events) == "€"


def test_half_a_character_stays_in_its_cell(local: Guest) -> None:
    first, second = local.run("os.write(1, b'a\\xe2\\x82')"), local.run("os.write(1, b'b')")

    assert text(first) == "a\ufffd"
    assert text(second) == "b"


def test_output_of_a_hung_worker_is_not_held_back(local: Guest) -> None:
    local.start(
        "os.write(1, b'one'); os.write(2, b'two'); time.sleep(0.1); os.write(1, b'3')\n" + DEAF
    )

    assert {local.next(), local.next(), local.next()} >= {wire.Stream(1, "stdout", "3")}


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("os.write(1, b'%d\\n' % i)", id="bytes"),
        pytest.param("say(wire.Stream(cell, 'stdout', '%d\\n' % i))", id="events"),
        pytest.param("put('%d\\n' % i)", id="text"),
    ],
)
def test_many_lines_become_few_events(local: Guest, line: str) -> None:
    events = local.run(f"for i in range(50_000): {line}")

    assert text(events) == "".join(f"{i}\n" for i in range(50_000))
    assert len(events) < 500


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("os.write(1, b'x' * 1000)", id="bytes"),
        pytest.param("put('x' * 1000)", id="text"),
    ],
)
def test_output_over_the_cap_is_counted_and_dropped(start: Start, line: str) -> None:
    with start(output_bytes=100_000) as guest:
        first = guest.run(f"for _ in range(300): {line}\nraise ValueError('told')")
        second = guest.run("os.write(1, b'y')")

    assert text(first) == "x" * 100_000
    assert wire.Error(1, "ValueError", "told", []) in first
    assert first[-1] == wire.ExecuteReply(1, "error", 0, 200_000)
    assert text(second) == "y"


def test_display_over_the_cap_is_dropped() -> None:
    with greeted((), output_bytes=100_000) as guest:
        events = guest.run("say(wire.DisplayData(cell, ['text/plain'], ['x' * 200_000], [], ''))")

    (reply,) = events
    assert isinstance(reply, wire.ExecuteReply)
    assert reply.dropped >= 200_000


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("os.write(1, b'x' * 65536)", id="bytes"),
        pytest.param("put('x' * 65536)", id="text"),
    ],
)
def test_flood_ends_with_its_worker(guest: Guest, line: str) -> None:
    events = guest.run(f"while True: {line}")

    verdict = events[-1]
    assert isinstance(verdict, wire.Verdict)
    assert (verdict.cell, verdict.kind, verdict.detail) == (1, "killed", "output")
    assert verdict.dropped > 200 * MIB
    assert guest.run("") == [wire.ExecuteReply(2, "ok", 0, 0)]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("say(wire.Stream(cell, 'stdout', 'x' * 1000))", id="events"),
        pytest.param("writer.write(cell, 'stdout', b'x' * 1000)", id="text"),
    ],
)
def test_threads_of_a_finished_cell_print_a_little_more(local: Guest, line: str) -> None:
    local.run(
        "def late(cell=cell):\n"
        "    time.sleep(0.2)\n"
        f"    for _ in range(100): {line}\n"
        "threading.Thread(target=late).start()"
    )

    events = local.run("time.sleep(0.5)")

    assert {e.cell for e in events if isinstance(e, wire.Stream)} == {1}
    assert len(text(events)) == streams.LATE_BYTES
    assert events[-1] == wire.ExecuteReply(2, "ok", 0, 0)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("os.write(1, b'x' * 3_000_000)", id="bytes"),
        pytest.param("put('x' * 3_000_000)", id="text"),
    ],
)
def test_worker_waits_while_the_host_does_not_acknowledge(code: str) -> None:
    with greeted((), window_bytes=100_000, output_bytes=100 * MIB) as guest:
        guest.acknowledges = False
        guest.start(code)
        first = guest.until_quiet()
        guest.send(wire.Ping(1))
        pong = guest.next()
        guest.acknowledges = True
        guest.send(wire.Ack(guest.connection.resume.seq))
        rest = guest.finish()

    assert 50_000 < len(text(first)) < 1_500_000
    assert pong == wire.Pong(1)
    assert len(text(first)) + len(text(rest)) == 3_000_000


def test_unacknowledged_events_are_repeated_after_a_reconnect() -> None:
    with greeted((), replay=True) as guest:
        # The end of the cell is lost with the connection that carried it.
        guest.start("os.write(1, b'a')\ntime.sleep(0.3)\nos.write(1, b'b')")
        first = guest.next()
        time.sleep(0.6)
        os.read(guest.stdout.fileno(), MIB)
        guest.send(guest.connection.resume)
        rest = guest.finish()

    assert first == wire.Stream(1, "stdout", "a")
    assert rest == [wire.Stream(1, "stdout", "b"), OK]


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("", id="nothing-to-do"),
        pytest.param("os.close(1); os.close(2)", id="pipes-at-their-end"),
        pytest.param("os.write(1, b'x' * 1_000_000)", id="window-full"),
        pytest.param("time.sleep(9)", id="cell-sleeps"),
        pytest.param("put('x'); time.sleep(9)", id="cell-sleeps-after-text"),
        pytest.param("put('x')", id="after-text"),
    ],
)
def test_waiting_takes_no_time(code: str) -> None:
    with greeted((), window_bytes=100_000) as guest:
        guest.acknowledges = False
        guest.start(code)
        guest.until_quiet()
        before = cpu_seconds(guest)
        time.sleep(1)
        after = cpu_seconds(guest)

    assert after - before < 0.05


def cpu_seconds(guest: Guest) -> float:
    """What the supervisor has used."""
    fields = Path("/proc", str(guest.process.pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- interrupt and kill ---------------------------------------------------------------------


def test_interrupt_ends_a_subprocess_too(guest: Guest) -> None:
    guest.start("import subprocess\nos.write(1, b'go'); subprocess.run(['sleep', '60'])")
    guest.next()
    began = time.monotonic()

    guest.send(wire.Interrupt(1))

    assert guest.finish()[-1] == wire.ExecuteReply(1, "error", 0, 0)
    assert time.monotonic() - began < 2


def test_interrupt_of_another_cell_is_ignored(local: Guest) -> None:
    local.run("")
    local.start("os.write(1, b'go'); time.sleep(0.3)")
    local.next()

    local.send(wire.Interrupt(1))

    assert local.finish() == [wire.ExecuteReply(2, "ok", 0, 0)]


def test_interrupt_reaches_a_cell_that_no_worker_has_begun() -> None:
    with greeted((), start_seconds=1.0) as guest:
        guest.start("")
        guest.send(wire.Interrupt(1))
        events = guest.finish()
        after = guest.run("")

    assert [type(e) for e in events] == [wire.Error, wire.ExecuteReply]
    assert after == [wire.ExecuteReply(2, "ok", 0, 0)]


def test_interrupt_is_answered_during_a_flood(guest: Guest) -> None:
    guest.start(FLOOD.replace("4096", "64"))
    guest.until(wire.Stream)
    began = time.monotonic()

    guest.send(wire.Interrupt(1))
    guest.until(wire.Error)

    assert time.monotonic() - began < 2
    assert guest.finish()[-1]._replace(dropped=0) == wire.ExecuteReply(1, "error", 0, 0)


def test_worker_that_hears_nothing_is_killed(guest: Guest) -> None:
    guest.start("os.write(1, b'go')\n" + DEAF)
    guest.next()

    guest.send(wire.KillWorker(1))

    assert guest.finish() == [wire.Verdict(1, "killed", "", -9, 0, "lost")]
    assert guest.run("") == [wire.ExecuteReply(2, "ok", 0, 0)]


def test_cell_that_no_worker_has_begun_can_be_killed() -> None:
    with greeted((), start_seconds=0.5) as guest:
        guest.start("os.write(1, b'ran')")
        guest.send(wire.KillWorker(1))
        events = guest.finish()
        after = guest.run("")

    assert events == [wire.Verdict(1, "killed", "", -9, 0, "lost")]
    assert after == [wire.ExecuteReply(2, "ok", 0, 0)]


def test_kill_of_a_finished_cell_is_ignored(local: Guest) -> None:
    local.run("kept = 1")

    local.send(wire.KillWorker(1))

    assert local.run("kept") == [wire.ExecuteReply(2, "ok", 0, 0)]


DAEMON = """
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.write(writer, b'%d' % os.getpid())
        while True: time.sleep(9)
    os._exit(0)
os.wait()
os.write(1, os.read(reader, 20))
"""


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("", id="worker-killed"),
        pytest.param("os._exit(0)", id="worker-exits"),
    ],
)
def test_nothing_outlives_a_worker(guest: Guest, end: str) -> None:
    guest.start(DAEMON + (end or DEAF))
    pid = text([guest.next()])
    if not end:
        guest.send(wire.KillWorker(1))
    guest.finish()

    events = guest.run(f"os.kill({pid}, 0)")

    assert [e.ename for e in events if isinstance(e, wire.Error)] == ["ProcessLookupError"]


def test_fork_bomb_is_cleared(boxed: Guest) -> None:
    bomb = "os.write(1, b'go')\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    boxed.start(bomb)
    boxed.next()
    time.sleep(0.5)
    began = time.monotonic()

    boxed.send(wire.KillWorker(1))
    boxed.until(wire.Verdict)

    assert boxed.run("") == [wire.ExecuteReply(2, "ok", 0, 0)]
    assert time.monotonic() - began < 10


# --- verdicts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "detail", "status"),
    [
        pytest.param("os._exit(3)", "exited", "status 3", 3, id="exit"),
        pytest.param("os._exit(0)", "exited", "status 0", 0, id="exit-in-peace"),
        pytest.param("os.kill(os.getpid(), 9)", "crashed", "SIGKILL", -9, id="kills-itself"),
        pytest.param("os.kill(os.getpid(), 50)", "crashed", "signal 50", -50, id="real-time"),
        pytest.param("import ctypes; ctypes.string_at(0)", "crashed", "SIGSEGV", -11, id="segv"),
        pytest.param("os.abort()", "crashed", "SIGABRT", -6, id="abort"),
        pytest.param("os.killpg(0, 15)", "crashed", "SIGTERM", -15, id="kills-its-group"),
    ],
)
def test_death_of_the_worker_is_told(
    guest: Guest, code: str, kind: str, detail: str, status: int
) -> None:
    events = guest.run(f"os.write(1, b'last words')\n{code}")

    assert text(events) == "last words"
    assert events[-1] == wire.Verdict(1, kind, detail, status, 0, "lost")
    assert guest.run("") == [wire.ExecuteReply(2, "ok", 0, 0)]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("os._exit(3)", id="exit"),
        pytest.param("os.kill(os.getpid(), 9)", id="kills-itself"),
        pytest.param("import ctypes; ctypes.string_at(0)", id="segv"),
        pytest.param("writer.events += 1; put('!'); os._exit(3)", id="behind-no-event"),
    ],
)
def test_what_was_printed_before_a_crash_shows(guest: Guest, end: str) -> None:
    events = guest.run(f"put('last words' * 1000)\n{end}")

    assert text(events).rstrip("!") == "last words" * 1000
    assert isinstance(events[-1], wire.Verdict)


def test_want_of_memory_is_told(boxed: Guest) -> None:
    events = boxed.run(
        "waste = []\nwhile True: waste.append(bytearray(MIB))".replace("MIB", "1 << 20")
    )

    assert events == [wire.Verdict(1, "oom", "", -9, 0, "lost")]
    assert boxed.run("") == [wire.ExecuteReply(2, "ok", 0, 0)]


def test_want_of_memory_of_an_earlier_cell_is_not_told_again(boxed: Guest) -> None:
    boxed.run("if os.fork() == 0:\n    waste = bytearray(1 << 30)\nos.wait()")

    events = boxed.run("os.kill(os.getpid(), 9)")

    assert events == [wire.Verdict(2, "crashed", "SIGKILL", -9, 0, "lost")]


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("sock.send(b'garbage')", id="garbage"),
        pytest.param("os.write(sock.fileno(), bytes(1000))", id="zeros"),
        pytest.param("sock.send(b'\\x1e' + b'x' * 40_000)", id="endless-frame"),
        pytest.param("sock.send(wire.Connection(wire.Role.WORKER, wire.Role.HOST)"
                     ".send(wire.Ready('python')))", id="second-ready"),
        pytest.param("sock.send(b'\\x1e{\"type\":\"pong\",\"nonce\":1}\\n')", id="not-its-event"),
        pytest.param("sock.send(b'\\x1e{\"type\":\"stream\",\"cell\":9,\"name\":\"stdout\","
                     "\"text\":\"\"}\\n')", id="cell-never-begun"),
        pytest.param("header[0] = 2 ** 63", id="ring-beyond-its-size"),
        pytest.param("header[0] = header[0] - 1 & 2 ** 64 - 1", id="ring-going-back"),
        pytest.param("writer.write(9, 'stdout', b'x')", id="text-of-a-cell-never-begun"),
        pytest.param("outlet.memory[:20] = b'\\xff' * 20; header[0] = 20", id="ring-of-garbage"),
        pytest.param("sock.close()", id="closed"),
        pytest.param("os.closerange(0, 1024)", id="all-closed"),
    ],
)  # fmt: skip
def test_worker_that_breaks_the_protocol_is_replaced(local: Guest, code: str) -> None:
    events = local.run(f"{code}\n{DEAF}")

    assert events == [wire.Verdict(1, "crashed", "broke the protocol", -9, 0, "lost")]
    assert local.run("") == [wire.ExecuteReply(2, "ok", 0, 0)]


def test_death_between_cells_is_told(local: Guest) -> None:
    local.run("threading.Timer(0.2, os._exit, [5]).start()")

    verdict = local.next()

    assert verdict == wire.Verdict(0, "exited", "status 5", 5, 0, "lost")
    assert local.run("") == [wire.ExecuteReply(2, "ok", 0, 0)]


def test_worker_that_never_gets_ready_ends_the_guest() -> None:
    with greeted((), stillborn=True) as guest:
        guest.start("")
        verdicts = [guest.next() for _ in range(5)]
        with pytest.raises(EOFError):
            guest.next()
        assert guest.process.stderr is not None
        said = guest.process.stderr.read()

    assert verdicts == [wire.Verdict(0, "exited", "status 9", 9, 0, "lost")] * 5
    assert b"5 workers in a row" in said
    assert guest.process.wait() == 1


# --- lifetime -------------------------------------------------------------------------------

HOSTILE = f"{DAEMON}\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n" \
    f"    except (OSError, ValueError): pass\n{FLOOD}"  # fmt: skip


def begin_hostile(guest: Guest) -> list[int]:
    """Start what ends by nothing but SIGKILL; return processes that must end with the guest."""
    guest.start(HOSTILE)
    daemon = int(text([guest.next()]).partition("x")[0])
    if not guest.container:
        return [guest.process.pid, daemon]
    # A container's other processes end with its PID 1.
    command = ["docker", "inspect", "-f", "{{.State.Pid}}", guest.container]
    return [int(subprocess.run(command, capture_output=True, check=True).stdout)]


def all_end(guest: Guest, pids: list[int]) -> bool:
    """Whether these processes end within 10 seconds, though nobody reads what they write."""
    deadline = time.monotonic() + 10
    while any(Path("/proc", str(pid)).exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
        guest.process.poll()
    return not any(Path("/proc", str(pid)).exists() for pid in pids)


def test_shutdown_ends_all(guest: Guest) -> None:
    pids = begin_hostile(guest)

    guest.send(wire.Shutdown())

    assert all_end(guest, pids)


def test_end_of_the_stream_ends_all(guest: Guest) -> None:
    pids = begin_hostile(guest)

    guest.stdin.close()

    assert all_end(guest, pids)


def test_host_that_is_frozen_ends_all(start: Start) -> None:
    with start(deadman_seconds=1.5) as guest:
        pids = begin_hostile(guest)
        # Nothing is read from here on: the pipe to the host fills up.
        assert all_end(guest, pids)


def test_pings_keep_the_guest_alive() -> None:
    with greeted((), deadman_seconds=1.0) as guest:
        for nonce in range(5):
            time.sleep(0.4)
            guest.send(wire.Ping(nonce))
            pong = guest.next()

    assert pong == wire.Pong(4)


def test_lifetime_ends_all_however_busy(start: Start) -> None:
    with start(lifetime_seconds=1.5) as guest:
        pids = begin_hostile(guest)
        assert all_end(guest, pids)


def test_alarm_from_inside_ends_nothing(boxed: Guest) -> None:
    events = boxed.run("for _ in range(100): os.kill(1, signal.SIGALRM)")

    assert events == [OK]


def test_idle_guest_ends() -> None:
    with greeted((), idle_seconds=0.8) as guest:
        guest.run("")
        for nonce in range(3):
            time.sleep(0.2)
            guest.send(wire.Ping(nonce))
        began = time.monotonic()
        status = guest.ended()

    assert status == 0
    assert time.monotonic() - began < 2


def test_busy_guest_is_not_idle() -> None:
    with greeted((), idle_seconds=0.5) as guest:
        events = guest.run("time.sleep(1.2)")

    assert events == [OK]
