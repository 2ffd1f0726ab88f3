"""Hostile HTML -> HTML that runs nothing, loads nothing and covers nothing.

Invariants: a tag, attribute, class, property or address that is not listed is
dropped; nothing in the result makes a browser send a request by itself; cleaning
the result again changes nothing; all of it is linear in the markup.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import nh3

from sandbox_kernel.display import css, images, latex, markup
from sandbox_kernel.display.refused import RefusedError

#: Characters, without those of images and sounds that stand in it.
MAX_HTML = 1024 * 1024
#: How often a parser may move tags before the markup is refused.
MAX_PASSES = 4
#: Put before every id, so that none is one of the page's own.
ID_PREFIX = "sbx-"

_EVERY = {"style", "class", "title", "dir", "lang", "id"}
_PLAYER = {"src", "controls", "loop", "muted", "width", "height"}
#: Attributes by tag; `*` is any tag.
ATTRIBUTES: dict[str, set[str]] = {
    "*": _EVERY,
    "a": {"href"},
    "img": {"src", "alt", "width", "height"},
    "audio": _PLAYER,
    "video": _PLAYER,
    "source": {"src", "type"},
    "table": {"border"},
    "td": {"colspan", "rowspan", "align", "valign"},
    "th": {"colspan", "rowspan", "align", "valign", "scope"},
    "tr": {"align", "valign"},
    "col": {"span"},
    "colgroup": {"span"},
    "ol": {"start"},
    "li": {"value"},
    "details": {"open"},
    "font": {"color"},
}

_REL = "noopener noreferrer nofollow"
_NUMBER = re.compile(r"\d{1,4}", re.ASCII)
_LENGTH = re.compile(r"\d{1,4}(?:px|%)?", re.ASCII)
_SPAN = re.compile(r"\d{1,3}", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9-]{0,20}")
_SENTENCE = re.compile(r".{0,1000}", re.DOTALL)
#: What the value of an attribute must be as a whole; others have code of their own.
PATTERNS: dict[str, re.Pattern[str]] = {
    "href": re.compile(r"https?://[^\s\x00-\x20\"'<>\\`]{1,2048}", re.IGNORECASE),
    # What nh3 adds to a link passes through here too.
    "rel": re.compile(_REL),
    "id": re.compile(r"[A-Za-z][\w.-]{0,120}", re.ASCII),
    "title": _SENTENCE,
    "alt": _SENTENCE,
    "dir": re.compile(r"ltr|rtl|auto"),
    "lang": _WORD,
    "width": _LENGTH,
    "height": _LENGTH,
    "colspan": _SPAN,
    "rowspan": _SPAN,
    "span": _SPAN,
    "start": _NUMBER,
    "value": _NUMBER,
    "border": _NUMBER,
    "align": re.compile(r"left|right|center|justify", re.IGNORECASE),
    "valign": re.compile(r"top|middle|bottom|baseline", re.IGNORECASE),
    "scope": re.compile(r"row|col|rowgroup|colgroup"),
    "open": _WORD,
    "controls": _WORD,
    "loop": _WORD,
    "muted": _WORD,
    "type": re.compile(r"(?:audio|video)/[a-z0-9-]{1,20}"),
    "color": re.compile(r"#[0-9A-Fa-f]{3,8}|[A-Za-z]{1,30}"),
}
#: pandas' own classes, and those that keep MathJax out.
CLASSES = re.compile(
    r"dataframe|(?:row|col)_heading|index_name|data|blank|(?:row|col|level)\d{1,5}"
    r"|(?:tex2jax|mathjax)_ignore",
    re.ASCII,
)
#: The start of each kind of sound and film, and what stands there.
MEDIA: dict[str, tuple[int, tuple[bytes, ...]]] = {
    **dict.fromkeys(("audio/wav", "audio/x-wav"), (0, (b"RIFF",))),
    "audio/mpeg": (0, (b"ID3", b"\xff\xfb", b"\xff\xfa", b"\xff\xf3", b"\xff\xf2")),
    **dict.fromkeys(("audio/ogg", "video/ogg"), (0, (b"OggS",))),
    "video/mp4": (4, (b"ftyp",)),
    "video/webm": (0, (b"\x1a\x45\xdf\xa3",)),
}

_DATA = re.compile(r"data:[a-z]{1,9}/[a-z0-9-]{1,20};base64,[A-Za-z0-9+/=\r\n]{256,}+")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_PRE = re.compile(r"(<pre(?: [^>]*)?>)\n")
_NAME = re.compile(r"<(/?[a-z0-9]+)")
_TAG = re.compile(r"<[^>]*>")
# Where nh3 has just written `rel`, so that both always stand in the same order.
_LINK = re.compile(rf'(<a (?:[^>]*? )?rel="{_REL}")>')
_ADDRESSED = re.compile(r'<(a|img|audio|video|source) (?:[^>]*? )?(?:href|src)="')
_SEEN = re.compile(r"<(?:img|audio|video|hr|table)\b")


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Clean HTML, `""` if nothing is left to see, and what was taken out of it."""

    html: str
    withheld: frozenset[str]


