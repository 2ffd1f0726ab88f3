"""The protocol between host and guest: bytes in, events out, and no I/O.

A frame is RS, one line of ASCII JSON, LF, and at most 32 KiB long::

    \\x1e{"type":"stream","seq":7,"cell":3,"name":"stdout","text":"hi\\n"}\\n

The JSON is flat: strings, integers, booleans and lists of strings.  A value too
long for its frame travels before it as `part` frames, which are joined as
strings and never parsed.

Rule 1: what a side may say, and when, stands in `MAY_SEND` and nowhere else.
Rule 2: this module is the same source on both sides (Python 3.9, standard
    library only) and does not know which side is trusted.
Rule 3: whatever bytes arrive, `next_event` returns an event, returns `None`, or
    raises `RemoteProtocolError`; time is linear in the bytes, memory bounded by
    `MAX_FRAME` and `MAX_EVENT`.
"""

from __future__ import annotations

import json
from collections import deque
from enum import Enum
from json.encoder import encode_basestring_ascii as _quote
from typing import Any, NamedTuple, Optional, Union, cast

from sandbox_kernel.errors import LocalProtocolError, RemoteProtocolError

#: Of the wire's format; host and guest always carry the same source, so any other is refused.
VERSION = 1
#: Bytes of one frame, RS and LF included.
MAX_FRAME = 32 * 1024
#: Characters of one event, all its parts together: a 10 MiB image is 13.4 MiB of base64.
MAX_EVENT = 16 * 1024 * 1024
#: Items of one list of strings.
MAX_ITEMS = 10_000
#: Integers are whole numbers of at most this many digits.
MAX_DIGITS = 16
#: Bytes outside of frames that are skipped before the guest's `hello`.
MAX_SKIPPED = 256 * 1024
#: How much of the skipped bytes is kept, to show why no guest answered.
KEPT_SKIPPED = 2048

_RS = 0x1E


class Role(Enum):
    """Who speaks: the host, the guest's supervisor, or the worker it watches."""

    HOST = "host"
    GUEST = "guest"
    WORKER = "worker"


class Phase(Enum):
    """Where a conversation stands."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    WAITING_INPUT = "waiting for input"
    CLOSING = "closing"


# --- events ---------------------------------------------------------------------------------


class Hello(NamedTuple):
    """The guest is up; all but the version is its posture, for the host to compare."""

    version: int
    python: str
    shell: str  # `ipython` or `python`
    languages: list[str]
    pid: int
    uid: int
    gid: int
    no_new_privs: int  # -1: the kernel does not tell
    seccomp: int  # 2: filtered, 0: not, -1: not told
    seccomp_inner: bool  # our own filter is installed
    cap_bnd: str  # hexadecimal, "" if not told
    interfaces: list[str]
    root_writable: bool
    memory_bytes: int  # of the cgroup; 0: no limit, -1: not told
    pids_limit: int  # likewise
    nofile: int
    kernel: str  # `uname -r`
    env_names: list[str]
    protected: bool  # user code can neither kill, trace nor read the supervisor


class Ready(NamedTuple):
    """The worker can take requests; between worker and supervisor only."""

    shell: str


class Stream(NamedTuple):
    """Text for stdout or stderr."""

    cell: int
    name: str
    text: str


class DisplayData(NamedTuple):
    """A MIME bundle: `values[i]` is of type `mimes[i]`.

    Binary types are base64, JSON types JSON text.  `sizes` holds `mime=WIDTHxHEIGHT`,
    `display_id` is a name that the guest chose, or "".
    """

    cell: int
    mimes: list[str]
    values: list[str]
    sizes: list[str]
    display_id: str


class UpdateDisplayData(NamedTuple):
    """A new MIME bundle for what was shown under `display_id`."""

    cell: int
    mimes: list[str]
    values: list[str]
    sizes: list[str]
    display_id: str


class ExecuteResult(NamedTuple):
    """The MIME bundle of a cell's last expression."""

    cell: int
    mimes: list[str]
    values: list[str]
    sizes: list[str]


class ClearOutput(NamedTuple):
    """Clear the cell's output now, or when more of it arrives."""

    cell: int
    wait: bool


class Error(NamedTuple):
    """User code raised."""

    cell: int
    ename: str
    evalue: str
    traceback: list[str]


class Page(NamedTuple):
    """Text for the pager (`obj?`)."""

    cell: int
    text: str


class InputRequest(NamedTuple):
    """User code waits for a line."""

    cell: int
    prompt: str
    password: bool


