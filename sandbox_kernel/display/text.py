"""Hostile text -> text that a terminal or a page shows as it is.

Invariants: of the control characters only newline, tab, return, backspace and
colours (`ESC [ digits ; m`) come through; every other one becomes its visible
picture.  All of it is linear in the text.
"""

from __future__ import annotations

import re

from sandbox_kernel.display.safe import Error

#: Characters of one `text/plain`, or of one page.
MAX_TEXT = 1024 * 1024
MAX_EVALUE = 4096
MAX_TRACEBACK_LINES = 100
#: Characters; a traceback's start is worth less than its end, which names the error.
MAX_TRACEBACK = 64 * 1024
_HEAD_LINES, _HEAD = 40, 24 * 1024
_MAX_LINE = 2000

_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,64}m)")
_LONGEST_COLOUR = 67
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;]{0,64})?\Z")

# U+2400 holds a picture of each C0 character; C1 has none, so its number is shown.
_PICTURES: dict[int, int | str] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t\r\b"},
    0x7F: 0x2421,
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
}
#: Characters that are not seen, or that turn the order of others around.
_HIDDEN = (
    0xAD, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180E, *range(0x200B, 0x2010),
    0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164, 0xFEFF, 0xFFA0,
    *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080),
)  # fmt: skip
_ESCAPES: dict[int, int | str] = {
    code: f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}" for code in _HIDDEN
}
_PLAIN_TABLE = _PICTURES
_STRICT_TABLE = {**_PICTURES, 0x08: 0x2408, 0x0D: 0x240D, **_ESCAPES}
_LINE_TABLE = {**_STRICT_TABLE, 0x09: 0x2409, 0x0A: 0x240A}
_ODD = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """Text of a stream or a `text/plain`: colours and what progress bars use stay."""
    if _ODD.search(text) is None:
        return text
    return _translate(text, _PLAIN_TABLE)


def clean_strict(text: str) -> str:
    """Text that must not mislead, as a traceback: invisible characters are escaped too."""
    return _translate(text.replace("\r\n", "\n"), _STRICT_TABLE)


def one_line(text: str, limit: int) -> str:
    """Text without any control character, of at most `limit` characters."""
    # Cut first, so that the work is bounded, and again, as an escape is longer than its source.
    line = text[: limit + 1].translate(_LINE_TABLE)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def cut(text: str, limit: int) -> str:
    """The first `limit` characters, with a mark that says how many are missing."""
    if len(text) <= limit:
        return text
    kept = _UNFINISHED.sub("", text[:limit])
    return f"{kept}\n… {len(text) - len(kept)} characters cut"


def clean_chunk(pending: str, text: str) -> tuple[str, str]:
    """Clean one chunk of a stream; return it, and what must wait for the next chunk.

    What waits is the start of a colour that the chunk's end cut in two.
    """
    text = pending + text
    start = text.rfind("\x1b", max(0, len(text) - _LONGEST_COLOUR))
    if start == -1 or _UNFINISHED.match(text, start) is None:
        return clean(text), ""
    return clean(text[:start]), text[start:]


def _translate(text: str, table: dict[int, int | str]) -> str:
    if "\x1b" not in text:
        return text.translate(table)
    pieces = _COLOUR.split(text)
    pieces[::2] = [piece.translate(table) for piece in pieces[::2]]
    return "".join(pieces)


# --- errors ---------------------------------------------------------------------------------

_ENAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,80}\Z")


def clean_error(cell: int, ename: str, evalue: str, traceback: list[str]) -> Error:
    """An exception of the user's code; its name can never be one of ours."""
    ours = any(part.startswith("sandbox") for part in ename.lower().split("."))
    if ours or not _ENAME.match(ename):
        ename = "Exception"
    return Error(cell, ename, clean_evalue(evalue), clean_traceback(traceback))


def clean_evalue(evalue: str) -> str:
    """An exception's message, without colours, of at most `MAX_EVALUE` characters."""
    text = evalue[: MAX_EVALUE + 1].replace("\r\n", "\n").translate(_STRICT_TABLE)
    if len(evalue) <= MAX_EVALUE and len(text) <= MAX_EVALUE:
        return text
    return text[: MAX_EVALUE - 1] + "…"


def clean_traceback(traceback: list[str]) -> tuple[str, ...]:
    """The lines of a traceback; of a long one its start and its end."""
    text = "\n".join(traceback)
    if not text:
        return ()
    count = text.count("\n") + 1
    if count <= MAX_TRACEBACK_LINES:
        lines = [clean_strict(_short(line)) for line in text.split("\n")]
        if sum(map(len, lines)) + count <= MAX_TRACEBACK:
            return tuple(lines)
    first = min(_HEAD_LINES, count // 2)
    # Never a list of all lines: there may be millions of them.
    *start, rest = text.split("\n", first)
    last = MAX_TRACEBACK_LINES - _HEAD_LINES - 1
    head = _fitting(start, _HEAD)
    tail = _fitting(rest.rsplit("\n", last)[-last:][::-1], MAX_TRACEBACK - _HEAD - 100)
    missing = count - len(head) - len(tail)
    middle = [f"\x1b[0m… {missing} lines cut …"] if missing else []
    return (*head, *middle, *tail[::-1])


def _fitting(lines: list[str], room: int) -> list[str]:
    """Clean lines until `room` characters, newlines included, are used."""
    fitting = []
    for line in lines:
        cleaned = clean_strict(_short(line))
        room -= len(cleaned) + 1
        if room < 0:
            break
        fitting.append(cleaned)
    return fitting


def _short(line: str) -> str:
    return line if len(line) <= _MAX_LINE else _UNFINISHED.sub("", line[:_MAX_LINE]) + "…"
