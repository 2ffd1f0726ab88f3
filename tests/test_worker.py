"""The worker as a real process: what it says on its socket for what it is asked."""

from __future__ import annotations

import base64
import json
import mmap
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandbox_kernel import wire
from sandbox_kernel.guest import hints, mime, ring, streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parent.parent
#: Guests may have an older Python than the host.
PYTHON = os.environ.get("SANDBOX_KERNEL_TEST_PYTHON", sys.executable)
LAUNCH = """
import mmap, os, socket, sys
sys.path.insert(0, {root!r})
{prelude}
from sandbox_kernel.guest import ring, worker
outlet = ring.Outlet(mmap.mmap({memory}, 0), {bell})
os.close({memory})
worker.main(socket.socket(fileno={fd}), {settings!r}, None, outlet)
"""
# As if the image had none; its other packages stay.
WITHOUT_IPYTHON = "sys.modules['IPython'] = None"
SETTINGS = {"network": False, "stdin": True, "image": "some-image", "checkpoint": False}


class Guest:
    """A worker process and the supervisor's end of its socket."""

    def __init__(self, prelude: str = "", settings: dict[str, Any] | None = None) -> None:
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("ring")
        os.ftruncate(memory, ring.BYTES)
        self.bell, bell = os.pipe()
        os.set_blocking(bell, False)
        code = LAUNCH.format(
            root=str(ROOT),
            prelude=prelude,
            fd=theirs.fileno(),
            memory=memory,
            bell=bell,
            settings=settings or SETTINGS,
        )
        self.process = subprocess.Popen(
            [PYTHON, "-I", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno(), memory, bell],
            process_group=0,
        )
        theirs.close()
        os.close(bell)
        self.text = ring.Reader(mmap.mmap(memory, 0))
        os.close(memory)
        self.gatherer = streams.Gatherer()
        self.events: deque[wire.Event] = deque()
        self.socket = ours
        self.connection = wire.Connection(wire.Role.HOST, wire.Role.WORKER)
        self.count = 0
        self.ready = self.next()

    def next(self) -> wire.Event:
        """The next event; text that comes without a pause is one."""
        deadline = time.monotonic() + 20
        while not self.events:
            event = self.connection.next_event()
            more = self.take_text()
            if event is not None:
                self.text.event_received()
                self.events += [*self.gatherer.take(0), event]
            elif select.select([self.socket], [], [], 0.02)[0]:
                self.receive()
            elif not more:
                self.events += self.gatherer.take(0)
            assert time.monotonic() < deadline
        return self.events.popleft()

    def take_text(self) -> bool:
        """Gather what the ring holds; say whether that is anything."""
        texts = self.text.take()
        for cell, name, data in texts:
            self.gatherer.add(cell, name, data.decode())
        return bool(texts)

    def receive(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            _, errors = self.process.communicate(timeout=10)
            raise EOFError(errors.decode())
        self.connection.receive_data(data)

    def hang_up(self) -> None:
        """What the end of a supervisor does."""
        self.socket.close()
        os.close(self.bell)

    def send(self, event: wire.Event) -> None:
        self.socket.sendall(self.connection.send(event))

    def begin(self, code: str, **changes: Any) -> None:
        self.count += 1
        fields = {
            "cell": self.count,
            "code": code,
            "silent": False,
            "store_history": True,
            "allow_stdin": True,
            "execution_count": self.count,
        }
        self.send(wire.Execute(**(fields | changes)))

    def end(self, on: Callable[[Guest, wire.Event], None] | None = None) -> list[wire.Event]:
        events = [self.next()]
        while type(events[-1]) is not wire.ExecuteReply:
            if on is not None:
                on(self, events[-1])
            events.append(self.next())
        return events

    def run(
        self, code: str, on: Callable[[Guest, wire.Event], None] | None = None, **changes: Any
    ) -> list[wire.Event]:
        self.begin(code, **changes)
        return self.end(on)

    def interrupt_after(self, seconds: float) -> None:
        threading.Timer(seconds, os.killpg, (self.process.pid, signal.SIGINT)).start()


@contextmanager
def guest(prelude: str = "", settings: dict[str, Any] | None = None) -> Iterator[Guest]:
    worker = Guest(prelude, settings)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.process.communicate()
        worker.text.close()
        if worker.socket.fileno() != -1:
            worker.hang_up()


@pytest.fixture(params=["ipython", "python"])
def either(request: pytest.FixtureRequest) -> Iterator[Guest]:
    """Both shells hold the same contract."""
    with guest("" if request.param == "ipython" else WITHOUT_IPYTHON) as worker:
        if worker.ready != wire.Ready(request.param):
            pytest.skip(f"{PYTHON} has no IPython")
        yield worker


@pytest.fixture
def ipython() -> Iterator[Guest]:
    with guest() as worker:
        if worker.ready != wire.Ready("ipython"):
            pytest.skip(f"{PYTHON} has no IPython")
        yield worker


@pytest.fixture
def plain() -> Iterator[Guest]:
    with guest(WITHOUT_IPYTHON) as worker:
        yield worker


def text(events: list[wire.Event], name: str = "stdout") -> str:
    return "".join(e.text for e in events if isinstance(e, wire.Stream) and e.name == name)


def of(events: list[wire.Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def error(events: list[wire.Event]) -> wire.Error:
    (found,) = of(events, wire.Error)
    return found


def result(events: list[wire.Event]) -> str:
    (found,) = of(events, wire.ExecuteResult)
    return dict(zip(found.mimes, found.values, strict=True))["text/plain"]


def skip_without(worker: Guest, package: str) -> None:
    """Skip where the guest's Python lacks what a test needs there."""
    found = worker.run(f"__import__('importlib.util').util.find_spec({package!r}) is not None")
    if result(found) != "True":
        pytest.skip(f"{PYTHON} has no {package}")


def type_in(line: str) -> Callable[[Guest, wire.Event], None]:
    def answer(worker: Guest, event: wire.Event) -> None:
        if isinstance(event, wire.InputRequest):
            worker.send(wire.InputReply(event.cell, line))

    return answer


# --- running --------------------------------------------------------------------------------


def test_a_cell_prints_and_has_a_value(either: Guest) -> None:
    events = either.run("print('hi')\n1 + 1")

    assert events == [
        wire.Stream(1, "stdout", "hi\n"),
        wire.ExecuteResult(1, ["text/plain"], ["2"], []),
        wire.ExecuteReply(1, "ok", 0, 0),
    ]


def test_output_keeps_its_order(either: Guest) -> None:
    code = (
        "import sys\nprint('a', end=' ')\nprint('b', file=sys.stderr)\ndisplay(1)\n"
        "sys.stdout.write('c')\nsys.stderr.write('d')\n2"
    )

    events = either.run(code)

    shown = [getattr(e, "text", None) or getattr(e, "values", None) for e in events[:-1]]
    assert shown == ["a ", "b\n", ["1"], "c", "d", ["2"]]


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        pytest.param("1; 2;", [], id="semicolon"),
        pytest.param("None", [], id="none"),
        pytest.param("x = 1", [], id="no-expression"),
        pytest.param("for i in range(2): i", [], id="expression-in-a-loop"),
        pytest.param("1\n2", ["2"], id="last-of-two"),
    ],
)
def test_only_the_last_expression_is_shown(either: Guest, code: str, shown: list[str]) -> None:
    events = either.run(code)

    assert [value for e in of(events, wire.ExecuteResult) for value in e.values] == shown


def test_results_are_kept_by_number(either: Guest) -> None:
    either.run("40 + 2", execution_count=7)

    events = either.run("_, Out[7], In[7]", execution_count=8)

    assert result(events) == "(42, 42, '40 + 2')"


def test_silent_cells_show_no_value_and_leave_no_history(either: Guest) -> None:
    events = either.run("5", silent=True, store_history=False)

    assert events == [wire.ExecuteReply(1, "ok", 0, 0)]
    assert result(either.run("len(Out)")) == "0"


def test_state_is_kept_after_an_error(either: Guest) -> None:
    either.run("x = 1\n1/0")

    assert result(either.run("x")) == "1"


def test_the_host_counts_the_cells(either: Guest) -> None:
    events = either.run("x = 1\n1/0", execution_count=41)

    lines = re.sub("\x1b\\[[0-9;]*m", "", "\n".join(error(events).traceback))
    assert "Cell In[41], line 2" in lines.replace('"', "")
    assert "1/0" in lines
    assert "sandbox_kernel" not in lines


def test_an_error_is_shown_without_our_frames(either: Guest) -> None:
    events = either.run("class A:\n    def __repr__(self): raise ValueError('no')\nA()")

    assert error(events).ename == "ValueError"
    assert "sandbox_kernel" not in "".join(error(events).traceback)
    assert events[-1] == wire.ExecuteReply(1, "error", 1, 0)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        pytest.param("import sys; sys.exit(3)", 3, id="sys-exit"),
        pytest.param("import sys; sys.exit('why')", 1, id="message"),
        pytest.param("exit()", 0, id="exit"),
        pytest.param("quit()", 0, id="quit"),
        pytest.param("raise SystemExit(300)", 44, id="more-than-a-byte"),
    ],
)
def test_exit_ends_the_cell_alone(either: Guest, code: str, exit_code: int) -> None:
    either.run("x = 1")

    events = either.run(code)

    assert error(events).ename == "SystemExit"
    assert events[-1] == wire.ExecuteReply(2, "error", exit_code, 0)
    assert result(either.run("x")) == "1"


