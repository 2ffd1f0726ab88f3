"""What both shells say of a cell besides text: displays, results, errors, pages, typed lines.

Invariants: text that was written before goes out before; an event never outgrows the wire.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, TextIO

from sandbox_kernel import wire
from sandbox_kernel.guest import hints, mime
from sandbox_kernel.guest.link import ROOM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandbox_kernel.guest.link import Link
    from sandbox_kernel.guest.output import Spool
    from sandbox_kernel.guest.routing import Routing

#: Characters of the message of an exception, and of each of its traceback's lines.
_LINE = 64 * 1024
#: Lines of a traceback that are sent: its head, and as many of its tail.
_LINES = 1000


class Publisher:
    """Sends what a shell has to show, for the cell that it belongs to."""

    def __init__(self, link: Link, routing: Routing, spool: Spool, image: str) -> None:
        self._link = link
        self._cell = routing.current
        self._spool = spool
        self._image = image

    def display(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None,
        *,
        display_id: str = "",
        update: bool = False,
    ) -> None:
        """Show a MIME bundle, or put it in the place of those shown under `display_id`."""
        bundle = self._lower(data, metadata)
        lists = (self._cell(), bundle.mimes, bundle.values, bundle.sizes, display_id)
        self._link.send(wire.UpdateDisplayData(*lists) if update else wire.DisplayData(*lists))

    def result(self, data: Mapping[str, Any], metadata: Mapping[str, Any] | None) -> None:
        """Show the value of a cell's last expression."""
        bundle = self._lower(data, metadata)
        self._link.send(wire.ExecuteResult(self._cell(), bundle.mimes, bundle.values, bundle.sizes))

    def _lower(self, data: Mapping[str, Any], metadata: Mapping[str, Any] | None) -> mime.Bundle:
        bundle = mime.bundle(data, metadata, ROOM)
        for kind in bundle.too_large:
            self.note(f"an output of type `{kind}` was larger than 16 MiB and is not shown")
        self._spool.flush()
        return bundle

    def error(self, error: BaseException, ename: str, traceback: Sequence[str]) -> None:
        """Show an exception that ended a cell."""
        self._spool.flush()
        lines = list(traceback)
        if len(lines) > 2 * _LINES:
            cut = f"... {len(lines) - 2 * _LINES} lines left out ...\n"
            lines = [*lines[:_LINES], cut, *lines[-_LINES:]]
        lines = [str(line)[:_LINE] for line in lines]
        while sum(map(len, lines)) > ROOM // 2:
            del lines[len(lines) // 2]
        event = wire.Error(self._cell(), ename[:200], message_of(error)[:_LINE], lines)
        self._link.send(event)
        hint = hints.missing_module(error, self._image)
        if hint:
            self.note(hint)

    def clear(self, *, wait: bool) -> None:
        """Clear the cell's output."""
        self._spool.flush()
        self._link.send(wire.ClearOutput(self._cell(), wait))

    def page(self, text: str) -> None:
        """Show text in the pager."""
        self._spool.flush()
        self._link.send(wire.Page(self._cell(), text[:ROOM]))

    def note(self, text: str) -> None:
        """Print one line on stderr, also where user code has replaced `sys.stderr`."""
        self._spool.write("stderr", f"{text}\n")


def message_of(error: BaseException) -> str:
    """`str(error)`, also of an exception whose `__str__` raises."""
    try:
        return str(error)
    # The user's `__str__` may raise anything, and this is the report of an error already.
    except Exception:  # noqa: BLE001
        return "<exception str() failed>"


def exit_code_of(error: BaseException | None) -> int:
    """The status that a script would have ended with."""
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def without_our_frames(tb: Any) -> Any:
    """Cut the frames of this package out of a traceback (of an interrupted `print`, say)."""
    kept = []
    while tb is not None:
        if not tb.tb_frame.f_globals.get("__name__", "").startswith("sandbox_kernel."):
            kept.append(tb)
        tb = tb.tb_next
    for outer, inner in zip(kept, [*kept[1:], None]):
        outer.tb_next = inner
    return kept[0] if kept else None


class Asking:
    """`input` and `getpass.getpass` of a cell; the text of their errors is ipykernel's."""

    def __init__(self, link: Link, spool: Spool, refusal: type[Exception]) -> None:
        self.allowed = False
        self._link = link
        self._spool = spool
        self._refusal = refusal

    def raw_input(self, prompt: object = "") -> str:
        """Return a line that the user types."""
        if not self._may_ask:
            raise self._refusal(
                "raw_input was called, but this frontend does not support input requests."
            )
        return self._ask(str(prompt), password=False)

    def getpass(
        self,
        prompt: str = "Password: ",
        stream: TextIO | None = None,
        *,
        echo_char: str | None = None,
    ) -> str:
        """Return a line that the user types unseen."""
        if not self._may_ask:
            raise self._refusal(
                "getpass was called, but this frontend does not support input requests."
            )
        for name, value in (("stream", stream), ("echo_char", echo_char)):
            if value is not None:
                text = f"The `{name}` parameter of `getpass.getpass` will have no effect"
                warnings.warn(f"{text} when using ipykernel", UserWarning, stacklevel=2)
        return self._ask(str(prompt), password=True)

    @property
    def _may_ask(self) -> bool:
        return self.allowed and self._link.running and not self._link.forked

    def _ask(self, prompt: str, *, password: bool) -> str:
        sys.stdout.flush()
        self._spool.flush()
        return self._link.ask(prompt[:_LINE], password=password)
