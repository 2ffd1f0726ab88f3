"""The ring: what is written is what is read, whole and in order, and what is hostile is refused."""

from __future__ import annotations

import os
import signal
import time
from math import inf
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.errors import RemoteProtocolError
from sandbox_kernel.guest import ring, streams
from sandbox_kernel.guest.ring import Text

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable
    from types import FrameType

MARK = 18


class Pair:
    """A writer and a reader of one ring, in one process."""

    def __init__(self, wait: Callable[[Pair], object] | None = None) -> None:
        self._wait = wait or Pair.take
        self.memory = ring.allocate()
        self.reader = ring.Reader(self.memory)
        self.rung = 0
        self.texts: list[Text] = []
        self.writer = ring.Writer(self.memory, self._ring_bell, self._wait_for_room)

    def _ring_bell(self) -> None:
        self.rung += 1

    def _wait_for_room(self) -> None:
        self._wait(self)

    def take(self, *, final: bool = False) -> list[Text]:
        texts = self.reader.take(final=final)
        self.texts += texts
        return texts

    def write(self, text: str, cell: int = 1, name: str = "stdout") -> None:
        self.writer.write(cell, name, text.encode())

    def flood(self, text: str = "x") -> int:
        """Write until somebody would have to wait; return how often."""
        count = 0
        while self.room() > MARK + len(text):
            self.write(text)
            count += 1
        return count

    def room(self) -> int:
        head, tail = (header(self.memory)[at] for at in (0, 8))
        return ring.SIZE - (head - tail)


def header(memory: mmap.mmap) -> memoryview:
    return memoryview(memory)[ring.SIZE : ring.BYTES].cast("Q")


def merged(texts: list[Text]) -> list[tuple[int, str, str]]:
    """Neighbours of one stream and cell as one; each piece must hold whole characters."""
    runs: list[tuple[int, str, str]] = []
    for cell, name, data in texts:
        text = data.decode()
        if runs and runs[-1][:2] == (cell, name):
            text = runs.pop()[2] + text
        runs.append((cell, name, text))
    return runs


# --- what is written is what is read ----------------------------------------------------------

WRITES = st.lists(
    st.tuples(
        st.integers(0, 2**64 - 1),
        st.sampled_from(["stdout", "stderr"]),
        st.builds(
            lambda text, times: text * times,
            st.text(st.characters(codec="utf-8"), max_size=9),
            st.sampled_from([1, 1, 1, 7_000, 70_000]),
        ),
    ),
    max_size=12,
)


@given(WRITES, st.sets(st.integers(0, 11)))
def test_what_is_written_is_read(writes: list[tuple[int, str, str]], looks: set[int]) -> None:
    pair = Pair()

    for number, (cell, name, text) in enumerate(writes):
        pair.write(text, cell, name)
        if number in looks:
            pair.take()
    pair.take()

    written = [Text(cell, name, text.encode()) for cell, name, text in writes if text]
    assert merged(pair.texts) == merged(written)


def test_text_larger_than_the_ring_comes_whole() -> None:
    pair = Pair()
    text = "aé€\U0001f600" * 200_000

    pair.write(text)

    pair.take()
    assert merged(pair.texts) == [(1, "stdout", text)]


def test_neighbours_of_a_stream_need_no_marks() -> None:
    pair = Pair()
    pair.write("a")
    before = pair.room()

    pair.write("b" * 100)

    assert before - pair.room() == 100


# --- interruptions ----------------------------------------------------------------------------


def test_interrupted_wait_leaves_the_ring_whole() -> None:
    def interrupt(_pair: Pair) -> None:
        raise KeyboardInterrupt

    pair = Pair(wait=interrupt)
    pair.write("first")
    with pytest.raises(KeyboardInterrupt):
        pair.write("€" * 200_000, name="stderr")
    pair.take()

    pair.write("after")

    pair.take()
    first, cut, after = merged(pair.texts)
    assert (first, after) == ((1, "stdout", "first"), (1, "stdout", "after"))
    assert 0 < len(cut[2]) < 200_000


def test_text_that_interrupts_a_write_comes_behind_it() -> None:
    waits = 0

    def print_once(pair: Pair) -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            pair.write("handler", name="stderr")
            pair.writer.flush()
        pair.take()

    pair = Pair(wait=print_once)
    pair.flood()
    pair.take()
    pair.flood()

    pair.write("y" * 10_000)

    pair.take()
    assert merged(pair.texts)[-1] == (1, "stderr", "handler")
    assert merged(pair.texts)[-2][2].endswith("x" + "y" * 10_000)


def test_what_an_interrupted_write_has_left_is_flushed() -> None:
    def print_and_fail(pair: Pair) -> None:
        pair.write("handler")
        raise KeyboardInterrupt

    pair = Pair(wait=print_and_fail)
    pair.flood("xx")
    with pytest.raises(KeyboardInterrupt):
        pair.write("y" * 10_000)
    pair.take()

    pair.writer.flush()

    assert [text.data for text in pair.take()] == [b"handler"]


