"""The MIME table: what of a bundle may be shown, and as what.

Invariants: a type that is not in `TABLE` is dropped; a bundle always has
`text/plain`; its metadata is the host's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox_kernel.display import html, images, jsontext, latex, markdown, text
from sandbox_kernel.display.refused import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN = "text/plain"
#: Of one bundle; more are dropped unread.
MAX_TYPES = 50
#: Pixels that an image may be asked to take.
MAX_SHOWN_SIDE = 8192

_SIZE = re.compile(r"(image/[a-z+]{1,10})=(\d{1,4})x(\d{1,4})", re.ASCII)
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,40}/[a-z0-9][a-z0-9.+-]{0,60}")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a filter made of one value: a value of another or the same type.

    Attributes:
        mime: Under which it is shown.
        value: Clean; a `str`, or any JSON value for a JSON type.
        plain: The same for those who read text only, or `""`.
        withheld: Parts that were taken out, in words.
    """

    mime: str
    value: object
    plain: str = ""
    withheld: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CleanBundle:
    """A bundle that may be shown, and the names of what was taken out of it."""

    data: dict[str, object]
    metadata: dict[str, object]
    withheld: frozenset[str]


Size = tuple[int, int]


def clean_bundle(mimes: list[str], values: list[str], sizes: list[str]) -> CleanBundle:
    """Clean every form of a value; of two that become the same type the first in `TABLE` stays.

    `withheld` names types (`application/pdf`), and parts of them (`text/html script`).
    """
    given = dict(zip(mimes[:MAX_TYPES], values, strict=False))
    asked = _sizes(sizes)
    data: dict[str, object] = {}
    plain = ""
    withheld = {_name(mime) for mime in given if mime not in TABLE}
    for mime, judge in TABLE.items():
        if mime not in given:
            continue
        try:
            shown = judge(mime, given[mime], asked.get(mime, (0, 0)))
        except RefusedError as refused:
            withheld.add(f"{mime} ({refused.reason})")
            continue
        withheld |= {f"{mime} {part}" for part in shown.withheld}
        plain = plain or shown.plain
        if shown.value != "" or mime == PLAIN:
            data.setdefault(shown.mime, shown.value)
    if PLAIN not in data:
        data[PLAIN] = plain or " ".join(f"<{_name(mime)}>" for mime in list(given)[:3])
    metadata: dict[str, object] = {
        mime: {name: side for name, side in zip(("width", "height"), size, strict=True) if side}
        for mime, size in asked.items()
        if mime in data and any(size)
    }
    return CleanBundle(data, metadata, frozenset(withheld))


def _name(mime: str) -> str:
    return mime if _NAME.fullmatch(mime) else "a type without a proper name"


def _sizes(sizes: list[str]) -> dict[str, Size]:
    found = {}
    for item in sizes[:MAX_TYPES]:
        match = _SIZE.fullmatch(item)
        if match is not None:
            width, height = int(match[2]), int(match[3])
            if max(width, height) <= MAX_SHOWN_SIDE:
                found[match[1]] = (width, height)
    return found


# --- one filter per type --------------------------------------------------------------------


def _html(mime: str, value: str, _: Size) -> Shown:
    cleaned = html.clean(value)
    return Shown(mime, cleaned.html, withheld=cleaned.withheld)


def _markdown(_: str, value: str, __: Size) -> Shown:
    plain = text.cut(text.clean(value), text.MAX_TEXT)
    cleaned = html.clean(markdown.to_html(value))
    return Shown("text/html", cleaned.html, plain, cleaned.withheld)


def _svg(_: str, value: str, size: Size) -> Shown:
    return Shown("text/html", images.svg_as_html(value, size))


def _image(mime: str, value: str, _: Size) -> Shown:
    picture = images.check(mime, value)
    return Shown(mime, picture.base64, f"<{mime} {picture.width}x{picture.height}>")


def _latex(mime: str, value: str, _: Size) -> Shown:
    formula = text.clean(latex.check(value))
    return Shown(mime, formula, formula)


def _json(mime: str, value: str, _: Size) -> Shown:
    return Shown(mime, jsontext.parse(value))


def _plain(mime: str, value: str, _: Size) -> Shown:
    return Shown(mime, text.cut(text.clean(value), text.MAX_TEXT))


#: Type -> its filter.  Everything else is dropped.
TABLE: dict[str, Callable[[str, str, Size], Shown]] = {
    "text/html": _html,
    "text/markdown": _markdown,
    "image/svg+xml": _svg,
    "text/latex": _latex,
    "image/png": _image,
    "image/jpeg": _image,
    "image/gif": _image,
    "image/webp": _image,
    "application/json": _json,
    PLAIN: _plain,
}