def test_top_level_await(either: Guest) -> None:
    events = either.run(
        "import asyncio\nawait asyncio.sleep(0.01)\nprint('a')\nawait asyncio.sleep(0, 5)"
    )

    assert text(events) == "a\n"
    assert result(events) == "5"


def test_asyncio_run_fails_as_in_a_notebook(either: Guest) -> None:
    events = either.run("import asyncio\nasyncio.run(asyncio.sleep(0))")

    assert error(events).evalue == "asyncio.run() cannot be called from a running event loop"


def test_tasks_go_on_between_cells(either: Guest) -> None:
    either.run(
        "import asyncio\nasync def tick():\n    await asyncio.sleep(0.1)\n    print('tick')\n"
        "task = asyncio.create_task(tick())"
    )

    late = either.next()

    assert late == wire.Stream(1, "stdout", "tick\n")


def test_a_task_that_exits_does_not_end_the_worker(either: Guest) -> None:
    either.run(
        "import asyncio, sys\nasync def leave(): sys.exit(1)\ntask = asyncio.create_task(leave())"
    )

    assert result(either.run("1 + 1")) == "2"


# --- whose output ---------------------------------------------------------------------------

ROUTED = """
import asyncio, threading, time
async def tick():
    await asyncio.sleep(0.2); print('task')
def run():
    time.sleep(0.2); print('thread')
task = asyncio.create_task(tick())
threading.Thread(target=run).start()
"""


