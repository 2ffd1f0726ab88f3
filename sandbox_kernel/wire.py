r"""The protocol between host and guest: bytes in, events out, and no I/O.

A frame is RS, one line of ASCII JSON, LF, and at most 32 KiB long::

    \x1e{"seq":7,"type":"stream","cell":3,"name":"stdout","text":"hi\n"}\n

The JSON is flat: strings, integers, booleans and lists of strings, in the order
in which the event's class lists them, without blanks.  A value too long for its
frame travels before it as `part` frames, which are joined as strings and never
parsed.

Rule 1: what a side may say, and when, stands in `MAY_SEND` and nowhere else.
Rule 2: this module is the same source on both sides (Python 3.9, standard
    library only) and does not know which side is trusted.
Rule 3: whatever bytes arrive, `next_event` returns an event, returns `None`, or
    raises `RemoteProtocolError`; time is linear in the bytes, memory bounded by
    `MAX_FRAME` and `MAX_EVENT`.
Rule 4: what `send` returns, the other side's `next_event` accepts, however the
    two sides' frames cross.
"""

from __future__ import annotations

import re
from collections import deque
from enum import Enum
from json.decoder import scanstring as _scan_string  # type: ignore[attr-defined] # typeshed lacks it
from json.encoder import encode_basestring_ascii as _quote
from typing import Any, Callable, NamedTuple, Union, get_type_hints

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
#: Bytes that are skipped before the guest's first frame.
MAX_SKIPPED = 256 * 1024
#: How much of the skipped bytes is kept, to show why no guest answered.
KEPT_SKIPPED = 2048


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

    # Enum's own is written in Python, and this one is asked for every frame.
    __hash__ = object.__hash__


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
    the signal or the status; `state`: `restored` (as after cell `after`) or `lost`.
    """

    cell: int
    kind: str
    detail: str
    exit_code: int
    dropped: int
    state: str
    after: int = 0  # 0: as before the first cell


class Checkpoints(NamedTuple):
    """The cells after which there is a frozen copy of the worker, oldest first.

    `skipped` says why there is none of the last one: `memory`, `threads`, `resources`, or "".
    """

    cells: list[str]
    skipped: str


class Rewind(NamedTuple):
    """Go on with the copy of the worker as it was after this cell."""

    request: int
    cell: int


class Rewound(NamedTuple):
    """Answer to `Rewind`; `kept`: there is no such copy.  Else as of `Verdict`."""

    request: int
    state: str
    after: int


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


class Ack(NamedTuple):
    """All guest frames up to `seq` have arrived."""

    seq: int


class Resume(NamedTuple):
    """After a reconnect: send again all that came after `seq`.

    The guest says it back, to mark in its stream where the repetition begins.
    """

    seq: int


class Part(NamedTuple):
    """A piece of a long value of the event that follows; no event itself.

    `texts[0]` goes on with item `first` of `field`, or begins it; the others begin the
    items after it.  A plain string counts as a list of one.
    """

    field: str
    first: int
    texts: list[str]


Event = Union[
    Hello, Ready, Stream, DisplayData, UpdateDisplayData, ExecuteResult, ClearOutput, Error, Page,
    InputRequest, ExecuteReply, Verdict, Checkpoints, Rewind, Rewound, Execute, InputReply,
    Interrupt, KillWorker, Ping, Pong, Shutdown, Complete, CompleteReply, Inspect, InspectReply,
    IsComplete, IsCompleteReply, StatsRequest, Stats, Ack, Resume,
]  # fmt: skip

_NAMES: dict[type[Any], str] = {
    Hello: "hello", Ready: "ready", Stream: "stream", DisplayData: "display_data",
    UpdateDisplayData: "update_display_data", ExecuteResult: "execute_result",
    ClearOutput: "clear_output", Error: "error", Page: "page", InputRequest: "input_request",
    ExecuteReply: "execute_reply", Verdict: "verdict", Checkpoints: "checkpoints",
    Rewind: "rewind", Rewound: "rewound", Execute: "execute",
    InputReply: "input_reply", Interrupt: "interrupt", KillWorker: "kill_worker", Ping: "ping",
    Pong: "pong", Shutdown: "shutdown", Complete: "complete", CompleteReply: "complete_reply",
    Inspect: "inspect", InspectReply: "inspect_reply", IsComplete: "is_complete",
    IsCompleteReply: "is_complete_reply", StatsRequest: "stats_request", Stats: "stats",
    Ack: "ack", Resume: "resume", Part: "part",
}  # fmt: skip

#: The exact values that some strings may have; the rest are free text.
_WORDS: dict[tuple[type[Any], str], tuple[str, ...]] = {
    (Stream, "name"): ("stdout", "stderr"),
    (ExecuteReply, "status"): ("ok", "error"),
    (Hello, "shell"): ("ipython", "python"),
    (Ready, "shell"): ("ipython", "python"),
    (Verdict, "kind"): ("killed", "oom", "crashed", "exited"),
    (Verdict, "state"): ("restored", "lost"),
    (Checkpoints, "skipped"): ("", "memory", "threads", "resources"),
    (Rewound, "state"): ("kept", "restored", "lost"),
    (IsCompleteReply, "status"): ("complete", "incomplete", "invalid", "unknown"),
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
#: What was on its way when the host said `shutdown`; every event of a guest or worker has it.
_LATE = {Phase.CLOSING: Phase.CLOSING}

#: What the worker says and the supervisor hands on.
_OUTPUT: dict[type[Any], dict[Phase, Phase]] = {
    # Threads and tasks of a finished cell may go on printing.
    Stream: {**_always(*_UP), **_LATE},
    DisplayData: {**_always(*_UP), **_LATE},
    UpdateDisplayData: {**_always(*_UP), **_LATE},
    ClearOutput: {**_always(*_UP), **_LATE},
    ExecuteResult: {**_always(*_RUNNING), **_LATE},
    Error: {**_always(*_RUNNING), **_LATE},
    Page: {**_always(*_RUNNING), **_LATE},
    # An interrupted `input()` takes nothing back: the code may just ask again.
    InputRequest: {**dict.fromkeys(_RUNNING, Phase.WAITING_INPUT), **_LATE},
    ExecuteReply: {**_END, **_LATE},
    CompleteReply: {**_always(*_UP), **_LATE},
    InspectReply: {**_always(*_UP), **_LATE},
    IsCompleteReply: {**_always(*_UP), **_LATE},
}

_NEVER: dict[Phase, Phase] = {}

#: Role -> event -> phases in which it may come, each with the phase that follows.
MAY_SEND: dict[Role, dict[type[Any], dict[Phase, Phase]]] = {
    Role.WORKER: {**_OUTPUT, Ready: {Phase.STARTING: Phase.IDLE, **_LATE}},
    Role.GUEST: {
        **_OUTPUT,
        Hello: {Phase.STARTING: Phase.IDLE, **_LATE},
        # A worker may also die between cells; only a verdict on the running cell ends it.
        Verdict: {**_END, Phase.IDLE: Phase.IDLE, **_LATE},
        Checkpoints: {**_always(*_UP), **_LATE},
        Rewound: {**_always(*_UP), **_LATE},
        Pong: {**_always(*_UP), **_LATE},
        Stats: {**_always(*_UP), **_LATE},
    },
    Role.HOST: {
        Execute: {Phase.IDLE: Phase.BUSY},
        # The reply may cross the end of the cell that asked.
        InputReply: {Phase.WAITING_INPUT: Phase.BUSY, **_always(Phase.BUSY, Phase.IDLE)},
        # Asked between cells only: a busy worker would not answer.
        Complete: _always(Phase.IDLE),
        Inspect: _always(Phase.IDLE),
        IsComplete: _always(Phase.IDLE),
        Rewind: _always(Phase.IDLE),
        Interrupt: _always(*_UP),
        KillWorker: _always(*_UP),
        StatsRequest: _always(*_UP),
        Ping: _always(*_UP),
        Ack: _always(*_UP),
        # The `hello` may be among what was lost.
        Resume: _always(Phase.STARTING, *_UP),
        Shutdown: dict.fromkeys((*_UP, Phase.STARTING), Phase.CLOSING),
    },
}


# --- values and their JSON --------------------------------------------------------------------
#
# A value has one spelling only.  `write` makes it, or raises `ValueError`; `read` takes a text
# and a position, and returns the value and the position behind it, or raises `ValueError`.

_DIGITS = f"[1-9][0-9]{{0,{MAX_DIGITS - 1}}}"
_NATURAL_TEXT = re.compile(f"0|{_DIGITS}")
_INTEGER_TEXT = re.compile(f"0|-?{_DIGITS}")
_LIMIT = 10**MAX_DIGITS


class _Kind(NamedTuple):
    write: Callable[[Any], str]
    read: Callable[[str, int], tuple[Any, int]]


def _well_formed(text: str) -> str:
    """Replace lone surrogates, which no strict UTF-8 can carry."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _write_string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("is not a string")
    return _quote(value if value.isascii() else _well_formed(value))