class ExecuteReply(NamedTuple):
    """The cell ended, so the worker says.

    `dropped` counts output bytes that the guest did not send because of the cap.
    """

    cell: int
    status: str  # `ok` or `error`
    exit_code: int
    dropped: int


class Verdict(NamedTuple):
    """The supervisor's word on a worker that died; it ends the cell it names.

    `cell` is 0 between cells.  `kind`: `killed`, `oom`, `crashed`, `exited`; `detail` names
    the signal or the status; `state`: `restored` or `lost`.
    """

    cell: int
    kind: str
    detail: str
    exit_code: int
    dropped: int
    state: str


class Execute(NamedTuple):
    """Run a cell.  `cell` is minted by the host and only grows."""

    cell: int
    code: str
    silent: bool
    store_history: bool
    allow_stdin: bool
    execution_count: int


class InputReply(NamedTuple):
    """The line that the user typed."""

    cell: int
    value: str


class Interrupt(NamedTuple):
    """SIGINT to the worker's process group, if it still runs this cell."""

    cell: int


class KillWorker(NamedTuple):
    """SIGKILL to the worker and all that it started, if it still runs this cell."""

    cell: int


class Ping(NamedTuple):
    """A sign of life; without one for a minute the guest ends itself."""

    nonce: int


class Pong(NamedTuple):
    """Answer to `Ping`."""

    nonce: int


class Shutdown(NamedTuple):
    """End now."""


class Complete(NamedTuple):
    """Completions of `code` at character `cursor`."""

    request: int
    code: str
    cursor: int


class CompleteReply(NamedTuple):
    """`types[i]` is the kind of `matches[i]`; both replace `code[start:end]`."""

    request: int
    matches: list[str]
    types: list[str]
    start: int
    end: int


class Inspect(NamedTuple):
    """Documentation of what stands at `cursor`."""

    request: int
    code: str
    cursor: int
    detail: int


class InspectReply(NamedTuple):
    """`text` may hold colour escapes; empty if nothing was found."""

    request: int
    found: bool
    text: str


class IsComplete(NamedTuple):
    """Is `code` whole, or would the user go on typing?"""

    request: int
    code: str


class IsCompleteReply(NamedTuple):
    """`status`: `complete`, `incomplete`, `invalid`, `unknown`."""

    request: int
    status: str
    indent: str


class StatsRequest(NamedTuple):
    """What does the sandbox use?"""

    request: int


class Stats(NamedTuple):
    """From the sandbox's own cgroup; -1 where that cannot be read."""

    request: int
    memory_bytes: int
    memory_limit: int
    cpu_ms: int
    pids: int
    uptime_ms: int


class Part(NamedTuple):
    """A piece of a long value of the event that follows.

    `texts[0]` goes on with item `index` of `field`, or begins it; the others begin the
    items after it.  A plain string counts as a list of one.
    """

    field: str
    index: int
    texts: list[str]


class Ack(NamedTuple):
    """All guest frames up to `seq` have arrived."""

    seq: int


class Resume(NamedTuple):
    """After a reconnect: send again all that came after `seq`."""

    seq: int


Event = Union[
    Hello, Ready, Stream, DisplayData, UpdateDisplayData, ExecuteResult, ClearOutput, Error, Page,
    InputRequest, ExecuteReply, Verdict, Execute, InputReply, Interrupt, KillWorker, Ping, Pong,
    Shutdown, Complete, CompleteReply, Inspect, InspectReply, IsComplete, IsCompleteReply,
    StatsRequest, Stats, Part, Ack, Resume,
]  # fmt: skip

_NAMES: dict[type[Any], str] = {
    Hello: "hello", Ready: "ready", Stream: "stream", DisplayData: "display_data",
    UpdateDisplayData: "update_display_data", ExecuteResult: "execute_result",
    ClearOutput: "clear_output", Error: "error", Page: "page", InputRequest: "input_request",
    ExecuteReply: "execute_reply", Verdict: "verdict", Execute: "execute",
    InputReply: "input_reply", Interrupt: "interrupt", KillWorker: "kill_worker", Ping: "ping",
    Pong: "pong", Shutdown: "shutdown", Complete: "complete", CompleteReply: "complete_reply",
    Inspect: "inspect", InspectReply: "inspect_reply", IsComplete: "is_complete",
    IsCompleteReply: "is_complete_reply", StatsRequest: "stats_request", Stats: "stats",
    Part: "part", Ack: "ack", Resume: "resume",
}  # fmt: skip

