import base64
import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.display import images
from sandbox_kernel.display.refused import RefusedError

PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
SOF = b"\xff\xc0\0\x11\x08"
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>'


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def png(width: int, height: int, size: int = 100) -> bytes:
    return (PNG_START + struct.pack(">II", width, height)).ljust(size, b"\0")


def jpeg(width: int, height: int, before: bytes = b"") -> bytes:
    return b"\xff\xd8" + before + SOF + struct.pack(">HH", height, width) + b"\3" + bytes(20)


@pytest.mark.parametrize("name", ["PNG", "JPEG", "GIF", "WEBP"])
def test_real_image_comes_through_unchanged(name: str) -> None:
    pil = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pil.new("RGB", (31, 17), "red").save(file, name)

    picture = images.check(f"image/{name.lower()}", encoded(file.getvalue()))

    assert picture == images.Picture(encoded(file.getvalue()), 31, 17)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"lossless": True}, id="lossless"),
        pytest.param({"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}, id="extended"),
    ],
)
def test_other_kinds_of_webp(options: dict) -> None:
    pil = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pil.new("RGB", (31, 17), "red").save(file, "WEBP", **options)

    picture = images.check("image/webp", encoded(file.getvalue()))

    assert (picture.width, picture.height) == (31, 17)


def test_jpeg_with_a_long_profile_before_its_size() -> None:
    profile = b"\xff\xe2\xff\xff" + bytes(0xFFFD)
    data = jpeg(31, 17, before=profile * 3 + b"\xff\xff")

    picture = images.check("image/jpeg", encoded(data))

    assert (picture.width, picture.height) == (31, 17)


def test_line_breaks_in_base64_are_taken_out() -> None:
    text = base64.encodebytes(png(3, 3)).decode()

    picture = images.check("image/png", text)

    assert picture.base64 == encoded(png(3, 3))


@pytest.mark.parametrize(
    ("mime", "data", "reason"),
    [
        pytest.param("image/png", png(16385, 1), "wider", id="too-wide"),
        pytest.param("image/png", png(1, 16385), "wider", id="too-high"),
        pytest.param("image/png", png(16384, 16384), "64 million", id="too-many-pixels"),
        pytest.param("image/png", png(0, 9), "wider", id="no-width"),
        pytest.param("image/png", png(9, 9, images.MAX_BYTES + 3), "10 MiB", id="too-large"),
        pytest.param("image/png", PNG_START, "malformed", id="png-cut-off"),
        pytest.param("image/png", jpeg(9, 9), "not a PNG", id="jpeg-as-png"),
        pytest.param("image/jpeg", png(9, 9), "not a JPEG", id="png-as-jpeg"),
        pytest.param("image/gif", b"<html>", "not a GIF", id="html-as-gif"),
        pytest.param("image/webp", b"RIFF\0\0\0\0WAVE", "not a WebP", id="sound-as-webp"),
        pytest.param("image/webp", b"RIFF\0\0\0\0WEBPVP8 ", "malformed", id="webp-cut-off"),
        pytest.param("image/gif", b"GIF89a\xff\xff\xff\xff", "wider", id="gif-bomb"),
        pytest.param("image/jpeg", jpeg(65535, 65535), "wider", id="jpeg-bomb"),
        pytest.param("image/jpeg", b"\xff\xd8\xff\xe0\0\0" * 9, "malformed", id="jpeg-no-length"),
        pytest.param("image/jpeg", b"\xff\xd8\xff" + b"\xff" * 99, "malformed", id="jpeg-of-fill"),
        pytest.param("image/bmp", b"BM", "not an image type", id="another-type"),
    ],
)
def test_hostile_image_is_refused(mime: str, data: bytes, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        images.check(mime, encoded(data))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(encoded(png(3, 3)) + "\"onerror='x'", id="quotes"),
        pytest.param(encoded(png(3, 3))[:-3], id="wrong-length"),
        pytest.param("\u00e9" + encoded(png(3, 3)), id="not-ascii"),
        pytest.param(encoded(png(3, 3)).replace("A", "-"), id="another-alphabet"),
        pytest.param("data:image/png;base64," + encoded(png(3, 3)), id="address"),
    ],
)
def test_what_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="not base64"):
        images.check("image/png", text)


@given(
    st.sampled_from(["image/png", "image/jpeg", "image/gif", "image/webp"]),
    st.sampled_from(
        [PNG_START, b"\xff\xd8", b"\xff\xd8\xff\xc0", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8X"]
    ),
    st.binary(max_size=40),
)
def test_any_bytes_are_judged_and_nothing_worse(mime: str, start: bytes, rest: bytes) -> None:
    try:
        picture = images.check(mime, encoded(start + rest))
    except RefusedError:
        return

    assert picture.width * picture.height <= images.MAX_PIXELS


def test_svg_is_shown_as_an_image() -> None:
    html = images.svg_as_html(SVG, (40, 0))

    assert html == (
        f'<img src="data:image/svg+xml;base64,{encoded(SVG.encode())}" alt="SVG image" width="40">'
    )


@pytest.mark.parametrize(
    "svg",
    [
        pytest.param("x" * (images.MAX_SVG + 1) + SVG, id="too-large"),
        pytest.param("<html></html>", id="not-an-svg"),
        pytest.param('<!DOCTYPE svg [<!ENTITY a "aaa">]>' + SVG, id="entities"),
    ],
)
def test_hostile_svg_is_refused(svg: str) -> None:
    with pytest.raises(RefusedError):
        images.svg_as_html(svg, (0, 0))
