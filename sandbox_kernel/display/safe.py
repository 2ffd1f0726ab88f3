"""What may be shown: the only values that become Jupyter messages.

Invariant: only the package `display` makes these; a part that wants to show
something of its own asks `Firewall.notice` or `Firewall.own_error` for it.
Every text in them is clean, every size bounded, every id the host's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class BundleKind(Enum):
    """What a MIME bundle is shown as; the value is Jupyter's message type."""

    DISPLAY_DATA = "display_data"
    UPDATE_DISPLAY_DATA = "update_display_data"
    EXECUTE_RESULT = "execute_result"


@dataclass(frozen=True, slots=True)
class Stream:
    """Text for `stdout` or `stderr`."""

    cell: int
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """One value in several forms, by MIME type; `text/plain` is always among them.

    `display_id` is the host's own id, or `""` for an output that nothing updates.
    """

    cell: int
    kind: BundleKind
    data: Mapping[str, object]
    metadata: Mapping[str, object]
    display_id: str


@dataclass(frozen=True, slots=True)
class Clear:
    """Clear the output of the running cell, at once or when more of it comes."""

    cell: int
    wait: bool


@dataclass(frozen=True, slots=True)
class Error:
    """An exception: the user's, or one of ours if `ename` starts with `Sandbox`."""

    cell: int
    ename: str
    evalue: str
    traceback: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Text for the pager; plain, with colours."""

    cell: int
    text: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question to the user, marked as the sandboxed code's own."""

    cell: int
    prompt: str
    password: bool


@dataclass(frozen=True, slots=True)
class Completion:
    """`types[i]` is the kind of `matches[i]`; each would replace `code[start:end]`."""

    request: int
    matches: tuple[str, ...]
    types: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """Documentation, as text with colours; empty if nothing was found."""

    request: int
    found: bool
    text: str


@dataclass(frozen=True, slots=True)
class Completeness:
    """Whether code is `complete`, `incomplete`, `invalid` or `unknown`."""

    request: int
    status: str
    indent: str


Safe = Stream | Bundle | Clear | Error | Page | Prompt | Completion | Inspection | Completeness