_TYPES: dict[str, type[Any]] = {name: event for event, name in _NAMES.items()}

#: The exact values that some strings may have; the rest are free text.
_WORDS: dict[tuple[str, str], frozenset[str]] = {
    ("stream", "name"): frozenset({"stdout", "stderr"}),
    ("execute_reply", "status"): frozenset({"ok", "error"}),
    ("hello", "shell"): frozenset({"ipython", "python"}),
    ("ready", "shell"): frozenset({"ipython", "python"}),
    ("verdict", "kind"): frozenset({"killed", "oom", "crashed", "exited"}),
    ("verdict", "state"): frozenset({"restored", "lost"}),
    ("is_complete_reply", "status"): frozenset({"complete", "incomplete", "invalid", "unknown"}),
}

#: Integers that may be below zero.
_SIGNED = frozenset(
    {"exit_code", "memory_bytes", "memory_limit", "pids_limit", "pids", "cpu_ms", "uptime_ms",
     "no_new_privs", "seccomp", "nofile"}
)  # fmt: skip


# --- who may say what, when -----------------------------------------------------------------


def _always(*phases: Phase) -> dict[Phase, Phase]:
    return {phase: phase for phase in phases}


_UP = (Phase.IDLE, Phase.BUSY, Phase.WAITING_INPUT)
_RUNNING = (Phase.BUSY, Phase.WAITING_INPUT)
_END = {Phase.BUSY: Phase.IDLE, Phase.WAITING_INPUT: Phase.IDLE}

#: What the worker says and the supervisor hands on.
_OUTPUT: dict[type[Any], dict[Phase, Phase]] = {
    # Threads and tasks of a finished cell may go on printing.
    Stream: _always(*_UP),
    DisplayData: _always(*_UP),
    UpdateDisplayData: _always(*_UP),
    ClearOutput: _always(*_UP),
    ExecuteResult: _always(*_RUNNING),
    Error: _always(*_RUNNING),
    Page: _always(*_RUNNING),
    InputRequest: {Phase.BUSY: Phase.WAITING_INPUT},
    ExecuteReply: _END,
    CompleteReply: _always(*_UP),
    InspectReply: _always(*_UP),
    IsCompleteReply: _always(*_UP),
    Part: _always(*_UP),
}

#: Role -> event -> phases in which it may come, each with the phase that follows.
MAY_SEND: dict[Role, dict[type[Any], dict[Phase, Phase]]] = {
    Role.WORKER: {**_OUTPUT, Ready: {Phase.STARTING: Phase.IDLE}},
    Role.GUEST: {
        **_OUTPUT,
        Hello: {Phase.STARTING: Phase.IDLE},
        # A worker may also die between cells; only a verdict on the running cell ends it.
        Verdict: {**_END, Phase.IDLE: Phase.IDLE},
        Pong: _always(*_UP, Phase.CLOSING),
        Stats: _always(*_UP),
    },
    Role.HOST: {
        Execute: {Phase.IDLE: Phase.BUSY},
        # The reply may cross the end of the cell that asked.
        InputReply: {Phase.WAITING_INPUT: Phase.BUSY, **_always(Phase.BUSY, Phase.IDLE)},
        # So may a completion cross nothing: it is asked between cells only.
        Complete: _always(Phase.IDLE),
        Inspect: _always(Phase.IDLE),
        IsComplete: _always(Phase.IDLE),
        Part: _always(*_UP),
        Interrupt: _always(*_UP),
        KillWorker: _always(*_UP),
        StatsRequest: _always(*_UP),
        Ping: _always(*_UP),
        Ack: _always(*_UP),
        Resume: _always(*_UP),
        Shutdown: dict.fromkeys((*_UP, Phase.STARTING), Phase.CLOSING),
    },
}


# --- encoding -------------------------------------------------------------------------------

# A frame's JSON without its long values, and JSON's own characters, fit in this.
_OVERHEAD = 2048
_ROOM = MAX_FRAME - _OVERHEAD


