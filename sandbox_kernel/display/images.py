"""Images: base64 in, the same bytes out if their header is sound.

Invariants: no image is ever decoded, only its header is read; every read is
checked against the length; the type is what the magic bytes say it is.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass

from sandbox_kernel.display.refused import RefusedError

#: Of the image file.
MAX_BYTES = 10 * 1024 * 1024
#: Of one side, in pixels.
MAX_SIDE = 16384
MAX_PIXELS = 64 * 1000 * 1000
#: Of an SVG's text, in characters.
MAX_SVG = 1024 * 1024

_LONGEST_BASE64 = (MAX_BYTES + 2) // 3 * 4


@dataclass(frozen=True, slots=True)
class Picture:
    """An image that may be shown; `base64` is without newlines."""

    base64: str
    width: int
    height: int


def check(mime: str, text: str) -> Picture:
    """Judge an image by its header.

    Raises:
        RefusedError: not this type, too large, or malformed.
    """
    reader = _READERS.get(mime)
    if reader is None:
        raise RefusedError("not an image type")
    compact, data = decode(text)
    try:
        width, height = reader(data)
    except (struct.error, IndexError):
        raise RefusedError("malformed") from None
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise RefusedError(f"wider or higher than {MAX_SIDE} pixels")
    if width * height > MAX_PIXELS:
        raise RefusedError("more than 64 million pixels")
    return Picture(compact, width, height)


def decode(text: str) -> tuple[str, bytes]:
    """Strict base64, in which only line breaks may stand, as (compact text, bytes)."""
    compact = text.replace("\n", "").replace("\r", "").strip()
    if len(compact) > _LONGEST_BASE64:
        raise RefusedError("larger than 10 MiB")
    try:
        data = base64.b64decode(compact, validate=True)
    except (binascii.Error, ValueError):
        raise RefusedError("not base64") from None
    return compact, data


def svg_as_html(text: str, size: tuple[int, int]) -> str:
    """Show an SVG as an image, in which a browser runs no script and loads nothing.

    Args:
        text: The SVG; never read, only carried.
        size: Width and height in pixels, each 0 if the image decides.
    """
    if len(text) > MAX_SVG:
        raise RefusedError("larger than 1 MiB")
    if "<svg" not in text or "<!entity" in text.lower():
        raise RefusedError("malformed")
    data = base64.b64encode(text.encode()).decode()
    sides = "".join(f' {n}="{v}"' for n, v in zip(("width", "height"), size, strict=True) if v)
    return f'<img src="data:image/svg+xml;base64,{data}" alt="SVG image"{sides}>'


def _png(data: bytes) -> tuple[int, int]:
    if not data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"):
        raise RefusedError("not a PNG")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _gif(data: bytes) -> tuple[int, int]:
    if not data.startswith((b"GIF87a", b"GIF89a")):
        raise RefusedError("not a GIF")
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _jpeg(data: bytes) -> tuple[int, int]:
    if not data.startswith(b"\xff\xd8\xff"):
        raise RefusedError("not a JPEG")
    position = 2
    while data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # a fill byte
            position += 1
            continue
        length, _, height, width = struct.unpack_from(">HBHH", data, position + 2)
        # SOF0 to SOF15, without DHT, JPG and DAC, which share their range.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return width, height
        if marker == 0xDA or length < 2:  # the pixels begin, and no size came
            break
        position += 2 + length
    raise RefusedError("malformed")


def _webp(data: bytes) -> tuple[int, int]:
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        raise RefusedError("not a WebP")
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
        return width + 1, height + 1
    if kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise RefusedError("malformed")


_READERS = {"image/png": _png, "image/gif": _gif, "image/jpeg": _jpeg, "image/webp": _webp}
