import contextlib
import time

import pytest

from sandbox_kernel.display import html
from sandbox_kernel.display.refused import RefusedError

MIB = 1024 * 1024


def filled(piece: str, size: int = MIB) -> str:
    return piece * (size // len(piece))


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param("<div>" * 257, id="deeper-than-256"),
        pytest.param("<ul><li>" * 100_000, id="lists-in-lists"),
        pytest.param(filled("<div><table><td></div>"), id="end-tags-that-a-cell-hides"),
        pytest.param(filled("<b>"), id="unclosed"),
        pytest.param(filled("<b></b>"), id="too-many-tags"),
        pytest.param("x" * (MIB + 1), id="larger-than-1-MiB"),
        pytest.param(
            f"<p><b title='{'y' * 100_000}'>{'<div>x</div>' * 1000}", id="copied-attributes"
        ),
        pytest.param("&#" + "9" * 5000 + ";", id="endless-number"),
    ],
)
def test_html_that_would_cost_too_much_is_refused(hostile: str) -> None:
    with pytest.raises(RefusedError):
        html.clean(hostile)


def test_html_as_deep_as_allowed_is_kept() -> None:
    cleaned = html.clean("<div>" * 256 + "x" + "</div>" * 256)

    assert cleaned.html.count("<div>") == 256


#: Seconds on a slow machine under load; without the outline some of these took minutes.
SLOW = 2.0


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param("<ul><li>" * 100_000, id="lists-in-lists"),
        pytest.param("<" * MIB, id="less-than"),
        pytest.param("&" * MIB, id="ampersands"),
        pytest.param(filled("&amp;"), id="references"),
        pytest.param(filled("<!"), id="bogus-comments"),
        pytest.param(filled("<!--"), id="comments"),
        pytest.param(filled("<script>"), id="scripts"),
        pytest.param(filled("<style></style>"), id="style-pairs"),
        pytest.param("<b " + " ".join(f"a{n}" for n in range(140_000)) + ">x", id="attributes"),
        pytest.param("<b " + filled("=", MIB - 10), id="equal-signs"),
        pytest.param("<b title='" + "&" * 500_000 + "'>x", id="ampersands-in-attribute"),
        pytest.param("<b style='" + filled("color:red;", MIB - 40) + "'>x</b>", id="huge-style"),
        pytest.param("".join(f"<b style='color:#{n:06x}'>x</b>" for n in range(30_000)),
                     id="many-styles"),
        pytest.param("<style>" + "#T_a{color:red}" * 69_000 + "</style>x", id="rules"),
        pytest.param("<style>#T_a " + filled("th ", 900_000) + "{}</style>x", id="selector"),
        pytest.param("<p>" + "".join(f"<b id=a{n}>" for n in range(200)) + "</p>"
                     + filled("<p>x</p>", 900_000), id="formatting-copied"),
        pytest.param("<div>" * 250 + filled("</p>", 300_000), id="unmatched-end-tags"),
        pytest.param(filled("\\"), id="backslashes"),
    ],
)  # fmt: skip
def test_hostile_html_takes_linear_time(hostile: str) -> None:
    start = time.process_time()
    with contextlib.suppress(RefusedError):
        html.clean(hostile)
    seconds = time.process_time() - start

    assert seconds < SLOW


def test_large_table_is_fast_and_whole() -> None:
    row = "<tr>\n      <th>1</th>\n" + "      <td>0.123456</td>\n" * 6 + "    </tr>\n"
    table = '<table border="1" class="dataframe">\n<tbody>' + row * 3000 + "</tbody></table>"

    start = time.process_time()
    cleaned = html.clean(table)
    seconds = time.process_time() - start

    assert len(table) > 500_000
    assert cleaned.html.count("<td>") == 18_000
    assert seconds < SLOW