def test_a_task_belongs_to_its_cell_and_a_thread_to_the_latest(either: Guest) -> None:
    either.run(ROUTED)

    events = either.run("await asyncio.sleep(0.5)")

    cells = {e.text: e.cell for e in of(events, wire.Stream)}
    assert cells == {"task\n": 1, "thread\n": 2}


def test_a_thread_that_is_given_a_context_belongs_to_its_cell(either: Guest) -> None:
    either.run(
        "import asyncio, time\n"
        "def work():\n    time.sleep(0.2); print('work')\n"
        "task = asyncio.create_task(asyncio.to_thread(work))"
    )

    events = either.run("await asyncio.sleep(0.5)")

    assert of(events, wire.Stream) == [wire.Stream(1, "stdout", "work\n")]


# --- the streams ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "value"),
    [
        pytest.param("sys.stdout.isatty()", "False", id="isatty"),
        pytest.param("sys.stdout.encoding, sys.stderr.name", "('UTF-8', 'stderr')", id="names"),
        pytest.param("sys.stdout.fileno(), sys.stderr.fileno()", "(1, 2)", id="fileno"),
        pytest.param("sys.stdout.writable(), sys.stdout.closed", "(True, False)", id="writable"),
        pytest.param("sys.stdout.write('')", "0", id="write-returns-the-length"),
        pytest.param("sys.stdout.buffer.write(b'')", "0", id="buffer"),
    ],
)
def test_the_streams_look_like_ipykernels(either: Guest, code: str, value: str) -> None:
    assert result(either.run(f"import sys\n{code}")) == value


def test_bytes_may_cut_a_character(either: Guest) -> None:
    events = either.run(
        "import sys\nfor b in 'é€\\n'.encode(): n = sys.stdout.buffer.write(bytes([b]))\n"
        "sys.stdout.buffer.write(b'\\xff\\n');"
    )

    assert text(events) == "é€\n\ufffd\n"


def test_writing_bytes_as_text_is_refused(either: Guest) -> None:
    events = either.run("import sys; sys.stdout.write(b'x')")

    assert error(events).evalue == "write() argument must be str, not <class 'bytes'>"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("piece", ["é", "x", "\U0001f600", "\x1b"])
def test_long_text_comes_whole_in_small_events(either: Guest, name: str, piece: str) -> None:
    events = either.run(f"import sys\nprint({piece!r} * 100_000, file=sys.{name})")

    assert text(events, name) == piece * 100_000 + "\n"
    assert max(len(e.text) for e in of(events, wire.Stream)) <= 24 * 1024


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("print('.', end='')", id="print-without-an-end"),
        pytest.param("print('.', end='', flush=True)", id="flush"),
        pytest.param("sys.stdout.write('.\\r')", id="carriage-return"),
        pytest.param("sys.stdout.write('.' * 9000)", id="much"),
        pytest.param("print('.')", id="line"),
    ],
)
def test_text_does_not_wait_for_the_cell_to_end(either: Guest, code: str) -> None:
    either.begin(f"import sys, time\n{code}\ntime.sleep(30)")

    first = either.next()

    assert isinstance(first, wire.Stream)
    assert first.text.startswith(".")


@pytest.mark.parametrize(
    ("code", "rung"),
    [
        pytest.param("print('a')", ring.BEHIND_NOTHING, id="pipes-empty"),
        pytest.param("os.write(2, b'x'); print('a')", ring.BEHIND_PIPES, id="pipes-hold-text"),
        pytest.param("os.dup2(0, 1); print('a')", ring.BEHIND_NOTHING, id="no-pipe"),
    ],
)
def test_the_bell_tells_what_the_text_stands_behind(either: Guest, code: str, rung: bytes) -> None:
    either.text.look(now=0.0)
    either.run("import os")

    either.run(code)

    assert os.read(either.bell, 10) == rung


def test_half_a_surrogate_pair_is_replaced(either: Guest) -> None:
    events = either.run("print('a\\ud800b')")

    assert text(events) == "a\ufffdb\n"


def test_a_handler_that_prints_while_the_ring_is_full(either: Guest) -> None:
    either.begin(
        "import signal\n"
        "signal.signal(signal.SIGALRM, lambda *_: print('handler'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.2)\n"
        "print('x' * 600_000)"
    )
    # Nobody reads meanwhile.
    time.sleep(0.5)

    events = either.end()

    assert text(events) == "x" * 600_000 + "handler\n\n"