def test_alarms_that_raise_tear_nothing() -> None:
    class LateError(Exception):
        pass

    def raise_it(_number: int, frame: FrameType | None) -> None:
        # Not in the test's own code, which catches nothing.
        if frame is not None and frame.f_code.co_filename == ring.__file__:
            raise LateError

    memory = ring.allocate()
    reader = ring.Reader(memory)
    pid = os.fork()
    if pid == 0:
        writer = ring.Writer(memory, lambda: None, lambda: time.sleep(0.0005))
        signal.signal(signal.SIGALRM, raise_it)
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
        deadline = time.monotonic() + 1.5
        number = interrupted = 0
        while time.monotonic() < deadline:
            try:
                number += 1
                writer.write(number % 3, "stdout", b"<%d:%b>" % (number, b"x" * (number % 300)))
            except LateError:
                interrupted += 1
        os._exit(0 if interrupted > 100 else 1)

    data, ended = b"", (0, 0)
    while ended == (0, 0):
        ended = os.waitpid(pid, os.WNOHANG)
        data += b"".join(text.data for text in reader.take())
        time.sleep(0.001)

    assert ended == (pid, 0)
    lines = data[:-1].split(b">")
    numbers = [int(line[1 : line.index(b":")]) for line in lines]
    assert len(numbers) > 10_000
    assert numbers == sorted(set(numbers))
    assert all(
        line == b"<%d:%b" % (number, b"x" * (number % 300))
        for line, number in zip(lines, numbers, strict=True)
    )


# --- order with events ------------------------------------------------------------------------


def test_text_behind_an_event_waits_for_it() -> None:
    pair = Pair()
    pair.write("a")
    pair.writer.events += 1
    pair.write("b")

    before = pair.take()
    pair.reader.event_received()
    after = pair.take()

    assert (before, after) == ([Text(1, "stdout", b"a")], [Text(1, "stdout", b"b")])


def test_the_event_that_was_waited_for_is_followed_by_a_look() -> None:
    pair = Pair()
    pair.writer.events += 1
    pair.write("a")
    pair.reader.look(now=5.0)
    planned = pair.reader.look_at

    pair.reader.event_received()

    assert planned == inf
    assert pair.reader.look_at <= 5.0


def test_last_words_wait_for_no_event() -> None:
    pair = Pair()
    pair.writer.events += 1
    pair.write("a")

    assert pair.take(final=True) == [Text(1, "stdout", b"a")]


# --- waking -----------------------------------------------------------------------------------


def test_a_sleeping_reader_is_woken_once() -> None:
    pair = Pair()
    pair.reader.look(now=1.0)

    for text in "abc":
        pair.write(text)

    assert pair.rung == 1


def test_a_reader_that_looks_again_is_not_woken() -> None:
    pair = Pair()
    pair.write("a")
    pair.reader.look(now=1.0)

    pair.write("b")

    assert pair.rung == 0
    assert pair.reader.look_at == 1.0 + streams.PAUSE


def test_each_sleep_is_woken() -> None:
    pair = Pair()
    for now in (1.0, 2.0):
        pair.reader.look(now)
        pair.write("a")
        pair.reader.woken(now)
        pair.take()

    assert pair.rung == 2


def test_the_first_look_after_quiet_waits_for_the_rest_of_the_line() -> None:
    pair = Pair()
    pair.reader.look(now=1.0)

    pair.reader.woken(now=3.0)

    assert pair.reader.look_at == 3.0 + ring.SETTLE


def test_a_writer_that_waits_for_room_is_looked_at_at_once() -> None:
    pair = Pair()
    pair.write("a")
    pair.reader.look(now=1.0)

    pair.reader.woken(now=1.001)

    assert pair.reader.look_at == 1.001


def test_quiet_is_sleep() -> None:
    pair = Pair()

    texts = pair.reader.look(now=1.0)

    assert texts == []
    assert pair.reader.asleep
    assert not pair.reader.unread


# --- another writer ---------------------------------------------------------------------------


def test_a_copy_goes_on_in_an_empty_ring() -> None:
    pair = Pair()
    pair.writer.events += 3
    pair.write("lost" * 1000, name="stderr")
    header(pair.memory)[0] = 2**64 - 1

    pair.reader.renew()
    pair.writer.resync()
    pair.write("x" * (ring.SIZE - MARK), cell=2)

    assert merged(pair.take()) == [(2, "stdout", "x" * (ring.SIZE - MARK))]


# --- a hostile writer -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "data"),
    [
        pytest.param(ring.SIZE + 1, b"", id="more-than-there-is-room-for"),
        pytest.param(2**64 - 1, b"", id="far-ahead"),
        pytest.param(1, b"\xff", id="half-a-mark"),
        pytest.param(MARK, b"\xff\x03" + bytes(16), id="no-stream"),
        pytest.param(MARK + 1, b"x\xff\x00" + bytes(16), id="no-stream-behind-text"),
    ],
)
def test_what_breaks_the_format_is_refused(head: int, data: bytes) -> None:
    pair = Pair()
    pair.memory[: len(data)] = data
    header(pair.memory)[0] = head

    with pytest.raises(RemoteProtocolError):
        pair.take()


def test_a_head_that_goes_back_is_refused() -> None:
    pair = Pair()
    pair.write("abc")
    pair.take()
    header(pair.memory)[0] = 1

    with pytest.raises(RemoteProtocolError):
        pair.take()


def test_the_writer_cannot_move_the_tail() -> None:
    pair = Pair()
    pair.write("abc")
    pair.take()
    header(pair.memory)[8] = 0

    pair.write("d")

    assert pair.take() == [Text(1, "stdout", b"d")]


@given(st.binary(max_size=400), st.integers(0, ring.SIZE), st.integers(0, 2**64 - 1))
def test_whatever_stands_there_is_text_or_refused(data: bytes, start: int, events: int) -> None:
    pair = Pair()
    header(pair.memory)[0] = start
    pair.take()
    for offset, byte in enumerate(data):
        pair.memory[(start + offset) % ring.SIZE] = byte
    header(pair.memory)[0] = start + len(data)
    header(pair.memory)[16] = events

    try:
        texts = pair.take(final=True)
    except RemoteProtocolError:
        return

    assert sum(len(text.data) for text in texts) <= len(data)
    assert not any(b"\xff" in text.data for text in texts)
