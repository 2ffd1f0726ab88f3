"""What the wire carries, skips and repeats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandbox_kernel import wire
from sandbox_kernel.errors import LocalProtocolError, RemoteProtocolError
from sandbox_kernel.wire import MAX_FRAME, MAX_ITEMS, Phase, Role
from tests.wire_talk import EVENTS, HELLO, drain, example, frame, hand_over, pair, talk

STREAM = '{"seq":2,"type":"stream","cell":1,"name":"stdout","text":"x"}'


# --- what it carries ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(wire.Stream(1, "stderr", ""), id="empty-text"),
        pytest.param(wire.Stream(1, "stdout", '"\\\x1e\r\n\x00\x7f'), id="characters-of-the-frame"),
        pytest.param(wire.Stream(1, "stdout", "é€😀\u2028"), id="unicode"),
        pytest.param(wire.Stream(1, "stdout", "x" * (10 << 20)), id="10-MiB"),
        pytest.param(wire.Stream(1, "stdout", "😀" * 200_000), id="12-bytes-a-character"),
        pytest.param(wire.Stream(1, "stdout", "\x00" * 200_000), id="6-bytes-a-character"),
        pytest.param(wire.Error(1, "E", "", []), id="empty-list"),
        pytest.param(wire.Error(1, "E", "", [""]), id="list-of-nothing"),
        pytest.param(wire.Error(1, "E" * 40_000, "", ["é" * 40_000, ""]), id="two-long-fields"),
        pytest.param(wire.Error(1, "E", "v", ["a", "b" * 99_999, "c", "d" * 99_999]), id="mixed"),
        pytest.param(wire.Error(1, "E", "v", [""] * MAX_ITEMS), id="most-items"),
        pytest.param(wire.DisplayData(1, ["a"], ["%s %d {}"], [], ""), id="template-characters"),
        pytest.param(wire.ExecuteReply(1, "error", -9, 0), id="negative"),
        pytest.param(wire.ExecuteReply(1, "ok", 0, 10**wire.MAX_DIGITS - 1), id="largest-number"),
    ],
)
def test_event_arrives_as_it_was_sent(event: Any) -> None:
    host, guest = pair()

    arrived = hand_over(guest, host, event)

    assert arrived == [event]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x", id="1-byte"),
        pytest.param("\x00", id="6-bytes"),
        pytest.param("😀", id="12-bytes"),
        pytest.param("x" * 8_000 + "😀" * 2_000, id="mixed"),
    ],
)
def test_largest_event_arrives_and_can_be_sent_on(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_EVENT", 200_000)
    supervisor, worker = pair(far=Role.WORKER)
    host, guest = pair()
    event = wire.Error(1, text * (190_000 // len(text)), "v" * 9_900, ["t"] * 100)

    arrived = hand_over(guest, host, *hand_over(worker, supervisor, event))

    assert arrived == [event]
    with pytest.raises(LocalProtocolError, match="larger than"):
        guest.send(event._replace(evalue="v" * 9_901))


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_arrives(event: type[Any]) -> None:
    speaker = next(role for role in wire.MAY_SEND if event in wire.MAY_SEND[role])
    phase = next(iter(wire.MAY_SEND[speaker][event]))
    us, them = talk(speaker, phase)
    sent = example(event, cell=us.cell + (event is wire.Execute))

    arrived = hand_over(us, them, sent)

    assert arrived == ([] if event is wire.Ack else [sent])
    assert us.phase is them.phase


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        pytest.param("\ud800", "\ufffd", id="alone"),
        pytest.param("a\udfffb", "a\ufffdb", id="in-text"),
        pytest.param("\ud83d\ude00", "😀", id="a-pair-is-a-character"),
    ],
)
@pytest.mark.parametrize("padding", [0, 40_000])
def test_surrogates_are_made_well_formed(text: str, seen: str, padding: int) -> None:
    host, guest = pair()

    arrived = hand_over(guest, host, wire.Error(1, text + "x" * padding, "", [text]))

    assert arrived == [wire.Error(1, seen + "x" * padding, "", [seen])]


def test_halves_of_a_character_in_two_parts_stay_well_formed() -> None:
    host, _ = pair()
    for number, half in ((2, r"\ud83d"), (3, r"\ude00")):
        host.receive_data(
            frame(f'{{"seq":{number},"type":"part","field":"text","first":0,"texts":["{half}"]}}')
        )
    host.receive_data(frame('{"seq":4,"type":"page","cell":1,"text":"","parts":["text"]}'))

    assert drain(host) == [wire.Page(1, "\ufffd\ufffd")]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(r'"type":"stream","cell":1,"name":"stdout","text":"\ud800"', id="stream"),
        pytest.param(r'"type":"page","cell":1,"text":"\ud800"', id="string"),
        pytest.param(
            r'"type":"error","cell":1,"ename":"","evalue":"","traceback":["\ud800"]', id="list"
        ),
    ],
)
def test_what_a_hostile_sender_writes_is_made_well_formed(body: str) -> None:
    host, _ = pair()
    host.receive_data(frame(f'{{"seq":2,{body}}}'))

    [event] = drain(host)

    assert event[-1] in ("\ufffd", ["\ufffd"])


def test_frames_of_any_size_stay_within_the_limit() -> None:
    _, guest = pair()

    data = b"".join(
        guest.send(event)
        for size in range(MAX_FRAME - 2_200, MAX_FRAME + 100, 7)
        for event in (wire.Page(1, "x" * size), wire.Error(1, "", "", ["x" * (size // 2)] * 2))
    )

    assert max(map(len, data.splitlines(keepends=True))) <= MAX_FRAME


def test_frames_are_ascii_lines_of_flat_json_within_the_limit() -> None:
    _, guest = pair()

    data = guest.send(wire.Error(1, "é", "😀" * 50_000, ["\x1e\n" * 50_000]))

    lines = data.split(b"\n")
    assert lines.pop() == b""
    assert all(line.startswith(b"\x1e") and len(line) < MAX_FRAME for line in lines)
    frames = [json.loads(line[1:]) for line in lines]
    assert [each["seq"] for each in frames] == list(range(2, len(frames) + 2))
    assert [each["type"] for each in frames] == ["part"] * (len(frames) - 1) + ["error"]


def test_frame_of_the_limit_is_taken_and_one_more_byte_is_not() -> None:
    def padded(size: int) -> bytes:
        empty = frame('{"seq":2,"type":"page","cell":1,"text":""}')
        return empty.replace(b'""', b'"' + b"x" * (size - len(empty)) + b'"')

    host, other = pair()[0], pair()[0]
    host.receive_data(padded(MAX_FRAME))
    other.receive_data(padded(MAX_FRAME + 1))

    assert [type(event) for event in drain(host)] == [wire.Page]
    with pytest.raises(RemoteProtocolError, match="longer than 32768 bytes"):
        drain(other)


# --- what it skips --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(b"Welcome!\r\n", id="banner"),
        pytest.param(b"no newline", id="no-newline"),
        pytest.param(b"\x1e", id="mark-of-a-frame"),
        pytest.param(b'\x1e{"seq":1,', id="beginning-of-a-frame"),
        pytest.param(b'\x1e{"seq":1,\x1e{"seq":1,"typ', id="two-beginnings"),
        pytest.param(frame("{}"), id="frame-of-nothing"),
        pytest.param(frame(STREAM), id="another-frame"),
        pytest.param(b"\x00\xff\xfe", id="binary"),
    ],
)
@pytest.mark.parametrize("step", [1, 1_000_000])
def test_what_comes_before_the_first_frame_is_skipped_and_shown(noise: bytes, step: int) -> None:
    host, guest = pair(Phase.STARTING)
    data = noise + guest.send(HELLO)

    arrived = []
    for start in range(0, len(data), step):
        host.receive_data(data[start : start + step])
        arrived += drain(host)

    assert arrived == [HELLO]
    assert host.skipped == noise


def test_skipped_bytes_are_shown_even_if_nothing_follows() -> None:
    host, _ = pair(Phase.STARTING)
    host.receive_data(b"python3: not found\n")

    assert host.next_event() is None
    assert host.skipped == b"python3: not found\n"


def test_endless_noise_is_rejected_and_only_its_beginning_kept() -> None:
    host, _ = pair(Phase.STARTING)

    host.receive_data(b"y\n" * (wire.MAX_SKIPPED // 2))
    assert host.next_event() is None
    host.receive_data(b"y")

    with pytest.raises(RemoteProtocolError, match="no frame came"):
        host.next_event()
    assert host.skipped == b"y\n" * (wire.KEPT_SKIPPED // 2)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            frame('{"seq":1,"type":"stream","cell":0,"name":"stdout","text":""}'), id="stream"
        ),
        pytest.param(frame('{"seq":1,"type":"hello","version":1}'), id="hello-of-another-form"),
    ],
)
def test_first_frame_must_be_a_hello(data: bytes) -> None:
    host, _ = pair(Phase.STARTING)
    host.receive_data(b"banner\n" + data)

    with pytest.raises(RemoteProtocolError):
        host.next_event()


def test_worker_has_no_banner() -> None:
    supervisor, _ = pair(Phase.STARTING, Role.WORKER)
    supervisor.receive_data(b"Welcome!\n")

    with pytest.raises(RemoteProtocolError, match="outside of a frame"):
        supervisor.next_event()


# --- what it repeats ------------------------------------------------------------------------

LINE = wire.Stream(1, "stdout", "x" * 100)


def test_full_window_is_emptied_by_an_acknowledgement() -> None:
    host, guest = pair(window=4096)
    while not guest.window_full:
        hand_over(guest, host, LINE)
    assert host.ack_due is not None

    hand_over(host, guest, host.ack_due)

    assert not guest.window_full
    assert guest.unacked_bytes == 0
    assert host.ack_due is None


def test_acknowledgement_is_due_at_a_quarter_of_the_window() -> None:
    host, guest = pair(window=4096)

    arrived = 0
    while host.ack_due is None:
        hand_over(guest, host, LINE)
        arrived = guest.unacked_bytes

    assert 1024 <= arrived < 1024 + len(guest.send(LINE))


def test_acknowledgement_of_what_was_never_sent_is_rejected() -> None:
    host, guest = pair()
    guest.receive_data(host.send(wire.Ack(99)))

    with pytest.raises(RemoteProtocolError, match="never sent"):
        guest.next_event()


def test_older_acknowledgement_changes_nothing() -> None:
    host, guest = pair()
    guest.send(LINE)
    hand_over(host, guest, wire.Ack(2))

    hand_over(host, guest, wire.Ack(1))

    assert guest.unacked_bytes == 0


@pytest.mark.parametrize(
    ("replay", "seq", "why"),
    [
        pytest.param(False, 1, "not kept", id="keeps-nothing"),
        pytest.param(True, 0, "not kept", id="acknowledged-before"),
        pytest.param(True, 3, "never sent", id="never-sent"),
    ],
)
def test_what_cannot_be_repeated_is_rejected(replay: bool, seq: int, why: str) -> None:
    host, guest = pair(replay=replay)
    guest.send(LINE)
    hand_over(host, guest, wire.Ack(1))

    with pytest.raises(RemoteProtocolError, match=why):
        guest.replayed(seq)


def test_resume_acknowledges_what_had_arrived() -> None:
    host, guest = pair(replay=True)
    hand_over(guest, host, LINE, LINE)
    lost = guest.send(LINE)

    again = guest.replayed(host.resume.seq)

    assert again == frame('{"type":"resume","seq":3}') + lost
    assert guest.unacked_bytes == len(lost)


def test_resume_finds_its_place_after_half_a_frame() -> None:
    host, guest = pair(replay=True)
    cut, later = guest.send(LINE), guest.send(wire.Stream(1, "stdout", "later"))
    host.receive_data(cut[:30])
    drain(host)
    [resume] = hand_over(host, guest, host.resume)

    # The new attachment begins in the middle, and overtakes the answer.
    host.receive_data(cut[50:] + later + guest.replayed(resume.seq))

    assert drain(host) == [LINE, wire.Stream(1, "stdout", "later")]


def test_second_reconnect_forgets_what_the_first_left_unread() -> None:
    host, guest = pair(replay=True)
    guest.send(LINE)
    guest.receive_data(host.send(host.resume))
    host.receive_data(guest.replayed(1)[:-20])
    guest.receive_data(host.send(host.resume))

    host.receive_data(b"the rest of something\n" + guest.replayed(1))

    assert drain(host) == [LINE]


def test_repetition_of_what_was_taken_is_not_doubled() -> None:
    host, guest = pair(replay=True)
    guest.receive_data(host.send(host.resume) + host.send(host.resume))
    both = b"".join(guest.replayed(event.seq) + guest.send(LINE) for event in drain(guest))
    host.receive_data(both + guest.send(example(wire.ExecuteReply)))

    assert drain(host) == [LINE, LINE, example(wire.ExecuteReply)]


def test_repetition_from_further_on_is_rejected() -> None:
    host, guest = pair(replay=True)
    hand_over(host, guest, host.resume)
    host.receive_data(guest.replayed(1) + frame('{"type":"resume","seq":5}'))

    with pytest.raises(RemoteProtocolError, match="not asked for"):
        host.next_event()


def test_lost_hello_comes_again() -> None:
    host, guest = pair(Phase.STARTING, replay=True)
    guest.send(HELLO)
    [resume] = hand_over(host, guest, host.resume)

    host.receive_data(guest.replayed(resume.seq))

    assert drain(host) == [HELLO]