def test_an_interrupt_reaches_a_print_that_waits_for_room(either: Guest) -> None:
    either.begin("print('x' * 600_000)")
    either.interrupt_after(0.3)
    time.sleep(0.5)

    events = either.end()

    assert error(events).ename == "KeyboardInterrupt"
    assert set(text(events)) == {"x"}
    assert text(either.run("print('after')")) == "after\n"


def test_finalizers_that_print_tear_nothing(either: Guest) -> None:
    code = (
        "import gc\ngc.set_threshold(5)\n"
        "class Loud:\n"
        "    def __init__(self): self.me = self\n"
        "    def __del__(self): print('<gone>')\n"
        "for i in range(20_000): Loud(); print(f'<{i}>')\n"
        "gc.set_threshold(700, 10, 10)"
    )

    lines = text(either.run(code)).replace("><", ">\n<").split()

    numbers = [line for line in lines if line != "<gone>"]
    assert numbers == [f"<{i}>" for i in range(20_000)]
    assert len(lines) > 30_000


def test_threads_print_whole_texts(either: Guest) -> None:
    code = (
        "import sys, threading\n"
        "def work(name):\n    for i in range(3000): sys.stdout.write(f'<{name}{i}>')\n"
        "threads = [threading.Thread(target=work, args=name) for name in 'abcd']\n"
        "for t in threads: t.start()\nfor t in threads: t.join()"
    )

    printed = text(either.run(code))[1:-1].split("><")

    assert len(printed) == 12_000
    for name in "abcd":
        assert [p for p in printed if p[0] == name] == [f"{name}{i}" for i in range(3000)]


def test_closing_a_stream_does_not_silence_later_cells(either: Guest) -> None:
    either.run("import sys; sys.stdout.close()")

    assert text(either.run("print('still here')")) == "still here\n"


def test_descriptors_below_fifty_are_not_ours(either: Guest) -> None:
    code = (
        "import os\nfor fd in range(3, 50):\n    try: os.write(fd, b'\\0' * 1000)\n"
        "    except OSError: pass\nos.closerange(3, 50)"
    )
    either.run(code)

    assert result(either.run("await __import__('asyncio').sleep(0.01, 'alive')")) == "'alive'"


def test_a_hundred_thousand_prints_are_cheap(either: Guest) -> None:
    events = either.run(
        "import time\nbefore = time.process_time()\nfor i in range(100_000): print(i)\n"
        "time.process_time() - before"
    )

    assert text(events) == "".join(f"{i}\n" for i in range(100_000))
    cost = float(result(events))

    # Seconds; five times what it takes on an idle machine.
    assert cost < 1


# --- displays -------------------------------------------------------------------------------


def test_displays_are_updated_and_cleared(either: Guest) -> None:
    clear = "from IPython.display import clear_output\n" if either.ready.shell == "ipython" else ""

    events = either.run(
        f"{clear}h = display('a', display_id='mine')\nh.update('b')\nclear_output(wait=True)"
    )

    assert events[:-1] == [
        wire.DisplayData(1, ["text/plain"], ["'a'"], [], "mine"),
        wire.UpdateDisplayData(1, ["text/plain"], ["'b'"], [], "mine"),
        wire.ClearOutput(1, wait=True),
    ]


def test_a_made_up_display_id_is_a_name(either: Guest) -> None:
    events = either.run("h = display(1, display_id=True)\nh.update(2)")

    first, second = events[:2]
    assert isinstance(first, wire.DisplayData)
    assert first.display_id
    assert second.display_id == first.display_id


RICH = """
class Rich:
    def _repr_html_(self): return '<b>x</b>'
    def _repr_png_(self): return b'\\x89PNG', {'width': 640, 'height': 480}
    def _repr_json_(self): return {'a': [1, None]}
    def __repr__(self): return 'rich'
Rich()
"""


def test_rich_values_become_text(either: Guest) -> None:
    (shown,) = of(either.run(RICH), wire.ExecuteResult)

    values = dict(zip(shown.mimes, shown.values, strict=True))
    assert values["text/html"] == "<b>x</b>"
    assert base64.b64decode(values["image/png"]) == b"\x89PNG"
    assert json.loads(values["application/json"]) == {"a": [1, None]}
    assert values["text/plain"] == "rich"
    assert shown.sizes == ["image/png=640x480"]


def test_a_raising_representation_falls_back_to_the_repr(plain: Guest) -> None:
    events = plain.run(
        "class A:\n    def _repr_html_(self): 1/0\n    def __repr__(self): return 'a'\nA()"
    )

    assert events[0] == wire.ExecuteResult(1, ["text/plain"], ["a"], [])


def test_an_output_larger_than_the_wire_is_named(either: Guest) -> None:
    code = "display({'image/png': b'x' * (17 << 20), 'text/plain': 'big'}, raw=True)"

    events = either.run(code)

    assert of(events, wire.DisplayData)[0].values == ["big"]
    assert "`image/png` was larger than 16 MiB" in text(events, "stderr")


def test_an_error_larger_than_the_wire_is_cut(either: Guest) -> None:
    events = either.run("raise ValueError('x' * (20 << 20))")

    assert error(events).ename == "ValueError"
    assert len(error(events).evalue) == 64 * 1024


