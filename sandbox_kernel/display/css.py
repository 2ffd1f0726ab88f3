"""Style declarations and pandas' style sheets, rebuilt from a closed grammar.

Invariants: nothing is passed on because it looked harmless; a declaration is
written anew if every token of it is in the grammar below, and dropped if not.
The grammar has no escape, comment, at-rule, URL, variable or negative number,
and its only functions are colours and gradients, so no two CSS parsers read its
sentences differently.  All of it is linear in the text.
"""

from __future__ import annotations

import re
from functools import lru_cache

#: Of one `style` attribute, in characters.
MAX_STYLE = 4096

#: Properties that change how a thing looks, and not where on the page it is.
PROPERTIES = frozenset(
    {"background", "background-color", "caption-side", "color", "display", "empty-cells", "font",
     "font-family", "font-size", "font-style", "font-variant", "font-weight", "height",
     "letter-spacing", "line-height", "list-style-type", "max-height", "max-width", "min-height",
     "min-width", "opacity", "overflow", "overflow-wrap", "overflow-x", "overflow-y",
     "table-layout", "tab-size", "text-align", "text-decoration", "text-decoration-color",
     "text-decoration-line", "text-decoration-style", "text-indent", "text-transform",
     "text-overflow", "vertical-align", "white-space", "width", "word-break", "word-wrap"}
    | {f"{box}{side}" for box in ("margin", "padding")
       for side in ("", "-top", "-right", "-bottom", "-left")}
    | {f"border{side}{what}" for side in ("", "-top", "-right", "-bottom", "-left")
       for what in ("", "-color", "-style", "-width")}
    | {"border-collapse", "border-radius", "border-spacing"}
)  # fmt: skip

_NUMBER = r"(?:\d{1,5}+(?:\.\d{1,18}+)?+|\.\d{1,18}+)(?:e-\d\d?|%|[a-z]{1,4})?+"
_WORD = r"[a-z][a-z-]{0,40}+"
_HEX = r"\#[0-9a-f]{3,8}+"
_COLOUR = rf"(?:rgb|hsl)a?\((?:{_NUMBER}|[\s,/])++\)"
_GRADIENT = rf"linear-gradient\((?:{_COLOUR}|{_HEX}|{_NUMBER}|{_WORD}|[\s,])++\)"
_STRING = r""" "[\w ,.-]{1,80}+" | '[\w ,.-]{1,80}+' """
_VALUE = re.compile(
    rf"(?:{_GRADIENT}|{_COLOUR}|{_HEX}|{_NUMBER}|{_WORD}|{_STRING}|[\s,/])++(?:!\s*+important\s*+)?+",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)

_NAME = r"[A-Za-z][\w-]{0,60}+"
_SIMPLE = rf"(?:[a-z][a-z0-9]{{0,9}}+(?:\.{_NAME})*+|(?:\.{_NAME})++)"
_PSEUDO = (
    r"(?::(?:hover|first-child|last-child|nth-child\((?:odd|even|\d{0,3}n?(?:\s?\+\s?\d{1,3})?)\)))"
)
#: An element of one Styler's table: its id, and what is inside of the element with that id.
_SELECTOR = re.compile(
    rf"#(?:sbx-)?+(?P<id>T_[\w-]{{1,100}}+){_PSEUDO}?(?P<inside>(?:(?:\s*>\s*|\s+){_SIMPLE}{_PSEUDO}?){{0,4}})",
    re.ASCII,
)


@lru_cache(maxsize=1024)
def declarations(text: str) -> str:
    """The declarations of a `style` attribute that may stay, `""` if none."""
    if len(text) > MAX_STYLE:
        return ""
    return ";".join(kept for part in text.split(";") if (kept := _declaration(part)))


def sheet(text: str) -> tuple[str, bool]:
    """The rules of a style sheet that dress a pandas Styler's table, and whether others fell out.

    What pandas says about every plain table is no loss: Jupyter's own style says it too.
    """
    rules = []
    lost = False
    for chunk in text.split("}"):
        head, brace, body = chunk.partition("{")
        if not brace:
            lost |= bool(chunk.strip())
            continue
        selectors = [_selector(part) for part in head.split(",")]
        style = declarations(body)
        if all(selectors) and style:
            rules.append(f"{','.join(selectors)}{{{style}}}")
        else:
            lost |= bool(body.strip()) and not head.strip().startswith(".dataframe ")
    return "\n".join(rules), lost


def _declaration(text: str) -> str:
    name, _, value = text.partition(":")
    name = name.strip().lower()
    if name not in PROPERTIES or not _VALUE.fullmatch(value) or not value.strip():
        return ""
    return f"{name}:{' '.join(value.split())}"


def _selector(text: str) -> str:
    text = text.strip()
    match = _SELECTOR.fullmatch(text)
    if match is None:
        return ""
    return "#sbx-" + " ".join(text[match.start("id") :].split())