def clean(html: str) -> Cleaned:
    """Clean a fragment of HTML.

    Raises:
        RefusedError: it is too large, too deep, or has too many tags.
    """
    html = _CONTROL.sub("", html)
    if len(html) - sum(len(match[0]) for match in _DATA.finditer(html)) > MAX_HTML:
        raise RefusedError("larger than 1 MiB")
    outline = markup.outline(html)
    kept = _settle(outline)
    kept_addresses = Counter(_ADDRESSED.findall(kept))
    withheld = {*outline.withheld}
    for name, count in outline.addresses.items():
        if kept_addresses[name] < count:
            withheld.add(markup.ADDRESSES[name])
    rules = []
    for sheet in outline.sheets:
        rule, lost = css.sheet(sheet)
        rules.append(rule)
        if lost:
            withheld.add("style sheet")
    if not _SEEN.search(kept) and not _TAG.sub("", kept).replace("&nbsp;", "").strip():
        return Cleaned("", frozenset(withheld))
    style = "\n".join(filter(None, rules))
    return Cleaned(f"<style>{style}</style>{kept}" if style else kept, frozenset(withheld))


def _settle(outline: markup.Outline) -> str:
    """Sanitise until a parser has nothing left to move, so that no later one reads it otherwise."""
    for _ in range(MAX_PASSES):
        kept = _LINK.sub(r'\1 target="_blank">', _sanitise(outline.markup))
        # A parser drops the first newline of a `pre`: write the one that was dropped.
        kept = latex.defuse(_PRE.sub("\\1\n\n", markup.restore(kept)))
        if _NAME.findall(kept) == outline.shape:
            return kept
        outline = markup.outline(kept)
    raise RefusedError("malformed")


def _sanitise(plain: str) -> str:
    cleaner = nh3.Cleaner(
        tags=set(markup.TAGS),
        clean_content_tags=set(markup.HIDDEN),
        attributes=ATTRIBUTES,
        attribute_filter=_judge,
        url_schemes={"http", "https", "data"},
        url_relative="deny",
        link_rel=_REL,
        id_prefix=ID_PREFIX,
    )
    try:
        return cleaner.clean(plain)
    except BaseException as panic:
        # A panic of nh3's Rust code is no `Exception`, and would end the kernel.
        if type(panic).__module__ != "pyo3_runtime":
            raise
        raise RefusedError("malformed") from None


def _judge(tag: str, name: str, value: str) -> str | None:
    """The value that an attribute may have, or `None`; called by nh3, so it never raises."""
    if markup.holds_placeholder(value):
        return None
    if name == "style":
        return css.declarations(value) or None
    if name == "class":
        return _classes(value)
    if name == "src":
        try:
            return _image(value) if tag == "img" else _media(value)
        except RefusedError:
            return None
    pattern = PATTERNS.get(name)
    return value if pattern is not None and pattern.fullmatch(value) else None


def _classes(value: str) -> str | None:
    return " ".join(name for name in value.split() if CLASSES.fullmatch(name)) or None


def _image(url: str) -> str:
    head, _, payload = url.partition(",")
    mime = head.removeprefix("data:").removesuffix(";base64")
    picture = images.check(mime, payload)
    return f"data:{mime};base64,{picture.base64}"


def _media(url: str) -> str:
    head, _, payload = url.partition(",")
    mime = head.removeprefix("data:").removesuffix(";base64")
    if mime not in MEDIA:
        raise RefusedError("not a type of sound or film")
    compact, data = images.decode(payload)
    position, starts = MEDIA[mime]
    if not data[position:].startswith(starts):
        raise RefusedError("malformed")
    return f"data:{mime};base64,{compact}"