def test_figures_appear_without_show(either: Guest) -> None:
    skip_without(either, "matplotlib")
    either.run("import matplotlib.pyplot as plt")

    events = either.run(
        "plt.plot([1, 2])\nplt.figure(); plt.plot([2, 1])\nplt.show()\nprint('x')\nplt.plot([1]);"
    )

    kinds = [
        "image" if "image/png" in getattr(e, "mimes", []) else type(e).__name__ for e in events
    ]
    assert kinds == ["image", "image", "Stream", "image", "ExecuteReply"]
    assert of(either.run("1"), wire.DisplayData) == []


@pytest.mark.parametrize(
    ("metadata", "sizes"),
    [
        pytest.param({"image/png": {"width": 2, "height": 3}}, ["image/png=2x3"], id="both"),
        pytest.param({"image/png": {"width": 2}}, [], id="one"),
        pytest.param({"image/png": {"width": "2", "height": 3}}, [], id="no-number"),
        pytest.param({"image/png": {"width": -2, "height": 3}}, [], id="negative"),
        pytest.param({"image/gif": {"width": 2, "height": 3}}, [], id="of-nothing-shown"),
        pytest.param({"image/png": {"needs_background": "light"}}, [], id="other"),
        pytest.param({"image/png": 5}, [], id="no-mapping"),
    ],
)
def test_only_sizes_of_metadata_are_kept(metadata: dict[str, Any], sizes: list[str]) -> None:
    bundle = mime.bundle({"image/png": b"x"}, metadata, 100)

    assert bundle.sizes == sizes


# --- asking ---------------------------------------------------------------------------------


def test_input_is_asked_of_the_host(either: Guest) -> None:
    events = either.run("name = input('n? ')\nname", on=type_in("ada"))

    assert events[0] == wire.InputRequest(1, "n? ", password=False)
    assert result(events) == "'ada'"


def test_getpass_is_asked_unseen(either: Guest) -> None:
    events = either.run("import getpass\ngetpass.getpass('key: ')", on=type_in("s3cret"))

    assert events[0] == wire.InputRequest(1, "key: ", password=True)
    assert result(events) == "'s3cret'"


def test_an_end_of_file_is_typed_as_control_d(either: Guest) -> None:
    events = either.run("input()", on=type_in("\x04"))

    assert error(events).ename == "EOFError"


def test_a_line_for_an_earlier_cell_is_dropped(either: Guest) -> None:
    either.run("1")
    either.send(wire.InputReply(1, "old"))

    events = either.run("input()", on=type_in("new"))

    assert result(events) == "'new'"


def test_a_thread_may_ask(either: Guest) -> None:
    events = either.run(
        "import threading\ndef ask(): print(input('t? '))\nt = threading.Thread(target=ask)\n"
        "t.start(); t.join()",
        on=type_in("yes"),
    )

    assert text(events) == "yes\n"


@pytest.mark.parametrize("what", ["input()", "__import__('getpass').getpass()"])
@pytest.mark.parametrize("by", ["policy", "client"])
def test_nobody_to_ask_is_an_error_at_once(what: str, by: str) -> None:
    settings = SETTINGS | {"stdin": by != "policy"}
    with guest(settings=settings) as worker:
        events = worker.run(what, allow_stdin=by != "client")

    assert error(events).ename == "StdinNotImplementedError"
    assert error(events).evalue.endswith("but this frontend does not support input requests.")


def test_plain_python_has_the_same_error(plain: Guest) -> None:
    events = plain.run("input()", allow_stdin=False)

    assert error(events).ename == "StdinNotImplementedError"
    assert error(events).traceback[-1].startswith("StdinNotImplementedError: raw_input was called")


def test_breakpoint_asks_for_commands(either: Guest) -> None:
    lines = iter(["p 6*7", "c"])

    def answer(worker: Guest, event: wire.Event) -> None:
        if isinstance(event, wire.InputRequest):
            worker.send(wire.InputReply(event.cell, next(lines)))

    events = either.run("x = 1\nbreakpoint()\nprint('after')", on=answer)

    assert "42\n" in text(events)
    assert text(events).endswith("after\n")


# --- interrupts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import time; time.sleep(30)", id="sleep"),
        pytest.param("while True: pass", id="loop"),
        pytest.param("while True: print('x' * 1000)", id="flood"),
        pytest.param("input()", id="input"),
        pytest.param("import subprocess; subprocess.run(['sleep', '30'])", id="subprocess"),
    ],
)
def test_an_interrupt_ends_the_cell_alone(either: Guest, code: str) -> None:
    either.run("x = 1")
    either.interrupt_after(0.3)

    events = either.run(code)

    assert error(events).ename == "KeyboardInterrupt"
    assert "sandbox_kernel" not in "".join(error(events).traceback)
    assert result(either.run("x")) == "1"


def test_an_interrupt_cancels_a_cell_that_awaits(either: Guest) -> None:
    either.interrupt_after(0.3)

    events = either.run("import asyncio\nawait asyncio.sleep(30)")

    assert error(events).ename == "CancelledError"
    assert result(either.run("1")) == "1"


def test_an_interrupt_between_cells_is_ignored(either: Guest) -> None:
    either.run("x = 1")
    os.killpg(either.process.pid, signal.SIGINT)
    time.sleep(0.1)

    assert result(either.run("x")) == "1"


