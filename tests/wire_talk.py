"""Conversations on the wire for tests: two real connections, and bytes between them."""

from __future__ import annotations

from typing import Any, get_type_hints

from sandbox_kernel import wire
from sandbox_kernel.wire import Connection, Phase, Role

HELLO = wire.Hello(
    version=wire.VERSION,
    python="3.11.2",
    shell="ipython",
    languages=["python", "sh"],
    pid=1,
    uid=65534,
    gid=65534,
    no_new_privs=1,
    seccomp=2,
    seccomp_inner=True,
    cap_bnd="0000000000000000",
    interfaces=["lo"],
    root_writable=False,
    memory_bytes=512 << 20,
    pids_limit=100,
    nofile=1024,
    kernel="6.1.0",
    env_names=["HOME", "PATH"],
    protected=True,
)

#: Every event that the table knows.
EVENTS = sorted(
    {event for events in wire.MAY_SEND.values() for event in events},
    key=lambda event: event.__name__,
)

#: The words of the fields that take no free text.
WORDS = {
    (wire.Stream, "name"): ["stdout", "stderr"],
    (wire.ExecuteReply, "status"): ["ok", "error"],
    (wire.Hello, "shell"): ["ipython", "python"],
    (wire.Ready, "shell"): ["ipython", "python"],
    (wire.Verdict, "kind"): ["killed", "oom", "crashed", "exited"],
    (wire.Verdict, "state"): ["restored", "lost"],
    (wire.Checkpoints, "skipped"): ["memory", "threads", "resources", ""],
    (wire.Rewound, "state"): ["kept", "restored", "lost"],
    (wire.IsCompleteReply, "status"): ["complete", "incomplete", "invalid", "unknown"],
}


def example(event: type[Any], *, cell: int = 1) -> Any:
    """An event of this type with plain values."""
    plain = {str: "text", list[str]: ["a", "b"], bool: True, int: 7}
    values = []
    for field, kind in get_type_hints(event).items():
        if field == "cell":
            values.append(cell)
        elif (event, field) in WORDS:
            values.append(WORDS[event, field][0])
        else:
            # 0, because a higher number would acknowledge what was never sent.
            values.append(0 if field == "seq" else plain[kind])
    return event(*values)


def pair(
    phase: Phase = Phase.BUSY,
    far: Role = Role.GUEST,
    *,
    window: int = 4 << 20,
    replay: bool = False,
) -> tuple[Connection, Connection]:
    """A host and its far side, both in this phase; cell 1 runs or none was begun."""
    host = Connection(Role.HOST, far, window=window)
    guest = Connection(far, Role.HOST, window=window, replay=replay)
    if phase is Phase.STARTING:
        return host, guest
    hand_over(guest, host, HELLO if far is Role.GUEST else wire.Ready("python"))
    if phase is Phase.CLOSING:
        hand_over(host, guest, wire.Shutdown())
    if phase in (Phase.BUSY, Phase.WAITING_INPUT):
        hand_over(host, guest, example(wire.Execute))
    if phase is Phase.WAITING_INPUT:
        hand_over(guest, host, example(wire.InputRequest))
    return host, guest


def talk(speaker: Role, phase: Phase) -> tuple[Connection, Connection]:
    """The speaker and its listener."""
    if speaker is Role.HOST:
        return pair(phase)
    host, far = pair(phase, speaker)
    return far, host


def hand_over(sender: Connection, receiver: Connection, *events: Any) -> list[Any]:
    """Send events, and return what arrives."""
    for event in events:
        receiver.receive_data(sender.send(event))
    return drain(receiver)


def drain(connection: Connection) -> list[Any]:
    """All events that the stored bytes hold."""
    events = []
    while (event := connection.next_event()) is not None:
        events.append(event)
    return events


def frame(body: str | bytes) -> bytes:
    """A frame around what may be no JSON at all."""
    return b"\x1e" + (body if isinstance(body, bytes) else body.encode()) + b"\n"