def _read_string(text: str, at: int) -> tuple[str, int]:
    if not text.startswith('"', at):
        raise ValueError("is not a string")
    value, at = _scan_string(text, at + 1)
    return (value if value.isascii() else _well_formed(value)), at


def _write_list(value: Any) -> str:
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise ValueError(f"is not a list of at most {MAX_ITEMS} strings")
    return f"[{','.join(map(_write_string, value))}]"


def _read_list(text: str, at: int) -> tuple[list[str], int]:
    if text.startswith("[]", at):
        return [], at + 2
    if not text.startswith("[", at):
        raise ValueError("is not a list of strings")
    items: list[str] = []
    while not items or text.startswith(",", at):
        item, at = _read_string(text, at + 1)
        items.append(item)
    if not text.startswith("]", at) or len(items) > MAX_ITEMS:
        raise ValueError(f"is not a list of at most {MAX_ITEMS} strings")
    return items, at + 1


def _one_of(words: dict[str, Any]) -> _Kind:
    """Make the kind of a value that is one of few; `words` has each by its JSON."""

    def read(text: str, at: int) -> tuple[Any, int]:
        for word, value in words.items():
            if text.startswith(word, at):
                return value, at + len(word)
        raise ValueError("is no word that it may be")

    texts = {value: word for word, value in words.items()}

    def write(value: Any) -> str:
        text = texts.get(value) if isinstance(value, (bool, str)) else None
        if text is None:
            raise ValueError("is no word that it may be")
        return text

    return _Kind(write, read)