def test_a_cells_own_handler_is_used_and_then_forgotten(either: Guest) -> None:
    either.interrupt_after(0.3)

    first = either.run(
        "import signal, time\nsignal.signal(2, lambda *a: print('mine'))\ntime.sleep(0.8)"
    )

    assert text(first) == "mine\n"
    code = "signal.getsignal(2) is signal.default_int_handler"
    assert result(either.run(code)) == "True"


def test_interrupts_never_tear_a_frame(either: Guest) -> None:
    for attempt in range(20):
        either.begin("while True:\n    print('é' * 30)\n    display('y' * 60000)")
        either.interrupt_after(0.02 + attempt / 1000)

        # Raises if any byte is out of place.
        events = either.end()

        assert error(events).ename == "KeyboardInterrupt"
        assert {tuple(e.values) for e in of(events, wire.DisplayData)} <= {(repr("y" * 60000),)}


def test_an_alarm_that_raises_never_tears_a_frame(either: Guest) -> None:
    code = (
        "import signal\nclass Late(BaseException): pass\n"
        "def late(*_): raise Late\n"
        "signal.signal(signal.SIGALRM, late)\n"
        "for _ in range(200):\n"
        "    try:\n        signal.setitimer(signal.ITIMER_REAL, 0.003)\n"
        "        for _ in range(500): display('z' * 60000)\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "    except Late: pass"
    )

    events = either.run(code)

    assert {tuple(e.values) for e in of(events, wire.DisplayData)} == {(repr("z" * 60000),)}
    assert events[-1] == wire.ExecuteReply(1, "ok", 0, 0)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGTSTP", "SIGCHLD", "SIGALRM"])
def test_signals_that_the_supervisor_ignores_are_restored(name: str) -> None:
    prelude = f"import signal; signal.signal(signal.{name}, signal.SIG_IGN)"
    with guest(prelude) as worker:
        events = worker.run(f"import signal; signal.getsignal(signal.{name}).name")

    assert result(events) == "'SIG_DFL'"


# --- forks ----------------------------------------------------------------------------------


def test_a_forked_child_prints_on_the_pipes(either: Guest) -> None:
    code = (
        "import os, sys\nprint('before', end='#')\npid = os.fork()\n"
        "if pid == 0:\n    print('child'); print('err', file=sys.stderr); display('shown')\n"
        "    try: input()\n    except Exception as e: print(type(e).__name__)\n"
        "    os._exit(0)\nos.waitpid(pid, 0); print('parent')"
    )

    events = either.run(code)

    assert text(events) == "before#parent\n"
    assert events[-1].status == "ok"
    assert either.process.stdout is not None
    printed = os.read(either.process.stdout.fileno(), 1000)
    assert printed == b"child\n'shown'\nStdinNotImplementedError\n"


def test_a_child_that_falls_out_of_the_cell_ends(either: Guest) -> None:
    events = either.run("import os\npid = os.fork()\nif pid: status = os.waitpid(pid, 0)[1]")

    assert events == [wire.ExecuteReply(1, "ok", 0, 0)]
    assert result(either.run("status")) == "0"


def test_multiprocessing_works(either: Guest) -> None:
    code = (
        "import multiprocessing as mp\ndef double(x): return 2 * x\n"
        "with mp.get_context('fork').Pool(2) as pool: doubled = pool.map(double, [1, 2, 3])\n"
        "doubled"
    )

    assert result(either.run(code)) == "[2, 4, 6]"


# --- the end --------------------------------------------------------------------------------


def test_shutdown_ends_the_worker(either: Guest) -> None:
    either.send(wire.Shutdown())

    assert either.process.wait(timeout=5) == 0


def test_the_worker_ends_with_its_supervisor(either: Guest) -> None:
    either.begin("while True: print('x')")
    either.hang_up()

    assert either.process.wait(timeout=5) == 0


# --- a client's questions -------------------------------------------------------------------


def test_completion(either: Guest) -> None:
    either.run("import string")
    either.send(wire.Complete(4, "x = string.ascii_l", 18))

    reply = either.next()

    assert reply.matches == ["ascii_letters", "ascii_lowercase"]
    assert (reply.request, reply.start, reply.end, len(reply.types)) == (4, 11, 18, 2)


def test_completion_of_a_name_has_a_type(either: Guest) -> None:
    either.run("def frobnicate(): pass")
    either.send(wire.Complete(1, "frob", 4))

    assert either.next() == wire.CompleteReply(1, ["frobnicate"], ["function"], 0, 4)


def test_completion_survives_hostile_objects(either: Guest) -> None:
    either.run(
        "class Bad:\n    def __dir__(self): raise SystemExit\n"
        "    def __getattr__(self, name): raise KeyboardInterrupt\nbad = Bad()"
    )
    either.send(wire.Complete(1, "bad.", 4))

    # As in ipykernel, a traceback may come first.
    while not isinstance(either.next(), wire.CompleteReply):
        pass
    assert result(either.run("1")) == "1"


