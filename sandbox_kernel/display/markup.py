"""Hostile markup -> well-nested markup of a few tags, in linear time.

This module bounds the work of the sanitiser that comes after it, and judges no
attribute: a parser that keeps to the standard takes quadratic time or memory on
deep, unclosed or interleaved tags.

Invariants: what comes out is well nested and at most `MAX_DEPTH` deep, has no
comment, no tag outside of `TAGS`, and no element whose content is not markup.
"""

from __future__ import annotations

import html as entities
import re
from dataclasses import dataclass
from itertools import islice

from sandbox_kernel.display.refused import RefusedError

MAX_DEPTH = 256
MAX_TAGS = 100_000
#: Of one tag; the rest is dropped where a tag is long.
MAX_ATTRIBUTES = 32
#: A parser may copy open formatting tags at every later tag: bound of such copies, in characters.
MAX_COPIED = 8 * 1024 * 1024

_FORMATTING = frozenset(
    {"a", "b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u"}
)
_VOID = frozenset({"br", "col", "hr", "img", "source"})
TAGS = (
    _FORMATTING | _VOID
    | {"abbr", "article", "aside", "audio", "blockquote", "caption", "center", "cite", "colgroup",
       "dd", "del", "details", "dfn", "div", "dl", "dt", "figcaption", "figure", "footer", "h1",
       "h2", "h3", "h4", "h5", "h6", "header", "ins", "kbd", "li", "main", "mark", "ol", "p",
       "pre", "q", "samp", "section", "span", "sub", "summary", "sup", "table", "tbody", "td",
       "tfoot", "th", "thead", "time", "tr", "ul", "var", "video"}
)  # fmt: skip

#: Dropped together with all up to their end tag.
HIDDEN = frozenset(
    {"applet", "iframe", "math", "noembed", "noframes", "noscript", "object", "plaintext",
     "script", "select", "style", "svg", "template", "textarea", "title", "xmp"}
)  # fmt: skip
#: Whose absence the user should know of, by the word that says it.
_TELL = {
    "script": "script", "iframe": "frame", "frame": "frame", "object": "object",
    "embed": "object", "applet": "object", "svg": "inline SVG", "math": "MathML",
    "form": "form", "input": "form", "button": "form", "select": "form", "textarea": "form",
    "link": "style sheet", "meta": "page header", "base": "page header", "canvas": "canvas",
}  # fmt: skip

#: Tags with an address, and the word for one that was taken away.
ADDRESSES = {
    "a": "link", "img": "image",
    "audio": "sound or film", "video": "sound or film", "source": "sound or film",
}  # fmt: skip

#: Start tags that end what stands open before them, where its end tag was left out.
_CELL = frozenset({"td", "th", "p"})
_ROW = _CELL | {"tr"}
_ENDS = {
    "p": frozenset({"p"}), "li": frozenset({"li", "p"}), "dd": frozenset({"dd", "dt", "p"}),
    "dt": frozenset({"dd", "dt", "p"}), "td": _CELL, "th": _CELL, "tr": _ROW,
    "tbody": _ROW | {"tbody", "thead", "colgroup"}, "thead": _ROW | {"colgroup"},
    "tfoot": _ROW | {"tbody", "thead"},
}  # fmt: skip

# Noncharacters stand for these while a parser is at work; `outline` takes them out of its input.
_AMPERSAND, _LESS = "\ufdd0", "\ufdd1"

# As the HTML standard cuts bytes into tags; possessive throughout, so there is no backtracking.
_TOKEN = re.compile(
    r"""
    <!--(?:-?>|.*?(?:--!?>|\Z))
    | <(?:[!?]|/(?![a-zA-Z]))[^>]*+(?:>|\Z)
    | <(?P<slash>/?+)(?P<name>[a-zA-Z][^\s/>]*+)
      (?P<attributes>(?:
        [\s/]++ | (?:=?+[^\s/>=]++|=)(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s"'>][^\s>]*+)?+)?+
      )*+)>
    """,
    re.ASCII | re.DOTALL | re.VERBOSE,
)
_ATTRIBUTE = re.compile(
    r"""(?:=?+[^\s/>=]++|=)(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s"'>][^\s>]*+)?+)?+""", re.ASCII
)
#: Where a token may start; any other `<` is text.
_START = re.compile(r"<(?=[a-zA-Z/!?])")
_ADDRESS = re.compile(r"""(?:\A|[\s/"'])(?:href|src)\s*=""", re.ASCII | re.IGNORECASE)
_HANDLER = re.compile(r"""(?:\A|[\s/"'])on[a-z]+\s*=""", re.ASCII | re.IGNORECASE)
_END = {name: re.compile(rf"</{name}(?=[\s/>])", re.ASCII | re.IGNORECASE) for name in HIDDEN}


