"""The output firewall: a hostile event in, safe ones out.

Invariants: whatever the event, `sanitize` returns; an event whose filter fails
is dropped, never passed on; of what is withheld one line tells, once for each
kind and cell; a guest's numbers and names choose nothing but among its own
outputs of the same cell.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from sandbox_kernel import wire
from sandbox_kernel.display import mime, safe, text
from sandbox_kernel.policy import Display

MAX_UPDATES = 1000
MAX_LIVE_IDS = 200
MAX_QUESTIONS = 20
MAX_PROMPT = 200
MAX_MATCHES = 200
MAX_MATCH = 200
#: Kinds of withheld content that a cell's notices tell of.
MAX_NOTICES = 20
#: Characters of a notice of the host.
MAX_NOTICE = 1000

PROMPT_MARK = "[sandboxed code asks] "

_BUNDLE_KINDS = {
    wire.DisplayData: safe.BundleKind.DISPLAY_DATA,
    wire.UpdateDisplayData: safe.BundleKind.UPDATE_DISPLAY_DATA,
    wire.ExecuteResult: safe.BundleKind.EXECUTE_RESULT,
}


@dataclass(slots=True)
class _Cell:
    """What has been counted of one cell's output."""

    updates: int = 0
    questions: int = 0
    told: set[str] = field(default_factory=set)
    #: The start of a colour, by stream, that may go on in the next chunk.
    pending: dict[str, str] = field(default_factory=dict)
    #: Whether stderr stands in the middle of a line.
    mid_line: bool = False