def _well_formed(text: str) -> str:
    """Replace lone surrogates, which no strict UTF-8 can carry."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _json(value: object) -> str:
    if isinstance(value, str):
        return _quote(_well_formed(value))
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return "[" + ",".join([_quote(_well_formed(item)) for item in cast("list[str]", value)]) + "]"


def _frame(name: str, seq: int, body: str) -> bytes:
    number = f'"seq":{seq},' if seq else ""
    return f'\x1e{{"type":"{name}",{number}{body}}}\n'.encode("ascii")


def _bodies(event: Event) -> list[tuple[str, str]]:
    """The (type, JSON members) of each frame of an event: its parts, then itself."""
    name = _NAMES[type(event)]
    fields = event._fields
    texts = [_json(value) for value in event]
    if sum(map(len, texts)) <= _ROOM:
        return [(name, ",".join([f'"{f}":{t}' for f, t in zip(fields, texts)]))]
    frames: list[tuple[str, str]] = []
    members, parted = [], []
    for field, value, text in zip(fields, event, texts):
        if len(text) <= 256 or isinstance(value, int):
            members.append(f'"{field}":{text}')
            continue
        items = [value] if isinstance(value, str) else cast("list[str]", value)
        frames += _parts(field, items)
        parted.append(field)
        members.append(f'"{field}":' + ('""' if isinstance(value, str) else "[]"))
    members.append(f'"parts":{_json(parted)}')
    return [*frames, (name, ",".join(members))]


def _parts(field: str, items: list[str]) -> list[tuple[str, str]]:
    """Cut a list of strings into `part` frames."""
    frames: list[tuple[str, str]] = []
    batch: list[str] = []
    first = size = 0

    def flush() -> None:
        nonlocal batch, size
        if batch:
            body = f'"field":"{field}","index":{first},"texts":[{",".join(batch)}]'
            frames.append(("part", body))
        batch, size = [], 0

    for index, item in enumerate(items):
        for piece in _pieces(_well_formed(item)):
            # Only a new item may join a batch: a batch goes on with its first item alone.
            if batch and (size + len(piece) > _ROOM or index == first + len(batch) - 1):
                flush()
            if not batch:
                first = index
            batch.append(piece)
            size += len(piece) + 1
    flush()
    return frames


def _pieces(text: str) -> list[str]:
    """Cut a text into JSON strings that each fit in a frame."""
    step = _ROOM - 2
    pieces = []
    for start in range(0, max(len(text), 1), step):
        chunk = text[start : start + step]
        quoted = _quote(chunk)
        if len(quoted) <= _ROOM:
            pieces.append(quoted)
        else:
            # A character takes at most 12 bytes, as two escaped surrogates.
            small = step // 12
            pieces += [_quote(chunk[i : i + small]) for i in range(0, len(chunk), small)]
    return pieces


# --- decoding -------------------------------------------------------------------------------


def _reject(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the other side broke the protocol: {why}")


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("number is too long")
    return int(digits)


def _refuse_number(text: str) -> Any:
    raise ValueError(f"number is not whole: {text[:20]}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


_decoder = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_int=_parse_int,
    parse_float=_refuse_number,
    parse_constant=_refuse_number,
)

#: Type -> (keys it must have, its fields with the name of their type).
_SPECS: dict[str, list[tuple[str, str]]] = {
    name: [(field, str(event.__annotations__[field])) for field in event._fields]
    for name, event in _TYPES.items()
}


def _kind(annotation: str) -> str:
    # Python 3.9 to 3.13 keep the annotation as text; 3.14 may wrap it in a ForwardRef.
    for kind in ("list[str]", "bool", "int", "str"):
        if kind in annotation:
            return kind
    raise AssertionError(annotation)


_SPECS = {name: [(f, _kind(a)) for f, a in spec] for name, spec in _SPECS.items()}


def _decode(body: bytes) -> tuple[Event, int, list[str]]:
    """One frame's JSON as (event, seq, fields that its parts hold)."""
    try:
        text = body.decode("ascii")
        members = _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise _reject(f"a frame is not flat JSON ({str(error)[:80]})") from None
    if type(members) is not dict:
        raise _reject("a frame is not an object")
    name = members.pop("type", None)
    if type(name) is not str or name not in _SPECS:
        raise _reject("a frame is of no known type")
    seq = members.pop("seq", 0)
    if type(seq) is not int or seq < 0:
        raise _reject("`seq` is not a number")
    parts = members.pop("parts", [])
    _check_strings("parts", parts)
    spec = _SPECS[name]
    if len(members) != len(spec):
        raise _reject(f"a `{name}` frame has the wrong keys")
    values = []
    for field, kind in spec:
        if field not in members:
            raise _reject(f"a `{name}` frame has no `{field}`")
        values.append(_check(name, field, kind, members[field]))
    return _TYPES[name](*values), seq, parts


