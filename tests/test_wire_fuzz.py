"""Whatever bytes arrive, `next_event` returns an event, `None`, or raises `RemoteProtocolError`.

Nothing else is raised, however the bytes are cut; time is linear in them, and memory bounded.
"""

from __future__ import annotations

import itertools
import json
import time
import tracemalloc
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox_kernel import wire
from sandbox_kernel.errors import LocalProtocolError, RemoteProtocolError
from sandbox_kernel.wire import MAX_EVENT, MAX_FRAME, Connection, Phase, Role
from tests.wire_talk import EVENTS, WORDS, drain, example, frame, hand_over, pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20

#: A conversation that has everything: parts, displays, input, a verdict.
CELL: list[Any] = [
    wire.Stream(1, "stdout", "line\n"),
    wire.DisplayData(1, ["image/png"], ["QUJD" * 20_000], ["image/png=640x480"], "id"),
    wire.InputRequest(1, "name? ", password=False),
    wire.Pong(1),
    wire.Error(1, "ValueError", "é😀", ["\x1b[31m"] * 3),
    wire.Verdict(1, "oom", "SIGKILL", 137, 5, "lost"),
    wire.Checkpoints(["0", "1"], "threads"),
    wire.Rewound(1, "restored", 1),
]


def sent(*events: Any) -> bytes:
    """What a guest with a running cell says."""
    _, guest = pair()
    return b"".join(map(guest.send, events))


@st.composite
def events(draw: st.DrawFn, types: list[type[Any]]) -> Any:
    """Any event of these types, whether or not it fits."""
    event = draw(st.sampled_from(types))
    plain = {
        # Surrogates too, which `st.text` leaves out unless told.
        str: st.text(st.characters(exclude_categories=()), max_size=20)
        | st.integers(0, 99_999).map(lambda size: "\x00é" * size),
        list[str]: st.lists(st.text(max_size=5), max_size=5)
        | st.integers(0, 10_001).map(lambda size: ["", "ab"] * size),
        bool: st.booleans(),
        int: st.integers(-5, 5) | st.integers(-(10**17), 10**17),
    }
    values = []
    for field, kind in get_type_hints(event).items():
        words = WORDS.get((event, field))
        values.append(draw(st.sampled_from(words) if words else plain[kind]))
    return event(*values)