def test_completions_that_no_client_would_show_are_left_out(either: Guest) -> None:
    either.run(
        "class Many: pass\nmany = Many()\nfor i in range(5000): setattr(many, f'a{i:04}', i)\n"
        "setattr(many, 'a' * 5000, 1);"
    )
    either.send(wire.Complete(1, "many.a", 6))

    reply = either.next()

    assert len(reply.matches) == len(reply.types) == 1000
    assert max(map(len, reply.matches)) == 5


def test_inspection(either: Guest) -> None:
    either.run("def f(a):\n    'Says hello.'\n    return a")
    either.send(wire.Inspect(2, "f(", 1, 0))

    reply = either.next()

    assert reply.found
    assert "Says hello." in reply.text
    either.send(wire.Inspect(3, "f", 1, 1))
    assert "return" in either.next().text


def test_inspection_of_nothing(either: Guest) -> None:
    either.send(wire.Inspect(2, "no_such_name", 3, 0))

    assert either.next() == wire.InspectReply(2, found=False, text="")


@pytest.mark.parametrize(
    ("code", "status", "indent"),
    [
        pytest.param("1 + 1", "complete", "", id="complete"),
        pytest.param("for i in x:", "incomplete", "    ", id="block"),
        pytest.param("f(", "incomplete", None, id="bracket"),
        pytest.param("a b", "invalid", "", id="invalid"),
        pytest.param("await x", "complete", "", id="await"),
    ],
)
def test_is_complete(either: Guest, code: str, status: str, indent: str | None) -> None:
    either.send(wire.IsComplete(3, code))

    reply = either.next()

    assert reply.status == status
    assert indent is None or reply.indent == indent


# --- what the sandbox says ------------------------------------------------------------------


def test_a_missing_package_names_the_image(either: Guest) -> None:
    events = either.run("import no_such_package.sub")

    assert error(events).evalue == "No module named 'no_such_package'"
    assert "the image `some-image` has no `no_such_package`" in text(events, "stderr")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param("pip install requests", True, id="pip"),
        pytest.param("/usr/bin/python3 -m pip install x", True, id="module"),
        pytest.param("conda install --yes x", True, id="conda"),
        pytest.param("cd /tmp; pip3 install x", True, id="pip3"),
        pytest.param("pip list", False, id="no-install"),
        pytest.param("echo install", False, id="no-pip"),
        pytest.param("./pipeline install", False, id="other-word"),
    ],
)
def test_installers_are_known(command: str, expected: bool) -> None:
    assert hints.installs(command) is expected


def test_pip_says_that_the_network_is_off(ipython: Guest) -> None:
    ipython.run("import os; os.environ['PIP_INDEX_URL'] = 'http://127.0.0.1:9/'")

    events = ipython.run("%pip install no-such-package-at-all")

    assert hints.OFFLINE in text(events, "stderr")


def test_python_without_ipython_names_what_needs_it(plain: Guest) -> None:
    names = [
        error(plain.run(code)).evalue
        for code in ("x = 1\n%timeit x", "!ls", "print?", "%%bash\nls")
    ]

    assert names == [
        f"this image has no IPython: `{name}` needs it"
        for name in ("%timeit", "!ls", "print?", "%%bash")
    ]


# --- IPython --------------------------------------------------------------------------------


def test_help_goes_to_the_pager_as_text(ipython: Guest) -> None:
    (page,) = of(ipython.run("print?"), wire.Page)

    assert "Docstring:" in page.text


def test_the_notebook_cannot_be_written_to(ipython: Guest) -> None:
    events = ipython.run("get_ipython().set_next_input('evil', replace=True)")

    assert "evil" not in str(events)
    assert "may not write" in text(events, "stderr")


@pytest.mark.parametrize("magic", ["%connect_info", "%qtconsole", "%edit", "%autosave 5"])
def test_magics_that_cannot_work_say_so(ipython: Guest, magic: str) -> None:
    events = ipython.run(magic)

    assert len(events) == 2
    assert text(events, "stderr").count("\n") == 1


