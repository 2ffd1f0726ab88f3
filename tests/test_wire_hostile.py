"""What the wire refuses: by its table, and whatever a hostile far side writes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from sandbox_kernel import wire
from sandbox_kernel.errors import LocalProtocolError, RemoteProtocolError
from sandbox_kernel.wire import MAX_EVENT, MAX_FRAME, MAX_ITEMS, Phase, Role
from tests.wire_talk import EVENTS, drain, example, frame, hand_over, pair, talk

ROLES = [(Role.HOST, Role.GUEST), (Role.GUEST, Role.HOST), (Role.WORKER, Role.HOST)]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("speaker", "listener"), ROLES)
def test_table_decides_what_may_be_sent(
    speaker: Role, listener: Role, event: type[Any], phase: Phase
) -> None:
    following = wire.MAY_SEND[speaker].get(event, {}).get(phase)
    us, _ = talk(speaker, phase)
    sent = example(event, cell=us.cell + (event is wire.Execute))

    if following is not None:
        us.send(sent)
        assert us.phase is following
        return
    with pytest.raises(LocalProtocolError, match=f"while {phase.value}"):
        us.send(sent)
    assert us.phase is phase


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("speaker", "listener"), ROLES)
def test_table_decides_what_may_arrive(
    speaker: Role, listener: Role, event: type[Any], phase: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = wire.MAY_SEND[speaker].get(event, {}).get(phase)
    us, them = talk(speaker, phase)
    sent = example(event, cell=us.cell + (event is wire.Execute))
    # A sender that keeps to no table.
    monkeypatch.setattr(us, "_step", lambda *_: "")
    them.receive_data(us.send(sent))

    if following is not None:
        drain(them)
        assert them.phase is following
        return
    with pytest.raises(RemoteProtocolError):
        drain(them)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        pytest.param(wire.Stream(2, "stdout", ""), "of cell 2, which was never begun", id="stream"),
        pytest.param(wire.Verdict(2, "oom", "", 0, 0, "lost"), "never begun", id="verdict"),
        pytest.param(wire.ExecuteReply(0, "ok", 0, 0), "cell 0, which does not run", id="reply"),
    ],
)
def test_guest_cannot_speak_of_a_cell_that_is_not_there(event: Any, why: str) -> None:
    host, guest = pair()
    guest.cell = event.cell
    data = guest.send(event)
    host.receive_data(data)

    with pytest.raises(RemoteProtocolError, match=why):
        host.next_event()
    with pytest.raises(LocalProtocolError, match=why):
        pair()[1].send(event)


def test_cell_numbers_only_grow() -> None:
    host, guest = pair()
    hand_over(guest, host, example(wire.ExecuteReply))

    with pytest.raises(LocalProtocolError, match="of cell 1 after cell 1"):
        host.send(example(wire.Execute, cell=1))
    assert host.phase is Phase.IDLE


@pytest.mark.parametrize("cell", [0, 1])
def test_verdict_on_another_cell_does_not_end_the_one_that_runs(cell: int) -> None:
    host, guest = pair()
    hand_over(guest, host, example(wire.ExecuteReply))
    hand_over(host, guest, example(wire.Execute, cell=2))

    arrived = hand_over(guest, host, wire.Verdict(cell, "exited", "status 3", 3, 0, "lost"))

    assert arrived[0].cell == cell
    assert host.phase is guest.phase is Phase.BUSY


def test_verdict_on_the_running_cell_ends_it() -> None:
    host, guest = pair(Phase.WAITING_INPUT)

    hand_over(guest, host, wire.Verdict(1, "killed", "SIGKILL", 137, 0, "lost"))

    assert host.phase is guest.phase is Phase.IDLE


def test_interrupted_input_may_be_asked_again() -> None:
    host, guest = pair(Phase.WAITING_INPUT)
    hand_over(host, guest, wire.Interrupt(1))

    arrived = hand_over(guest, host, wire.InputRequest(1, "again? ", password=False))

    assert arrived == [wire.InputRequest(1, "again? ", password=False)]
    assert host.phase is Phase.WAITING_INPUT


def test_reply_to_input_may_cross_the_end_of_its_cell() -> None:
    host, guest = pair(Phase.WAITING_INPUT)
    reply = host.send(wire.InputReply(1, "too late"))
    hand_over(guest, host, example(wire.ExecuteReply))
    guest.receive_data(reply)

    assert drain(guest) == [wire.InputReply(1, "too late")]
    assert host.phase is guest.phase is Phase.IDLE


def test_output_under_way_at_shutdown_is_no_fault() -> None:
    host, guest = pair()
    data = guest.send(wire.Stream(1, "stdout", "x")) + guest.send(example(wire.ExecuteReply))
    host.send(wire.Shutdown())
    host.receive_data(data)

    assert [type(event) for event in drain(host)] == [wire.Stream, wire.ExecuteReply]
    assert host.phase is Phase.CLOSING


GOOD = '{"seq":2,"type":"stream","cell":1,"name":"stdout","text":"x"}'
REPLY = '{"seq":2,"type":"execute_reply","cell":1,"status":"ok","exit_code":0,"dropped":0}'
COMPLETE = '{"seq":2,"type":"complete_reply","request":1,"matches":[],"types":[],"start":0,"end":0}'
CLEAR = '{"seq":2,"type":"clear_output","cell":1,"wait":true}'


def edited(body: str, old: str, new: str) -> bytes:
    assert old in body
    return frame(body.replace(old, new, 1))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"\x1e" + b"x" * MAX_FRAME, "longer than", id="endless-frame"),
        pytest.param(b"\xff\xff\xff\xff", "outside of a frame", id="length-prefix"),
        pytest.param(b"x" + frame(GOOD), "outside of a frame", id="byte-before-a-frame"),
        pytest.param(b"\n" + frame(GOOD), "outside of a frame", id="blank-line"),
        pytest.param(frame(""), "no known type", id="empty-frame"),
        pytest.param(frame("{}"), "no known type", id="empty-object"),
        pytest.param(frame("[" * 30_000), "no known type", id="depth-bomb"),
        pytest.param(frame('{"a":' * 6_000), "no known type", id="object-bomb"),
        pytest.param(frame("null"), "no known type", id="null"),
        pytest.param(frame("[]"), "no known type", id="list"),
        pytest.param(frame(GOOD.encode("utf-16")), "not ASCII", id="utf-16"),
        pytest.param(frame(b"\xef\xbb\xbf" + GOOD.encode()), "not ASCII", id="byte-order-mark"),
        pytest.param(edited(GOOD, "x", "é"), "not ASCII", id="bare-unicode"),
        pytest.param(edited(GOOD, '"x"', '"x'), "stream.text", id="open-string"),
        pytest.param(edited(GOOD, '"x"', '"\x1f"'), "stream.text", id="bare-control-character"),
        pytest.param(edited(GOOD, '"x"', '"\x1e"'), "stream.text", id="frame-in-a-frame"),
        pytest.param(edited(GOOD, '"x"', r'"\x"'), "stream.text", id="unknown-escape"),
        pytest.param(edited(GOOD, '"x"', r'"\u12"'), "stream.text", id="short-escape"),
        pytest.param(edited(GOOD, '"x"', "1"), "stream.text", id="number-for-string"),
        pytest.param(edited(GOOD, '"x"', "null"), "stream.text", id="null-for-string"),
        pytest.param(edited(GOOD, '"x"', '["x"]'), "stream.text", id="list-for-string"),
        pytest.param(edited(GOOD, "stdout", "stdin"), "stream.name", id="unknown-word"),
        pytest.param(edited(GOOD, "stream", "STREAM"), "no known type", id="type-in-capitals"),
        pytest.param(edited(GOOD, "stream", "comm_open"), "no known type", id="unknown-type"),
        pytest.param(edited(GOOD, "}", "}\r"), "does not end", id="carriage-return"),
        pytest.param(edited(GOOD, "}", "} "), "does not end", id="blank-at-the-end"),
        pytest.param(edited(GOOD, "}", "}{}"), "does not end", id="two-objects"),
        pytest.param(edited(GOOD, "}", ""), "does not end", id="no-brace"),
        pytest.param(edited(GOOD, ":1", ": 1"), "stream.cell", id="blank-inside"),
        pytest.param(edited(GOOD, '"cell":1,', ""), "stream.cell", id="missing-key"),
        pytest.param(edited(GOOD, "}", ',"text":"y"}'), "does not end", id="duplicate-key"),
        pytest.param(edited(GOOD, "{", '{"seq":2,'), "no known type", id="duplicate-number"),
        pytest.param(edited(GOOD, "}", ',"msg_type":"stream"}'), "does not end", id="msg-type"),
        pytest.param(edited(GOOD, "}", ',"parent_header":{}}'), "does not end", id="parent-header"),
        pytest.param(edited(REPLY, "}", ',"payload":[]}'), "does not end", id="payload"),
        pytest.param(edited(REPLY, "}", ',"execution_count":9}'), "does not end", id="count"),
        pytest.param(edited(REPLY, "}", ',"buffers":[""]}'), "does not end", id="buffers"),
        pytest.param(edited(GOOD, ":1", ":true"), "stream.cell", id="true-for-number"),
        pytest.param(edited(GOOD, ":1", ":-1"), "stream.cell", id="negative-cell"),
        pytest.param(edited(GOOD, ":1", ":01"), "stream.name", id="leading-zero"),
        pytest.param(edited(GOOD, ":1", ":1.0"), "stream.name", id="float"),
        pytest.param(edited(GOOD, ":1", ":1e999"), "stream.name", id="infinite"),
        pytest.param(edited(GOOD, ":1", ":NaN"), "stream.cell", id="not-a-number"),
        pytest.param(edited(GOOD, ":1", ":-Infinity"), "stream.cell", id="minus-infinity"),
        pytest.param(edited(GOOD, ":1", ":" + "1" * 5_000), "stream.name", id="5000-digits"),
        pytest.param(edited(REPLY, ":0", ":-0"), "exit_code", id="minus-zero"),
        pytest.param(edited(CLEAR, "true", "1"), "clear_output.wait", id="number-for-bool"),
        pytest.param(edited(CLEAR, "true", '"true"'), "clear_output.wait", id="string-for-bool"),
        pytest.param(edited(COMPLETE, "[]", '""'), "matches", id="string-for-list"),
        pytest.param(edited(COMPLETE, "[]", "[1]"), "matches", id="number-in-list"),
        pytest.param(edited(COMPLETE, "[]", '[["a"]]'), "matches", id="list-in-list"),
        pytest.param(edited(COMPLETE, "[]", '["a",]'), "matches", id="comma-at-the-end"),
        pytest.param(edited(COMPLETE, "[]", '["a"'), "matches", id="open-list"),
        pytest.param(
            edited(COMPLETE, "[]", "[" + '"",' * MAX_ITEMS + '""]'),
            "matches",
            id="too-many-items",
        ),
        pytest.param(edited(GOOD, '"seq":2,', ""), "frame 0 came after frame 1", id="no-number"),
        pytest.param(edited(GOOD, ":2", ":1"), "frame 1 came after frame 1", id="number-again"),
        pytest.param(edited(GOOD, ":2", ":3"), "frame 3 came after frame 1", id="number-left-out"),
        pytest.param(edited(GOOD, ":2", ":02"), "no known type", id="number-with-zero"),
        pytest.param(edited(GOOD, ":2", ":-2"), "no known type", id="negative-number"),
        pytest.param(frame('{"type":"ack","seq":1}'), "frame 0", id="acknowledges-the-host"),
        pytest.param(frame('{"type":"resume","seq":1}'), "not asked for", id="repeats-unasked"),
        pytest.param(edited(GOOD, "}", ',"parts":["text"]}'), "does not name", id="no-such-part"),
    ],
)
def test_hostile_frame_is_rejected(data: bytes, why: str) -> None:
    host, _ = pair()
    host.receive_data(data)

    with pytest.raises(RemoteProtocolError, match=re.escape(why)):
        host.next_event()


def part(seq: int, field: str, first: int, texts: list[str]) -> bytes:
    return frame(
        f'{{"seq":{seq},"type":"part","field":"{field}","first":{first},'
        f'"texts":{json.dumps(texts, separators=(",", ":"))}}}'
    )


def error_after(seq: int, parts: str) -> bytes:
    return frame(
        f'{{"seq":{seq},"type":"error","cell":1,"ename":"","evalue":"v","traceback":[],'
        f'"parts":[{parts}]}}'
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(part(2, "ename", 1, ["a"]), "out of order", id="begins-late"),
        pytest.param(
            part(2, "ename", 0, ["a", "b"]) + part(3, "ename", 0, ["c"]), "out of order", id="back"
        ),
        pytest.param(part(2, "ename", 0, []), "out of order", id="empty-part"),
        pytest.param(part(2, "ename", 0, ["a"]), "frame 9 came after frame 2", id="then-a-gap"),
        pytest.param(part(2, "msg_type", 0, ["a"]), "no known field", id="unknown-field"),
        pytest.param(
            part(2, "ename", 0, ["a"]) + error_after(3, ""), "does not name", id="unnamed-parts"
        ),
        pytest.param(
            part(2, "ename", 0, ["a"]) + error_after(3, '"ename","ename"'),
            "does not name",
            id="named-twice",
        ),
        pytest.param(
            part(2, "text", 0, ["a"]) + error_after(3, '"text"'),
            "can have parts",
            id="not-its-field",
        ),
        pytest.param(
            part(2, "evalue", 0, ["a"]) + error_after(3, '"evalue"'),
            "can have parts",
            id="field-is-there-already",
        ),
        pytest.param(
            part(2, "ename", 0, ["a", "b"]) + error_after(3, '"ename"'),
            "can have parts",
            id="two-strings-for-one",
        ),
        pytest.param(
            part(2, "cell", 0, ["a"]) + error_after(3, '"cell"'), "can have parts", id="number"
        ),
        pytest.param(
            part(2, "ename", 0, ["a"]) + frame('{"seq":3,"type":"pong","nonce":1}'),
            "does not name",
            id="another-event-between",
        ),
        pytest.param(
            b"".join(part(2 + i, "traceback", i * 6_000, [""] * 6_000) for i in range(2)),
            "too many items",
            id="too-many-items",
        ),
    ],
)
def test_hostile_parts_are_rejected(data: bytes, why: str) -> None:
    host, _ = pair()
    host.receive_data(data + frame('{"seq":9,"type":"pong","nonce":1}'))

    with pytest.raises(RemoteProtocolError, match=why):
        drain(host)


def test_largest_event_counts_what_came_without_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_EVENT", 1_000)
    host, _ = pair()
    host.receive_data(part(2, "ename", 0, ["x" * 1_000]) + error_after(3, '"ename"'))

    with pytest.raises(RemoteProtocolError, match="larger than"):
        host.next_event()


def test_worker_numbers_no_frames() -> None:
    supervisor, _ = pair(far=Role.WORKER)
    supervisor.receive_data(frame(GOOD))

    with pytest.raises(RemoteProtocolError, match="numbers no frames"):
        supervisor.next_event()


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.BUSY])
def test_second_end_of_a_cell_is_rejected(phase: Phase) -> None:
    host, guest = pair()
    hand_over(guest, host, example(wire.ExecuteReply))
    if phase is Phase.BUSY:
        host.send(example(wire.Execute, cell=2))
    host.receive_data(frame(REPLY.replace('"seq":2', '"seq":3')))

    with pytest.raises(RemoteProtocolError, match=r"while idle|cell 1, which does not run"):
        host.next_event()


def test_broken_connection_stays_broken() -> None:
    host, _ = pair()
    host.receive_data(edited(GOOD, ":2", ":3") + frame(GOOD))
    with pytest.raises(RemoteProtocolError) as first:
        host.next_event()

    with pytest.raises(RemoteProtocolError) as second:
        host.next_event()

    assert second.value.message == first.value.message


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(wire.Stream(1, "stdlog", ""), id="unknown-word"),
        pytest.param(wire.Stream(-1, "stdout", ""), id="negative"),
        pytest.param(wire.ExecuteReply(1, "ok", 10**wire.MAX_DIGITS, 0), id="too-many-digits"),
        pytest.param(wire.ExecuteReply(1, "ok", True, 0), id="bool-for-number"),
        pytest.param(wire.ClearOutput(1, None), id="nothing-for-bool"),  # type: ignore[arg-type]
        pytest.param(wire.Page(1, b"x"), id="bytes-for-text"),  # type: ignore[arg-type]
        pytest.param(wire.Error(1, "", "", ("a",)), id="tuple-for-list"),  # type: ignore[arg-type]
        pytest.param(wire.Error(1, "", "", [1]), id="number-in-list"),  # type: ignore[list-item]
        pytest.param(wire.Error(1, "", "", ["x"] * (MAX_ITEMS + 1)), id="too-many-items"),
        pytest.param(wire.Page(1, "x" * (MAX_EVENT + 1)), id="too-large"),
    ],
)
def test_event_that_does_not_fit_is_not_sent(event: Any) -> None:
    host, guest = pair()

    with pytest.raises(LocalProtocolError, match="cannot send"):
        guest.send(event)

    assert hand_over(guest, host, wire.Stream(1, "stdout", "next")) != []