def _check(name: str, field: str, kind: str, value: Any) -> Any:
    if kind == "str":
        if type(value) is not str:
            raise _reject(f"`{name}.{field}` is not a string")
        words = _WORDS.get((name, field))
        if words is not None and value not in words:
            raise _reject(f"`{name}.{field}` is no word it may be")
        return _well_formed(value)
    if kind == "int":
        if type(value) is not int or (value < 0 and field not in _SIGNED):
            raise _reject(f"`{name}.{field}` is not a number in range")
        return value
    if kind == "bool":
        if type(value) is not bool:
            raise _reject(f"`{name}.{field}` is not true or false")
        return value
    _check_strings(field, value)
    return [_well_formed(item) for item in value]


def _check_strings(field: str, value: Any) -> None:
    if type(value) is not list or len(value) > MAX_ITEMS:
        raise _reject(f"`{field}` is not a list of strings")
    for item in value:
        if type(item) is not str:
            raise _reject(f"`{field}` is not a list of strings")


class _Assembly:
    """The parts that have arrived for the next event."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[list[str]]] = {}
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, part: Part) -> None:
        if len(self._pieces) >= 16 and part.field not in self._pieces:
            raise _reject("an event has too many parts")
        items = self._pieces.setdefault(part.field, [])
        self._size += sum(map(len, part.texts)) + len(part.texts)
        if self._size > MAX_EVENT:
            raise _reject(f"an event is larger than {MAX_EVENT} characters")
        for index, text in enumerate(part.texts, part.index):
            if index == len(items):
                items.append([text])
            elif index == len(items) - 1 and index == part.index:
                items[index].append(text)
            else:
                raise _reject("a part is out of order")
        if len(items) > MAX_ITEMS:
            raise _reject("an event has too many items")

    def complete(self, event: Event, parts: list[str]) -> Event:
        """The event with its long values put in."""
        if sorted(parts) != sorted(self._pieces):
            raise _reject("an event does not name the parts that came before it")
        values: dict[str, Any] = {}
        for field, items in self._pieces.items():
            empty = getattr(event, field, None)
            texts = ["".join(pieces) for pieces in items]
            if empty == "" and len(texts) == 1:
                values[field] = _well_formed(texts[0])
            elif empty == []:
                values[field] = [_well_formed(text) for text in texts]
            else:
                raise _reject(f"`{field[:40]}` cannot be sent in parts")
        self._pieces, self._size = {}, 0
        return cast("Event", event._replace(**values))


# --- a conversation -------------------------------------------------------------------------


class Connection:
    """One side of a conversation.  Feed it bytes, take events, send events.

    Guest frames are numbered.  The side of the guest counts what is not acknowledged yet
    (`unacked_bytes`), and keeps it if `replay` is set; the side of the host says with
    `ack_due` when it is time to acknowledge.
    """

    def __init__(self, us: Role, them: Role, *, window: int = 4 << 20, replay: bool = False) -> None:
        self.phase = Phase.STARTING
        #: The running cell, or the last one; 0 before the first.
        self.cell = 0
        #: Bytes that stood outside of frames before the guest's first one.
        self.skipped = b""
        self.unacked_bytes = 0
        self.window = window
        self._us, self._them = us, them
        self._buffer = bytearray()
        self._scanned = 0
        self._skipped_count = 0
        self._assembly = _Assembly()
        self._sent: deque[tuple[int, int, bytes]] = deque()
        self._replay = replay
        self._sent_seq = 0
        self._received_seq = 0
        self._unacknowledged = 0

    # sending

    def send(self, event: Event) -> bytes:
        """Return the bytes to write, and move to the next phase.

        Raises:
            LocalProtocolError: this event is not allowed now: a bug on this side.
        """
        following = MAY_SEND[self._us].get(type(event), {}).get(self.phase)
        if following is None:
            name = _NAMES[type(event)]
            raise LocalProtocolError(f"cannot send `{name}` while {self.phase.value}")
        self._advance(event, following)
        frames = []
        for name, body in _bodies(event):
            if self._us is not Role.GUEST:
                frames.append(_frame(name, 0, body))
                continue
            self._sent_seq += 1
            frame = _frame(name, self._sent_seq, body)
            self._sent.append((self._sent_seq, len(frame), frame if self._replay else b""))
            self.unacked_bytes += len(frame)
            frames.append(frame)
        return b"".join(frames)

    @property
    def window_full(self) -> bool:
        """Whether the guest should stop reading what its worker prints."""
        return self.unacked_bytes >= self.window

    def replayed(self, seq: int) -> bytes:
        """The bytes to send again after a `Resume(seq)`."""
        if not self._replay or seq > self._sent_seq or (self._sent and seq < self._sent[0][0] - 1):
            raise _reject("asked to resume from a frame that is not kept")
        return b"".join(frame for number, _, frame in self._sent if number > seq)

    # receiving

    def receive_data(self, data: bytes) -> None:
        """Store bytes that arrived; call `next_event` until it returns `None` to read them."""
        self._buffer += data

    def next_event(self) -> Optional[Event]:
        """Return the next event, or `None` if more bytes are needed.

        Raises:
            RemoteProtocolError: The other side broke the protocol.  The
                connection is of no further use.
        """
        while True:
            body = self._next_body()
            if body is None:
                return None
            event, seq, parts = _decode(body)
            self._check_seq(seq, len(body))
            allowed = MAY_SEND[self._them].get(type(event), {})
            following = allowed.get(self.phase)
            if following is None:
                raise _reject(f"received `{_NAMES[type(event)]}` while {self.phase.value}")
            if type(event) is Part:
                self._assembly.add(event)
                continue
            if self._assembly or parts:
                # Control frames that the sender's other duties put in between.
                if not parts and type(event) in _CONTROL:
                    pass
                else:
                    event = self._assembly.complete(event, parts)
            if type(event) is Ack:
                self._acknowledged(event.seq)
                continue
            self._check_cell(event)
            self._advance(event, following)
            return event

    @property
    def ack_due(self) -> Optional[Ack]:
        """The acknowledgement to send now, if a quarter of the window has come in."""
        if self._unacknowledged * 4 < self.window:
            return None
        self._unacknowledged = 0
        return Ack(self._received_seq)

    @property
    def resume(self) -> Resume:
        """What the host says after it has reconnected; forgets a frame cut in two."""
        self._buffer.clear()
        self._scanned = 0
        return Resume(self._received_seq)

    def _next_body(self) -> Optional[bytes]:
        buffer = self._buffer
        if not buffer:
            return None
        if buffer[0] != _RS:
            self._skip_to_frame()
            if not buffer:
                return None
        end = buffer.find(b"\n", self._scanned, MAX_FRAME)
        if end == -1:
            self._scanned = len(buffer)
            if len(buffer) >= MAX_FRAME:
                raise _reject(f"a frame is longer than {MAX_FRAME} bytes")
            return None
        body = bytes(buffer[1:end])
        del buffer[: end + 1]
        self._scanned = 0
        return body

    def _skip_to_frame(self) -> None:
        start = self._buffer.find(_RS)
        end = len(self._buffer) if start == -1 else start
        if self.phase is not Phase.STARTING or self._them is not Role.GUEST:
            raise _reject(f"bytes outside of a frame: {bytes(self._buffer[:40])!r}")
        self._skipped_count += end
        self.skipped += bytes(self._buffer[: min(end, KEPT_SKIPPED - len(self.skipped))])
        del self._buffer[:end]
        if self._skipped_count > MAX_SKIPPED:
            raise _reject("no frame came, only other bytes")

    def _check_seq(self, seq: int, size: int) -> None:
        if self._them is not Role.GUEST:
            if seq:
                raise _reject("this side numbers no frames")
            return
        if seq != self._received_seq + 1:
            raise _reject(f"frame {seq} came after frame {self._received_seq}")
        self._received_seq = seq
        self._unacknowledged += size

    def _check_cell(self, event: Event) -> None:
        """A guest may speak of cells that were begun, and end only the one that runs."""
        if self._them is Role.HOST or not hasattr(event, "cell"):
            if type(event) is Execute and event.cell <= self.cell:
                raise _reject("a cell's number did not grow")
            return
        if event.cell > self.cell:
            raise _reject(f"cell {event.cell} was never begun")
        if type(event) is ExecuteReply and event.cell != self.cell:
            raise _reject(f"cell {event.cell} does not run")

    def _advance(self, event: Event, following: Phase) -> None:
        if type(event) is Execute:
            self.cell = event.cell
        elif type(event) is Verdict and event.cell != self.cell:
            return
        self.phase = following

    def _acknowledged(self, seq: int) -> None:
        if seq > self._sent_seq:
            raise _reject("acknowledged a frame that was never sent")
        while self._sent and self._sent[0][0] <= seq:
            self.unacked_bytes -= self._sent.popleft()[1]


#: Events that may come between the parts of another one: they answer at any time.
_CONTROL = frozenset({Interrupt, KillWorker, Ping, Pong, Ack, Resume, Shutdown, StatsRequest, Stats})