def well_formed(value: Any) -> Any:
    if isinstance(value, list):
        return [well_formed(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


# --- the contract ---------------------------------------------------------------------------


@given(st.binary())
@settings(max_examples=1000)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("far", [Role.GUEST, Role.WORKER])
def test_garbage_is_rejected_and_nothing_worse(phase: Phase, far: Role, garbage: bytes) -> None:
    for side in pair(phase, far):
        for data in (garbage, frame(garbage), b"\x1e" + garbage):
            side.receive_data(data)
            read_on(side)


def read_on(side: Connection) -> list[Any]:
    try:
        return drain(side)
    except RemoteProtocolError:
        return []


TALK = sent(*CELL)
PIECES = [
    b"\x1e", b"\n", b"\r", b"}", b"{", b"[", b"]", b'"', b"\\", b",", b":", b"-", b"0", b"9" * 17,
    b"true", b"null", b"NaN", b"\\ud83d", b"\xff", b'"seq":', b'"type":', b'"parts":["text"]',
    b'"part"', b'"resume"', b'"ack"', b'"cell":', b"[" * 1000,
]  # fmt: skip


@given(st.data())
@settings(max_examples=1500, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_mutated_conversation_is_rejected_and_nothing_worse(data: st.DataObject) -> None:
    host, talk = pair()[0], TALK
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(talk)))
        end = min(len(talk), start + data.draw(st.sampled_from([0, 1, 5, 100, MAX_FRAME])))
        talk = talk[:start] + data.draw(st.sampled_from(PIECES) | st.binary()) + talk[end:]

    host.receive_data(talk)
    arrived = read_on(host)

    assert all(isinstance(event, tuple) for event in arrived)
    assert host.cell == 1


@given(st.lists(st.integers(0, len(TALK)), max_size=40))
@settings(deadline=None)
def test_chunks_do_not_matter(cuts: list[int]) -> None:
    host, arrived = pair()[0], []

    for start, end in itertools.pairwise([0, *sorted(cuts), len(TALK)]):
        host.receive_data(TALK[start:end])
        arrived += drain(host)

    assert arrived == CELL


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_event_arrives_or_is_not_sent(data: st.DataObject) -> None:
    speaker = data.draw(st.sampled_from(Role))
    host, far = pair(Phase.BUSY, Role.GUEST if speaker is Role.HOST else speaker)
    us, them = (host, far) if speaker is Role.HOST else (far, host)
    allowed = [event for event in EVENTS if Phase.BUSY in wire.MAY_SEND[speaker].get(event, {})]
    event = data.draw(events(allowed))

    try:
        bytes_sent = us.send(event)
    except LocalProtocolError:
        assert us.phase is Phase.BUSY
        return
    them.receive_data(bytes_sent)
    if isinstance(event, wire.Ack) and event.seq > 1:
        # The one value that only the other side can know to be wrong.
        with pytest.raises(RemoteProtocolError, match="never sent"):
            drain(them)
        return

    arrived = drain(them)

    expected = type(event)(*map(well_formed, event))
    assert arrived == ([] if isinstance(event, wire.Ack) else [expected])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_what_arrived_can_be_sent_on(data: st.DataObject) -> None:
    """A supervisor hands on whatever a worker may say, however the worker cut it."""
    supervisor, _ = pair(far=Role.WORKER)
    text = st.text(st.characters(exclude_categories=()))
    first = 0
    for texts in data.draw(st.lists(st.lists(text, min_size=1, max_size=4), min_size=1)):
        listed = json.dumps(texts, separators=(",", ":"))
        supervisor.receive_data(
            frame(f'{{"type":"part","field":"traceback","first":{first},"texts":{listed}}}')
        )
        first += len(texts) - data.draw(st.integers(0, 1))
    supervisor.receive_data(
        frame(
            '{"type":"error","cell":1,"ename":"E","evalue":"","traceback":[],"parts":["traceback"]}'
        )
    )
    [event] = drain(supervisor)
    host, guest = pair()

    arrived = hand_over(guest, host, event)

    assert arrived == [event]


# --- frames that cross ----------------------------------------------------------------------


@given(st.data())
@settings(max_examples=400, deadline=None)
@pytest.mark.parametrize("far", [Role.GUEST, Role.WORKER])
def test_no_word_that_may_be_sent_is_refused_however_frames_cross(
    far: Role, data: st.DataObject
) -> None:
    sides = pair(Phase.STARTING, far)
    roles = (Role.HOST, far)
    under_way: tuple[list[bytes], list[bytes]] = ([], [])
    for _ in range(data.draw(st.integers(1, 40))):
        who = data.draw(st.integers(0, 1))
        if under_way[who] and data.draw(st.booleans()):
            sides[who].receive_data(under_way[who].pop(0))
            drain(sides[who])
            continue
        us = sides[who]
        may = wire.MAY_SEND[roles[who]]
        allowed = [event for event in EVENTS if us.phase in may.get(event, {})]
        # A resume goes with a reconnect, which loses what is under way.
        allowed = [event for event in allowed if event is not wire.Resume]
        if not allowed:
            continue
        event = data.draw(st.sampled_from(allowed))
        cell = us.cell + 1 if event is wire.Execute else us.cell
        if event in (wire.Verdict, wire.Stream):
            cell = data.draw(st.integers(0, us.cell))
        under_way[1 - who].append(us.send(example(event, cell=cell)))

    for who in (0, 1):
        sides[who].receive_data(b"".join(under_way[who]))
        drain(sides[who])

    assert sides[0].cell == sides[1].cell
    if Phase.WAITING_INPUT not in (sides[0].phase, sides[1].phase):
        assert sides[0].phase is sides[1].phase


# --- repetition -----------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_no_cut_loses_doubles_or_reorders_anything(data: st.DataObject) -> None:
    host, guest = pair(window=64 * 1024, replay=True)
    events_sent = [wire.Stream(1, "stdout", f"{n}:" + "x" * (n % 7 * 9_000)) for n in range(25)]
    waiting, arrived, stream = list(events_sent), [], b""
    for _ in range(data.draw(st.integers(0, 6))):
        for event in waiting[: data.draw(st.integers(0, 8))]:
            stream += guest.send(event)
            waiting.remove(event)
        # Some arrives, some is lost with the connection, the rest comes to the next one.
        here = data.draw(st.integers(0, len(stream)))
        again = data.draw(st.integers(here, len(stream)))
        host.receive_data(stream[:here])
        arrived += drain(host)
        if host.ack_due is not None and data.draw(st.booleans()):
            guest.receive_data(host.send(host.ack_due))
            drain(guest)
        stream = stream[again:]
        [resume] = hand_over(host, guest, host.resume)
        stream += guest.replayed(resume.seq)

    stream += b"".join(map(guest.send, waiting))
    host.receive_data(stream)
    arrived += drain(host)

    assert arrived == events_sent


# --- time -----------------------------------------------------------------------------------


def fed(host: Connection, chunks: Iterator[bytes]) -> None:
    for chunk in chunks:
        host.receive_data(chunk)
        read_on(host)


def bytewise(data: bytes) -> Iterator[bytes]:
    return (data[i : i + 1] for i in range(len(data)))


def lines(size: int) -> bytes:
    return sent(*[wire.Stream(1, "stdout", "x" * 20_000)] * (size // 20_000))


def pongs(size: int) -> bytes:
    return sent(*[wire.Pong(1)] * (size // 40))


def parts(size: int) -> bytes:
    return sent(wire.Page(1, "\\" * (size // 2)))


def items(size: int) -> bytes:
    return sent(*[wire.Error(1, "", "", [""] * 9_000)] * (size // 27_000))


@pytest.mark.parametrize(
    ("phase", "chunks"),
    [
        pytest.param(Phase.BUSY, lambda size: bytewise(lines(size)), id="long-lines-bytewise"),
        pytest.param(Phase.BUSY, lambda size: bytewise(pongs(size)), id="tiny-frames-bytewise"),
        pytest.param(Phase.BUSY, lambda size: iter([pongs(size)]), id="tiny-frames-at-once"),
        pytest.param(Phase.BUSY, lambda size: iter([parts(size)]), id="parts-at-once"),
        pytest.param(Phase.BUSY, lambda size: iter([items(size)]), id="items-at-once"),
        pytest.param(
            Phase.STARTING, lambda size: bytewise(b"\x1e" * (size // 4)), id="noise-bytewise"
        ),
        pytest.param(
            Phase.STARTING, lambda size: iter([b'\x1e{"seq":1,' * (size // 44)]), id="noise-at-once"
        ),
    ],
)
def test_time_is_linear(phase: Phase, chunks: Callable[[int], Iterator[bytes]]) -> None:
    def seconds(size: int) -> float:
        best = float("inf")
        for _ in range(3):
            host, prepared = pair(phase)[0], list(chunks(size))
            start = time.process_time()
            fed(host, iter(prepared))
            best = min(best, time.process_time() - start)
        return best

    small, large = seconds(MIB // 8), seconds(MIB)

    # Eight times the bytes; a quadratic reader would take 64 times as long.
    assert large < small * 8 * 3 + 0.01


# --- memory ---------------------------------------------------------------------------------


def endless(first: bytes, rest: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield rest


def numbered(bodies: Iterator[str]) -> Iterator[bytes]:
    return (frame(f'{{"seq":{n},{body}}}') for n, body in enumerate(bodies, 2))


EMPTIES = ",".join(['""'] * 9_990)


def part_of(texts: str) -> Iterator[str]:
    """A first item, and then pieces without end that go on with it."""
    while True:
        yield f'"type":"part","field":"text","first":0,"texts":[{texts}]'


@pytest.mark.parametrize(
    ("phase", "chunks", "limit"),
    [
        pytest.param(
            Phase.BUSY, lambda: endless(b"\x1e", b"x" * 4096), MIB // 4, id="endless-frame"
        ),
        pytest.param(
            Phase.STARTING, lambda: endless(b"", b"x\x1e" * 2048), MIB // 4, id="endless-noise"
        ),
        pytest.param(
            Phase.STARTING,
            lambda: endless(b'\x1e{"seq":1,"type":"hello"', b" " * 4096),
            MIB // 4,
            id="endless-hello",
        ),
        pytest.param(
            Phase.BUSY,
            lambda: numbered(part_of('"' + "x" * 30_000 + '"')),
            2 * MAX_EVENT,
            id="endless-parts",
        ),
        pytest.param(
            Phase.BUSY,
            lambda: numbered(
                f'"type":"part","field":"{field}","first":0,"texts":[{EMPTIES}]'
                for field in ["text", "traceback", "mimes", "values", "sizes", "code", "detail"]
                * 99
            ),
            MAX_EVENT,
            id="items-of-every-field",
        ),
        pytest.param(
            Phase.BUSY,
            lambda: numbered(
                f'"type":"part","field":"{"x" * 30_000}{n}","first":0,"texts":["x"]'
                for n in range(10_000)
            ),
            MIB,
            id="fields-of-long-names",
        ),
    ],
)
def test_memory_is_bounded(phase: Phase, chunks: Callable[[], Iterator[bytes]], limit: int) -> None:
    host = pair(phase)[0]
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            feed_until_rejected(host, chunks())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < limit


def feed_until_rejected(host: Connection, chunks: Iterator[bytes]) -> None:
    for chunk in chunks:
        host.receive_data(chunk)
        drain(host)


def test_pieces_without_text_are_counted() -> None:
    host, pieces = pair()[0], itertools.islice(numbered(part_of('""')), 100_001)

    with pytest.raises(RemoteProtocolError, match="too many parts"):
        feed_until_rejected(host, pieces)


def test_noise_after_a_reconnect_is_not_kept() -> None:
    host, _ = pair()
    host.send(host.resume)
    tracemalloc.start()
    for _ in range(1000):
        host.receive_data(b"\x1e{x" * 4096)
        drain(host)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < MIB // 4


def test_10_mib_cost_a_few_times_their_size() -> None:
    data = sent(wire.DisplayData(1, ["image/png"], ["A" * (10 * MIB)], [], ""))
    host, _ = pair()
    tracemalloc.start()
    for start in range(0, len(data), 65_536):
        host.receive_data(data[start : start + 65_536])
        drain(host)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 25 * MIB