def _number(pattern: re.Pattern[str], least: int) -> _Kind:
    def write(value: Any) -> str:
        if type(value) is not int or not least <= value < _LIMIT:
            raise ValueError("is not a number in range")
        return str(value)

    def read(text: str, at: int) -> tuple[int, int]:
        digits = pattern.match(text, at)
        if digits is None:
            raise ValueError("is not a number in range")
        return int(digits[0]), digits.end()

    return _Kind(write, read)


_BY_TYPE = {
    str: _Kind(_write_string, _read_string),
    list[str]: _Kind(_write_list, _read_list),
    bool: _one_of({"true": True, "false": False}),
    int: _number(_NATURAL_TEXT, 0),
}
_SIGNED_INT = _number(_INTEGER_TEXT, 1 - _LIMIT)


class _Format(NamedTuple):
    """How one type of event is written."""

    event: type[Any]
    name: str
    #: `"type":"stream","cell":%s,"name":%s,"text":%s`
    template: str
    writers: tuple[Callable[[Any], str], ...]
    #: Each field's `,"name":`, the length of that, and what reads the value behind it.
    readers: tuple[tuple[str, int, Callable[[str, int], tuple[Any, int]]], ...]


def _format(event: type[Any], name: str) -> _Format:
    kinds = []
    for field, annotation in get_type_hints(event).items():
        if (event, field) in _WORDS:
            kinds.append(_one_of({f'"{word}"': word for word in _WORDS[event, field]}))
        else:
            kinds.append(_SIGNED_INT if field in _SIGNED else _BY_TYPE[annotation])
    keys = [f',"{field}":' for field in event._fields]
    return _Format(
        event,
        name,
        template=f'"type":"{name}"' + "".join([f"{key}%s" for key in keys]),
        writers=tuple(kind.write for kind in kinds),
        readers=tuple((key, len(key), kind.read) for key, kind in zip(keys, kinds)),
    )