@dataclass(frozen=True, slots=True)
class Outline:
    """Well-nested markup, and what was seen while writing it.

    Attributes:
        markup: For the sanitiser.
        sheets: The content of each `style` element.
        withheld: Words for what was left out.
        addresses: How many tags of each name hold an address.
        shape: The names of all tags in order, `/` before those that end.
    """

    markup: str
    sheets: tuple[str, ...]
    withheld: frozenset[str]
    addresses: dict[str, int]
    shape: list[str]


def outline(html: str) -> Outline:
    """Reduce markup to its outline.

    Raises:
        RefusedError: it is nested too deeply, or has too many tags.
    """
    html = html.replace(_AMPERSAND, "").replace(_LESS, "")
    writer = _Writer()
    position = 0
    while (start := _START.search(html, position)) is not None:
        writer.text(html[position : start.start()])
        token = _TOKEN.match(html, start.start())
        if token is None:  # a tag that never ends is nothing
            return writer.finish("")
        position = token.end()
        if token["name"] is None:
            continue
        name = token["name"].lower()
        if token["slash"]:
            writer.end(name)
        elif name in HIDDEN:
            end = _END[name].search(html, position)
            writer.hidden(name, html[position : end.start() if end else len(html)])
            if end is None:
                return writer.finish("")
            position = end.start()
        else:
            writer.start(name, token["attributes"])
    return writer.finish(html[position:])


def restore(html: str) -> str:
    """Put back, as references, the characters that `outline` held back from the parser."""
    return html.replace(_AMPERSAND, "&amp;").replace(_LESS, "&lt;")


def holds_placeholder(value: str) -> bool:
    """Whether `restore` would change this value: the parser made it so from references."""
    return _AMPERSAND in value or _LESS in value


def _hold_back(text: str) -> str:
    """Text without character references: a parser takes microseconds for each."""
    if "&" in text:
        try:
            text = entities.unescape(text)
        except ValueError:  # a number of thousands of digits
            raise RefusedError("malformed") from None
    return text.replace("&", _AMPERSAND).replace("<", _LESS)


class _Writer:
    """Writes the outline, and closes what its source left open."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._open: list[tuple[str, int]] = []
        self._counts: dict[str, int] = {}
        self._tags = self._weight = self._copied = 0
        self._sheets: list[str] = []
        self._withheld: set[str] = set()
        self._addresses: dict[str, int] = {}
        self._shape: list[str] = []

    def text(self, text: str) -> None:
        self._out.append(_hold_back(text))

    def start(self, name: str, attributes: str) -> None:
        self._count()
        if "on" in attributes and _HANDLER.search(attributes):
            self._withheld.add("event handler")
        if name not in TAGS:
            if name in _TELL:
                self._withheld.add(_TELL[name])
            return
        if name in ADDRESSES and _ADDRESS.search(attributes):
            self._addresses[name] = self._addresses.get(name, 0) + 1
        ended = _ENDS.get(name, frozenset())
        while self._open and self._open[-1][0] in ended:
            self._close()
        if len(attributes) > 2048:
            some = islice(_ATTRIBUTE.finditer(attributes), MAX_ATTRIBUTES)
            attributes = " " + " ".join(match[0] for match in some)
        self._out.append(f"<{name}{attributes}>")
        self._shape.append(name)
        if name in _VOID:
            return
        if len(self._open) == MAX_DEPTH:
            raise RefusedError(f"nested deeper than {MAX_DEPTH} tags")
        weight = 32 + len(attributes) if name in _FORMATTING else 0
        self._weight += weight
        self._open.append((name, weight))
        self._counts[name] = self._counts.get(name, 0) + 1

    def end(self, name: str) -> None:
        self._count()
        if not self._counts.get(name):
            return
        while self._close() != name:
            pass

    def hidden(self, name: str, content: str) -> None:
        self._count()
        if name == "style":
            self._sheets.append(content)
        elif name in _TELL:
            self._withheld.add(_TELL[name])

    def finish(self, rest: str) -> Outline:
        self.text(rest)
        while self._open:
            self._close()
        return Outline(
            "".join(self._out),
            tuple(self._sheets),
            frozenset(self._withheld),
            self._addresses,
            self._shape,
        )

    def _close(self) -> str:
        name, weight = self._open.pop()
        self._weight -= weight
        self._counts[name] -= 1
        self._out.append(f"</{name}>")
        self._shape.append(f"/{name}")
        return name

    def _count(self) -> None:
        self._tags += 1
        self._copied += self._weight
        if self._tags > MAX_TAGS or self._copied > MAX_COPIED:
            raise RefusedError("too many tags")