class Firewall:
    """The firewall of one session.

    Args:
        mode: What the configuration asks for.  Only the rules of `Display.STRICT` exist; they
            hold for every mode, and the notices say so.
    """

    def __init__(self, mode: Display) -> None:
        self._hint = ""
        if mode is not Display.STRICT:
            self._hint = f" (`{mode.value}` is not available yet)"
        self._cell = 0
        self._cells: dict[int, _Cell] = {}
        # Guest's key -> host's id; dictionaries keep their order, so the first is the oldest.
        self._ids: dict[tuple[int, str], str] = {}

    def begin_cell(self, cell: int) -> None:
        """Start to count anew, for the cell that is about to run."""
        self._cell = cell
        self._cells[cell] = _Cell()

    def sanitize(self, event: wire.Event, *, code: str = "") -> tuple[safe.Safe, ...]:
        """What may be shown of an event, in order; empty if that is nothing.

        Args:
            event: As it came from the guest.
            code: For a `CompleteReply`, the code that was to be completed.
        """
        try:
            return self._sanitize(event, code)
        # A filter's bug must cost one output, not the firewall: what it failed on is dropped.
        except Exception:  # noqa: BLE001
            cell = getattr(event, "cell", 0)
            return self._tell(cell, frozenset({"an output that could not be checked"}))

    def notice(self, cell: int, line: str) -> safe.Stream:
        """A line of the host's own in a cell's output."""
        state = self._state(cell)
        start = "\n" if state.mid_line else ""
        state.mid_line = False
        return safe.Stream(cell, "stderr", f"{start}[sandbox] {text.one_line(line, MAX_NOTICE)}\n")

    def own_bundle(self, cell: int, plain: str, html: str) -> safe.Bundle:
        """Something of the host's own: text, and HTML that is cleaned as the guest's is."""
        clean = mime.clean_bundle(["text/plain", "text/html"], [plain, html], [])
        return safe.Bundle(cell, safe.BundleKind.DISPLAY_DATA, clean.data, clean.metadata, "")

    def own_error(self, cell: int, ename: str, evalue: str) -> safe.Error:
        """One of the session's own errors; `evalue` may hold words of the guest."""
        evalue = text.clean_evalue(evalue)
        lines = f"\x1b[31m{ename}\x1b[0m: {evalue}".split("\n")
        return safe.Error(cell, ename, evalue, tuple(lines))

    # one event

    def _sanitize(self, event: wire.Event, code: str) -> tuple[safe.Safe, ...]:
        match event:
            case wire.Stream():
                return self._stream(event)
            case wire.DisplayData() | wire.ExecuteResult():
                return self._bundle(event)
            case wire.UpdateDisplayData():
                return self._update(event)
            case wire.ClearOutput(cell, wait):
                return (safe.Clear(cell, wait),) if cell == self._cell else ()
            case wire.Error(cell, ename, evalue, traceback):
                return (text.clean_error(cell, ename, evalue, traceback),)
            case wire.Page(cell, page):
                return (safe.Page(cell, text.cut(text.clean(page), text.MAX_TEXT)),)
            case wire.InputRequest():
                return self._question(event)
            case wire.ExecuteReply(cell) | wire.Verdict(cell):
                return self._rest(cell)
            case wire.CompleteReply():
                return (_completion(event, code),)
            case wire.InspectReply(request, found, documentation):
                page = text.cut(text.clean(documentation), text.MAX_TEXT)
                return (safe.Inspection(request, found, page),)
            case wire.IsCompleteReply(request, status, indent):
                blank = indent if not indent.strip(" \t") and len(indent) <= 100 else ""
                return (safe.Completeness(request, status, blank),)
        return ()

    def _stream(self, event: wire.Stream) -> tuple[safe.Safe, ...]:
        state = self._state(event.cell)
        shown, pending = text.clean_chunk(state.pending.pop(event.name, ""), event.text)
        if pending:
            state.pending[event.name] = pending
        if not shown:
            return ()
        if event.name == "stderr":
            state.mid_line = not shown.endswith("\n")
        return (safe.Stream(event.cell, event.name, shown),)

    def _rest(self, cell: int) -> tuple[safe.Safe, ...]:
        """What waited for a chunk that never came."""
        pending, self._state(cell).pending = self._state(cell).pending, {}
        return tuple(safe.Stream(cell, name, text.clean(chunk)) for name, chunk in pending.items())

    def _update(self, event: wire.UpdateDisplayData) -> tuple[safe.Safe, ...]:
        if (event.cell, event.display_id) not in self._ids:
            return self._tell(event.cell, frozenset({"an update of what this cell did not show"}))
        state = self._state(event.cell)
        state.updates += 1
        if state.updates > MAX_UPDATES:
            return self._tell(event.cell, frozenset({f"updates after the first {MAX_UPDATES}"}))
        return self._bundle(event)

    def _bundle(
        self, event: wire.DisplayData | wire.UpdateDisplayData | wire.ExecuteResult
    ) -> tuple[safe.Safe, ...]:
        if not event.mimes:
            return ()
        clean = mime.clean_bundle(event.mimes, event.values, event.sizes)
        key = "" if isinstance(event, wire.ExecuteResult) else event.display_id
        shown = safe.Bundle(
            event.cell,
            _BUNDLE_KINDS[type(event)],
            clean.data,
            clean.metadata,
            self._display_id(event.cell, key) if key else "",
        )
        return (shown, *self._tell(event.cell, clean.withheld))

    def _display_id(self, cell: int, key: str) -> str:
        """The host's id for a guest's; a key that another cell used is another id."""
        known = self._ids.get((cell, key))
        if known is not None:
            return known
        if len(self._ids) >= MAX_LIVE_IDS:
            del self._ids[next(iter(self._ids))]
        return self._ids.setdefault((cell, key), str(uuid.uuid4()))

    def _question(self, event: wire.InputRequest) -> tuple[safe.Safe, ...]:
        state = self._state(event.cell)
        state.questions += 1
        if state.questions > MAX_QUESTIONS:
            return self._tell(event.cell, frozenset({f"questions after the first {MAX_QUESTIONS}"}))
        prompt = PROMPT_MARK + text.one_line(event.prompt, MAX_PROMPT)
        return (safe.Prompt(event.cell, prompt, event.password),)

    def _tell(self, cell: int, withheld: frozenset[str]) -> tuple[safe.Safe, ...]:
        """One line about what is withheld, if this cell has not told of it yet."""
        told = self._state(cell).told
        new = sorted(withheld - told)[: max(0, MAX_NOTICES - len(told))]
        if not new or not cell:
            return ()
        told.update(new)
        line = f'withheld by `display = "strict"`{self._hint}: {", ".join(new)}'
        return (self.notice(cell, line),)

    def _state(self, cell: int) -> _Cell:
        return self._cells.setdefault(cell, _Cell())


def _completion(event: wire.CompleteReply, code: str) -> safe.Completion:
    """Those matches that are what they look like; none if their place is not in the code."""
    if not 0 <= event.start <= event.end <= len(code):
        return safe.Completion(event.request, (), (), 0, 0)
    types = [*event.types, *[""] * len(event.matches)]
    kept = [
        (match, text.one_line(kind, 40))
        for match, kind in zip(event.matches, types, strict=False)
        if match and len(match) <= MAX_MATCH and text.one_line(match, MAX_MATCH) == match
    ][:MAX_MATCHES]
    return safe.Completion(
        event.request,
        tuple(match for match, _ in kept),
        tuple(kind for _, kind in kept),
        event.start,
        event.end,
    )