_FORMATS = {event: _format(event, name) for event, name in _NAMES.items()}
_BY_NAME = {form.name: form for form in _FORMATS.values()}
_FIELDS = frozenset(field for event in _NAMES for field in event._fields)


# --- encoding -------------------------------------------------------------------------------

# A frame without its long values fits in this, and a `part` without its texts.
_OVERHEAD = 2048
_ROOM = MAX_FRAME - _OVERHEAD
# Longer values leave an event that is too long for one frame.
_SHORT = 256
# Texts in all parts of an event.  Enough for the longest event, cut as finely as `_pieces` does.
_MAX_PIECES = 100_000


def _size(event: Event) -> int:
    """The characters of all its texts."""
    values: tuple[Any, ...] = event
    return sum(
        len(value) if isinstance(value, str) else sum(map(len, value))
        for value in values
        if isinstance(value, (str, list))
    )


def _encode(event: Event) -> list[str]:
    """The frames of an event, its parts first; each without its RS, `{` and number."""
    form = _FORMATS[type(event)]
    texts: list[str] = []
    try:
        for write, value in zip(form.writers, event):
            texts.append(write(value))
    except ValueError as error:
        raise LocalProtocolError(
            f"cannot send `{form.name}`: `{event._fields[len(texts)]}` {error}"
        ) from None
    body = form.template % tuple(texts)
    if len(body) <= _ROOM:
        return [body + "}\n"]
    return _encode_in_parts(form, event, texts)


def _encode_in_parts(form: _Format, event: Event, texts: list[str]) -> list[str]:
    if _size(event) > MAX_EVENT:
        raise LocalProtocolError(
            f"cannot send `{form.name}`: it is larger than {MAX_EVENT} characters"
        )
    frames: list[str] = []
    parted: list[str] = []
    for number, field in enumerate(event._fields):
        if len(texts[number]) <= _SHORT:
            continue
        value: Any = event[number]
        items: list[str] = [value] if isinstance(value, str) else value
        # Then no character needs an escape, and none is looked for a second time.
        quotes = 2 if isinstance(value, str) else 3 * len(items) + 1
        plain = len(texts[number]) == sum(map(len, items)) + quotes
        pieces = [
            (item, piece) for item, text in enumerate(items) for piece in _pieces(text, plain)
        ]
        frames += _parts(field, pieces)
        parted.append(field)
        texts[number] = '""' if isinstance(value, str) else "[]"
    body = form.template % tuple(texts)
    return [*frames, f'{body},"parts":{_write_list(parted)}}}\n']


def _pieces(text: str, plain: bool) -> list[str]:  # noqa: FBT001
    """Cut a text into JSON strings that each fit in a frame; `plain` needs no escapes."""
    # Two for the quotes; a character takes at most 12 bytes, as two escaped surrogates.
    step, small = _ROOM - 2, (_ROOM - 2) // 12
    if plain:
        starts = range(0, max(len(text), 1), step)
        return [f'"{text[start : start + step]}"' for start in starts]
    text = _well_formed(text)
    pieces = []
    for start in range(0, max(len(text), 1), step):
        chunk = text[start : start + step]
        quoted = _quote(chunk)
        if len(quoted) <= _ROOM:
            pieces.append(quoted)
        else:
            pieces += [_quote(chunk[i : i + small]) for i in range(0, len(chunk), small)]
    return pieces


def _parts(field: str, pieces: list[tuple[int, str]]) -> list[str]:
    """The `part` frames for a field's pieces, each given with the number of its item."""
    frames: list[str] = []
    batch: list[str] = []
    first = last = size = 0
    template = _FORMATS[Part].template + "}\n"
    for item, piece in pieces:
        # Only new items may join a batch: it goes on with its first item alone.
        if batch and (item == last or size + len(piece) > _ROOM):
            frames.append(template % (f'"{field}"', first, f"[{','.join(batch)}]"))
            batch, size = [], 0
        if not batch:
            first = item
        batch.append(piece)
        size += len(piece) + 1
        last = item
    frames.append(template % (f'"{field}"', first, f"[{','.join(batch)}]"))
    return frames


