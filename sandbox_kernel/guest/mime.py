"""MIME bundles, as notebooks' code makes them, in the wire's form.  Pure.

Invariant: what is returned fits in one event; what does not fit is left out and named.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

#: Types of one bundle: more than any library makes.
_MAX_TYPES = 64


class Bundle(NamedTuple):
    """The wire's parallel lists, and the types that were too large."""

    mimes: list[str]
    values: list[str]
    sizes: list[str]
    too_large: list[str]


def bundle(data: Mapping[str, Any], metadata: Mapping[str, Any] | None, room: int) -> Bundle:
    """Lower a bundle; `room` is how many characters its values may have together."""
    result = Bundle([], [], [], [])
    for mime, value in list(data.items())[:_MAX_TYPES]:
        text = _text(value)
        if len(text) > room:
            result.too_large.append(str(mime))
            continue
        room -= len(text)
        result.mimes.append(str(mime))
        result.values.append(text)
    for mime, about in (metadata or {}).items():
        size = _size(about)
        if mime in result.mimes and size:
            result.sizes.append(f"{mime}={size}")
    return result


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    # As Jupyter's own messages: what JSON does not know is an error of the caller.
    return json.dumps(value)


def _size(about: object) -> str:
    """Return `WIDTHxHEIGHT` if metadata says so in whole numbers, else nothing."""
    if not isinstance(about, Mapping):
        return ""
    width, height = about.get("width"), about.get("height")
    if isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0:
        return f"{width}x{height}"
    return ""