def test_files_are_shown_in_the_pager(ipython: Guest, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello")

    pages = [of(ipython.run(f"%{magic} {file}"), wire.Page) for magic in ("less", "more")]

    assert pages == [[wire.Page(1, "hello")], [wire.Page(2, "hello")]]


def test_shell_commands(ipython: Guest) -> None:
    events = ipython.run("!echo hello; exit 3\n_exit_code")

    assert text(events) == "hello\r\n"
    assert result(events) == "3"


def test_a_shell_command_can_be_interrupted(ipython: Guest) -> None:
    ipython.interrupt_after(0.5)
    started = time.monotonic()

    events = ipython.run("!sleep 30")

    assert events[-1].cell == 1
    assert time.monotonic() - started < 10


def test_a_progress_bar_is_one_line_of_text(either: Guest) -> None:
    skip_without(either, "tqdm")

    events = either.run("from tqdm.auto import tqdm\nfor i in tqdm(range(3), mininterval=0): pass")

    bar = text(events, "stderr")
    assert bar.count("\r") >= 3
    assert bar.count("\n") == 1
    assert "100%" in bar
    assert of(events, wire.DisplayData) == []


def test_cell_magics(ipython: Guest) -> None:
    assert text(ipython.run("%%bash\necho hello")) == "hello\n"


def test_comms_do_nothing(ipython: Guest) -> None:
    skip_without(ipython, "comm")

    events = ipython.run("import comm; c = comm.create_comm('t'); c.send({'a': 1}); c.close()")

    assert events == [wire.ExecuteReply(2, "ok", 0, 0)]


def test_history_is_in_memory_only(ipython: Guest) -> None:
    code = (
        "import threading\n"
        "print(threading.active_count(), get_ipython().history_manager.enabled)\n%history"
    )

    events = ipython.run(code)

    assert text(events).startswith("1 False\n")
    assert "%history" in text(events)


def test_code_that_breaks_the_shell_fails_its_cell_alone(ipython: Guest) -> None:
    ipython.run("get_ipython().run_cell = None")

    events = ipython.run("1")

    assert error(events).ename == "TypeError"
    assert result(ipython.run("await __import__('asyncio').sleep(0, 1)")) == "1"


# --- the same as ipykernel ------------------------------------------------------------------

SAME = [
    "print('a'); 1 + 1",
    "1/0",
    "def f(:",
    "def f(): raise KeyError('x')\ntry: f()\nexcept KeyError as e: raise ValueError(2) from e",
    "import sys; sys.exit(3)",
    "from IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'), metadata={})\nHTML('y')",
    "class A:\n    def __repr__(self): raise ValueError('no')\nA()",
    "import warnings; warnings.warn('careful')",
    "{'a': list(range(40)), 'b': 'x' * 70}",
    "!echo hello",
    "%%bash\necho a; exit 4",
    "%nosuch",
    "print?",
    "import sys; sys.exit",
    "%time 1",
    "x = 1\ndel x, y",
    "%matplotlib inline",
    "get_ipython().__class__.__name__, hasattr(get_ipython(), 'kernel'), __name__",
    "import os; [os.environ.get(n) for n in ('TERM', 'PAGER', 'FORCE_COLOR', 'MPLBACKEND')]",
    "raise ExceptionGroup('many', [ValueError(1)])",
    # Last: the coroutine that is never awaited is complained of later.
    "import asyncio; asyncio.run(asyncio.sleep(0))",
]


def normal(text: str) -> str:
    text = re.sub(r"ipykernel_\d+|\d+\.py|In\[\d+\]|\d[\d.e+]* [nµμm]?s\b", "*", text)
    return re.sub(r"0x[0-9a-f]+", "*", text)


@pytest.fixture(scope="module")
def shown_by_ipykernel() -> Iterator[Callable[[str], list[tuple[str, Any]]]]:
    manager = pytest.importorskip("jupyter_client.manager")
    kernel, client = manager.start_new_kernel(kernel_name="python3")

    def run(code: str) -> list[tuple[str, Any]]:
        shown: list[tuple[str, Any]] = []

        def take(message: dict[str, Any]) -> None:
            content, kind = message["content"], message["msg_type"]
            if kind == "stream":
                shown.append((content["name"], content["text"]))
            elif kind in ("display_data", "execute_result"):
                shown.append((kind, sorted(content["data"].items())))
            elif kind == "error":
                shown.append((content["ename"], (content["evalue"], content["traceback"])))

        reply = client.execute_interactive(code, output_hook=take, allow_stdin=False, timeout=30)
        shown += [("page", p["data"]["text/plain"]) for p in reply["content"].get("payload", [])]
        return [*shown, ("status", reply["content"]["status"])]

    yield run
    client.stop_channels()
    kernel.shutdown_kernel(now=True)


def shown_by_us(events: list[wire.Event]) -> list[tuple[str, Any]]:
    shown: list[tuple[str, Any]] = []
    for event in events:
        if isinstance(event, wire.Stream):
            shown.append((event.name, event.text))
        elif isinstance(event, (wire.DisplayData, wire.ExecuteResult)):
            kind = "display_data" if isinstance(event, wire.DisplayData) else "execute_result"
            shown.append((kind, sorted(zip(event.mimes, event.values, strict=True))))
        elif isinstance(event, wire.Error):
            shown.append((event.ename, (event.evalue, event.traceback)))
        elif isinstance(event, wire.Page):
            shown.append(("page", event.text))
        elif isinstance(event, wire.ExecuteReply):
            shown.append(("status", event.status))
    return shown


def merged(shown: list[tuple[str, Any]]) -> dict[str, str | list[Any]]:
    """Streams as text each, the rest in order: ipykernel cuts streams by time."""
    result: dict[str, Any] = {"stdout": "", "stderr": "", "rest": []}
    for kind, value in shown:
        if kind in ("stdout", "stderr"):
            result[kind] += value
        else:
            result["rest"].append((kind, value))
    return json.loads(normal(json.dumps(result, ensure_ascii=False)))


@pytest.mark.parametrize("code", SAME, ids=range(len(SAME)))
def test_the_same_is_shown_as_by_ipykernel(
    shown_by_ipykernel: Callable[[str], list[tuple[str, Any]]], code: str, ipython: Guest
) -> None:
    theirs = shown_by_ipykernel(code)

    ours = shown_by_us(ipython.run(code, allow_stdin=False))

    assert merged(ours) == merged(theirs)