# --- decoding -------------------------------------------------------------------------------

_HEAD = re.compile(rf'\{{(?:"seq":({_DIGITS}),)?"type":"([a-z_]+)"')
# All of a stream frame but its text and the brace.
_STREAM = re.compile(
    rf'\{{(?:"seq":({_DIGITS}),)?"type":"stream",'
    rf'"cell":(0|{_DIGITS}),"name":"(stdout|stderr)","text":"'
)


_TOO_LARGE = f"an event is larger than {MAX_EVENT} characters or comes in too many parts"


def _reject(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the other side broke the protocol: {why}")


def _decode(text: str) -> tuple[Event | Part, int, list[str]]:
    """One frame's JSON as (event, number or 0, fields that its parts hold)."""
    head = _HEAD.match(text)
    form = _BY_NAME.get(head[2]) if head else None
    if head is None or form is None:
        raise _reject("a frame is of no known type")
    at = head.end()
    values: list[Any] = []
    parts: list[str] = []
    try:
        for key, length, read in form.readers:
            if not text.startswith(key, at):
                raise ValueError("is missing")
            value, at = read(text, at + length)
            values.append(value)
        if text.startswith(',"parts":', at):
            parts, at = _read_list(text, at + len(',"parts":'))
    except ValueError as error:
        field = (*form.event._fields, "parts")[len(values)]
        raise _reject(f"`{form.name}.{field}` {str(error)[:80]}") from None
    if text[at:] != "}":
        raise _reject(f"a `{form.name}` frame does not end after its fields")
    return form.event._make(values), int(head[1] or 0), parts


def _decode_stream(text: str) -> tuple[Event | Part, int, list[str]] | None:
    """What `_decode` returns, or `None` if it must look: printed lines come by the 100 000."""
    head = _STREAM.match(text)
    if head is None:
        return None
    try:
        value, at = _scan_string(text, head.end())
    except ValueError:
        return None
    if text[at:] != "}":
        return None
    seq, cell, name = head.groups()
    return Stream(int(cell), name, _well_formed(value)), int(seq or 0), []


class _Assembly:
    """The parts that have arrived for the next event."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[list[str]]] = {}
        self._size = self._count = 0

    def add(self, part: Part) -> None:
        if part.field not in _FIELDS:
            raise _reject("a part is of no known field")
        items = self._pieces.setdefault(part.field, [])
        self._size += sum(map(len, part.texts))
        self._count += len(part.texts)
        if self._size > MAX_EVENT or self._count > _MAX_PIECES:
            raise _reject(_TOO_LARGE)
        if not part.texts or not len(items) - 1 <= part.first <= len(items):
            raise _reject("a part is out of order")
        if part.first + len(part.texts) > MAX_ITEMS:
            raise _reject("an event has too many items")
        fresh = part.texts
        if part.first < len(items):
            items[-1].append(part.texts[0])
            fresh = part.texts[1:]
        items += [[text] for text in fresh]

    def complete(self, event: Event, parts: list[str]) -> Event:
        """The event with its long values put in."""
        if sorted(parts) != sorted(self._pieces):
            raise _reject("an event does not name the parts that came before it")
        values: dict[str, Any] = {}
        for field, items in self._pieces.items():
            empty = getattr(event, field, None) if field in event._fields else None
            texts = ["".join(pieces) for pieces in items]
            if empty == "" and len(texts) == 1:
                values[field] = texts[0]
            elif empty == []:
                values[field] = texts
            else:
                raise _reject("a part is of no field that can have parts")
        whole = event._replace(**values)
        if _size(whole) > MAX_EVENT:
            raise _reject(_TOO_LARGE)
        return whole


# --- a conversation -------------------------------------------------------------------------


class Connection:
    """One side of a conversation.  Feed it bytes, take events, send events.

    Guest frames are numbered.  The side of the guest counts what is not acknowledged yet
    (`unacked_bytes`), and keeps it if `replay` is set; the side of the host says with
    `ack_due` when it is time to acknowledge.
    """

    def __init__(
        self,
        us: Role,
        them: Role,
        *,
        window: int = 4 << 20,
        replay: bool = False,
        cell: int = 0,
    ) -> None:
        self.phase = Phase.STARTING
        #: The running cell, or the last one, maybe of the conversation before; 0: none yet.
        self.cell = cell
        #: The first of the bytes that came before the guest's first frame.
        self.skipped = b""
        self.unacked_bytes = 0
        self.window = window
        self._us, self._them = us, them
        self._we_may, self._they_may = MAY_SEND[us], MAY_SEND[them]
        self._buffer = bytearray()
        # Until these bytes come, all others are skipped.
        self._awaited = b'\x1e{"seq":1,"type":"' if them is Role.GUEST else b""
        self._skipped_bytes = 0
        self._assembly: _Assembly | None = None
        self._broken = ""
        # Of the guest's frames: the last one sent, all not acknowledged, and up to where they are.
        self._sent_seq = 0
        self._sent: deque[tuple[int, int, bytes]] = deque()
        self._acked_seq = 0
        self._replay = replay
        # Of the guest's frames: the last one taken, and the last one in the stream, which is
        # an earlier one while the guest repeats itself.
        self._received_seq = 0
        self._stream_seq = 0
        self._unacknowledged = 0
        self._reconnected = False

    # sending

    def send(self, event: Event) -> bytes:
        """Return the bytes to write, and move to the next phase.

        Raises:
            LocalProtocolError: This event is not allowed now, or a value of it does not fit
                the protocol: a bug on this side.  Nothing has changed.
        """
        bodies = _encode(event)
        objection = self._step(self._we_may, event)
        if objection:
            raise LocalProtocolError(f"cannot send `{_NAMES[type(event)]}` {objection}")
        if self._us is Role.GUEST:
            return b"".join([self._numbered(body) for body in bodies])
        if type(event) is Ack:
            self._unacknowledged = 0
        frames = "".join(["\x1e{" + body for body in bodies]).encode("ascii")
        if type(event) is Resume:
            self._reconnected = True
            # What is left unread belongs to the connection that was lost.
            self._buffer.clear()
            self._awaited = frames
        return frames

    def _numbered(self, body: str) -> bytes:
        self._sent_seq += 1
        frame = f'\x1e{{"seq":{self._sent_seq},{body}'.encode("ascii")
        self._sent.append((self._sent_seq, len(frame), frame if self._replay else b""))
        self.unacked_bytes += len(frame)
        return frame

    @property
    def window_full(self) -> bool:
        """Whether the guest should stop reading what its worker prints."""
        return self.unacked_bytes >= self.window

    def replayed(self, seq: int) -> bytes:
        """The bytes to write after a `Resume(seq)`: the same back, then all that came after.

        Raises:
            RemoteProtocolError: The other side asked for what it has acknowledged, or for
                what was never sent, or this side keeps nothing.
        """
        if not self._replay or seq < self._acked_seq:
            raise _reject("asked to resume from a frame that is not kept")
        self._acknowledged(seq)
        marker = "\x1e{" + _encode(Resume(seq))[0]
        return b"".join([marker.encode("ascii"), *[frame for _, _, frame in self._sent]])

    # receiving

    def receive_data(self, data: bytes) -> None:
        """Store bytes that arrived; call `next_event` until it returns `None` to read them."""
        self._buffer += data

    def next_event(self) -> Event | None:
        """Return the next event, or `None` if more bytes are needed.

        Raises:
            RemoteProtocolError: The other side broke the protocol.  The
                connection is of no further use, and raises the same again.
        """
        if self._broken:
            raise RemoteProtocolError(self._broken)
        try:
            while True:
                text = self._next_frame()
                if text is None:
                    return None
                event = self._take(text)
                if event is not None:
                    return event
        except RemoteProtocolError as error:
            self._broken = error.message
            raise

    @property
    def ack_due(self) -> Ack | None:
        """The acknowledgement to send now, if a quarter of the window has come in."""
        if self._unacknowledged * 4 < self.window or self.phase is Phase.CLOSING:
            return None
        return Ack(self._received_seq)

    @property
    def resume(self) -> Resume:
        """What the host sends first after it has reconnected.

        Once that is sent, what comes is skipped up to the guest's answer: it may begin in
        the middle of a frame, and its frames come again.
        """
        return Resume(self._received_seq)

    def _next_frame(self) -> str | None:
        """The next frame without its RS and LF, if all of it is here."""
        if self._awaited and not self._skip():
            return None
        buffer = self._buffer
        if not buffer:
            return None
        if buffer[0] != 0x1E:
            raise _reject(f"bytes outside of a frame: {bytes(buffer[:40])!r}")
        end = buffer.find(b"\n", 0, MAX_FRAME)
        if end == -1:
            if len(buffer) >= MAX_FRAME:
                raise _reject(f"a frame is longer than {MAX_FRAME} bytes")
            return None
        try:
            text = buffer[1:end].decode("ascii")
        except UnicodeDecodeError:
            raise _reject("a frame is not ASCII") from None
        del buffer[: end + 1]
        return text

    def _skip(self) -> bool:
        """Drop what came before the awaited bytes; say whether they are here."""
        buffer, awaited = self._buffer, self._awaited
        start = buffer.find(awaited)
        found = start != -1
        if not found:
            # The end may be their beginning: they hold just one RS, and it is the first.
            start = buffer.rfind(b"\x1e", max(0, len(buffer) - len(awaited) + 1))
            if start == -1 or not awaited.startswith(buffer[start:]):
                start = len(buffer)
        if found:
            self._awaited = b""
        if not self._reconnected:
            self._skipped_bytes += start
            self.skipped += bytes(buffer[: min(start, KEPT_SKIPPED - len(self.skipped))])
            if self._skipped_bytes > MAX_SKIPPED:
                raise _reject(f"no frame came, but more than {MAX_SKIPPED} other bytes")
        del buffer[:start]
        return found

    def _take(self, text: str) -> Event | None:
        """The event that this frame completes, if it does."""
        event, seq, parts = _decode_stream(text) or _decode(text)
        if self._them is Role.GUEST:
            if isinstance(event, Resume):
                self._repeated_from(seq, event.seq)
                return None
            if not self._is_new(seq, len(text) + 2):
                return None
        elif seq:
            raise _reject("this side numbers no frames")
        if isinstance(event, Part):
            if self._assembly is None:
                self._assembly = _Assembly()
            self._assembly.add(event)
            return None
        if parts or self._assembly is not None:
            event = (self._assembly or _Assembly()).complete(event, parts)
            self._assembly = None
        objection = self._step(self._they_may, event)
        if objection:
            raise _reject(f"received `{_NAMES[type(event)]}` {objection}")
        if type(event) is Ack:
            self._acknowledged(event.seq)
            return None
        return event

    def _is_new(self, seq: int, size: int) -> bool:
        """Check a frame's number, and say whether the frame has not been taken before."""
        if seq != self._stream_seq + 1:
            raise _reject(f"frame {seq} came after frame {self._stream_seq}")
        self._stream_seq = seq
        if seq <= self._received_seq:
            return False
        self._received_seq = seq
        self._unacknowledged += size
        return True

    def _repeated_from(self, number: int, seq: int) -> None:
        if number or not self._reconnected or seq > self._received_seq:
            raise _reject("a repetition that was not asked for")
        self._stream_seq = seq

    def _acknowledged(self, seq: int) -> None:
        if seq > self._sent_seq:
            raise _reject("acknowledged a frame that was never sent")
        self._acked_seq = max(self._acked_seq, seq)
        while self._sent and self._sent[0][0] <= seq:
            self.unacked_bytes -= self._sent.popleft()[1]

    # both

    def _step(self, allowed: dict[type[Any], dict[Phase, Phase]], event: Event) -> str:
        """Move to the phase that follows the event, or say what speaks against it."""
        following = allowed.get(type(event), _NEVER).get(self.phase)
        if following is None:
            return f"while {self.phase.value}"
        cell = getattr(event, "cell", 0)
        if type(event) is Execute:
            if cell <= self.cell:
                return f"of cell {cell} after cell {self.cell}"
            self.cell = cell
        elif cell > self.cell:
            return f"of cell {cell}, which was never begun"
        elif cell != self.cell:
            if type(event) is ExecuteReply:
                return f"of cell {cell}, which does not run"
            if type(event) is Verdict:
                return ""
        self.phase = following
        return ""
