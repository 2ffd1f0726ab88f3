import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.display import jsontext, latex, mime
from sandbox_kernel.display.refused import RefusedError
from tests.display_oracle import check_html
from tests.test_display_html import PNG


def cleaned(bundle: dict[str, str], *sizes: str) -> mime.CleanBundle:
    return mime.clean_bundle(list(bundle), list(bundle.values()), list(sizes))


# --- what is dropped --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        "application/javascript",
        "text/javascript",
        "application/pdf",
        "application/geo+json",
        "application/vnd.jupyter.widget-view+json",
        "application/vnd.plotly.v1+json",
        "application/vnd.vega.v5+json",
        "application/vnd.vegalite.v5+json",
        "application/vnd.bokehjs_exec.v0+json",
        "application/vnd.x",
        "image/bmp",
        "TEXT/HTML",
    ],
)
def test_other_types_are_dropped_and_their_siblings_kept(kind: str) -> None:
    bundle = cleaned({kind: "{}", "image/png": PNG, "text/plain": "<Figure>"})

    assert bundle.data == {"image/png": PNG, "text/plain": "<Figure>"}
    assert len(bundle.withheld) == 1


def test_type_with_a_hostile_name_is_told_of_without_it() -> None:
    bundle = cleaned({"<script>\x1b[2J": "x", "text/plain": "y"})

    assert bundle.data == {"text/plain": "y"}
    assert bundle.withheld == {"a type without a proper name"}


def test_refused_image_leaves_its_text() -> None:
    bundle = cleaned({"image/png": "AAAA", "text/plain": "<Image>"})

    assert bundle.data == {"text/plain": "<Image>"}
    assert bundle.withheld == {"image/png (not a PNG)"}


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(["image/png=1000000000x5"], id="too-long"),
        pytest.param(["image/png=8193x5"], id="too-wide"),
        pytest.param(["image/png=5pxx5px"], id="units"),
        pytest.param(["image/png=-5x5"], id="negative"),
        pytest.param(["text/html=5x5"], id="not-an-image"),
        pytest.param(["image/jpeg=5x5"], id="not-in-the-bundle"),
        pytest.param(["isolated", "text/html=isolated", ""], id="isolated"),
        pytest.param(["image/png=\u0665x\u0665"], id="other-digits"),
        pytest.param(["image/png=0x0"], id="nothing"),
    ],
)
def test_hostile_metadata_is_dropped(sizes: list[str]) -> None:
    bundle = cleaned({"image/png": PNG, "text/html": "<b>x</b>"}, *sizes)

    assert bundle.metadata == {}


def test_size_of_an_image_is_kept() -> None:
    bundle = cleaned({"image/png": PNG}, "image/png=640x0")

    assert bundle.metadata == {"image/png": {"width": 640}}


@pytest.mark.parametrize(
    ("mimes", "values"),
    [
        pytest.param(["text/plain", "text/html"], ["x"], id="a-value-is-missing"),
        pytest.param(["text/plain"], ["x", "<b>"], id="a-type-is-missing"),
        pytest.param(["text/plain", *(f"application/x{n}" for n in range(9999))], ["x"] * 10_000,
                     id="ten-thousand-types"),
    ],
)  # fmt: skip
def test_lists_that_do_not_match_are_no_harm(mimes: list[str], values: list[str]) -> None:
    bundle = mime.clean_bundle(mimes, values, [])

    assert bundle.data == {"text/plain": "x"}


# --- text/plain -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bundle", "plain"),
    [
        pytest.param({"image/png": PNG}, "<image/png 1x1>", id="image"),
        pytest.param({"text/markdown": "# x"}, "# x", id="markdown"),
        pytest.param({"text/latex": "$x$"}, "$x$", id="latex"),
        pytest.param({"text/html": "<script></script>"}, "<text/html>", id="html"),
        pytest.param({"application/pdf": "x"}, "<application/pdf>", id="dropped"),
        pytest.param({"text/plain": ""}, "", id="empty"),
    ],
)
def test_there_is_always_text(bundle: dict[str, str], plain: str) -> None:
    assert cleaned(bundle).data["text/plain"] == plain


def test_long_text_is_cut_with_a_mark() -> None:
    bundle = cleaned({"text/plain": "x" * 1024 * 1024 + "y\x1b[2J"})

    assert bundle.data["text/plain"] == "x" * 1024 * 1024 + "\n… 5 characters cut"


# --- markdown, LaTeX, SVG ---------------------------------------------------------------------


def test_markdown_is_rendered_and_loads_nothing() -> None:
    source = "# Title\n\n![x](http://127.0.0.1:1/m)\n\n<script>1</script>\n\n|a|\n|-|\n|1|\n"

    bundle = cleaned({"text/markdown": source})

    assert bundle.data.keys() == {"text/html", "text/plain"}
    page = bundle.data["text/html"]
    check_html(page)
    assert "<h1>Title</h1>" in page
    assert "<td>1</td>" in page
    assert "&lt;script&gt;" in page
    assert "127.0.0.1" not in page
    assert bundle.withheld == {"text/markdown image"}


@pytest.mark.parametrize(
    ("source", "page"),
    [
        pytest.param("[x](javascript:1)", "<p>[x](javascript:1)</p>", id="javascript-link"),
        pytest.param("$a_1 * b_2 * c_3$", "<p>$a_1 * b_2 * c_3$</p>", id="formula"),
        pytest.param(r"$$\{x\}$$", r"<p>$$\{x\}$$</p>", id="displayed-formula"),
        pytest.param("costs $5 or *more*", "<p>costs $5 or <em>more</em></p>", id="dollar"),
        pytest.param(r"$\href{javascript:1}{x}$", r"<p>$\<span></span>href{javascript:1}{x}$</p>",
                     id="link-in-formula"),
    ],
)  # fmt: skip
def test_markdown_with_formulas(source: str, page: str) -> None:
    assert str(cleaned({"text/markdown": source}).data["text/html"]).strip() == page


def test_html_wins_over_markdown() -> None:
    bundle = cleaned({"text/markdown": "m", "text/html": "<b>h</b>", "text/plain": "p"})

    assert bundle.data == {"text/html": "<b>h</b>", "text/plain": "p"}


def test_formula_is_kept() -> None:
    bundle = cleaned({"text/latex": r"$\displaystyle \left(\frac{x^{2}}{2}\right)\newline y$"})

    assert bundle.data["text/latex"] == r"$\displaystyle \left(\frac{x^{2}}{2}\right)\newline y$"
    assert bundle.withheld == frozenset()


@pytest.mark.parametrize(
    "formula",
    [
        r"$\href{javascript:1}{x}$",
        r"\require{html}",
        r"\url{x}",
        r"\includegraphics{x}",
        r"\def\x{y}",
        r"\newcommand{\x}{y}",
        r"\renewcommand{\x}{y}",
        r"\htmlClass{x}{y}",
        r"\class{x}{y}",
        r"\style{x}{y}",
        r"\cssId{x}{y}",
        r"\let\x=\href",
        r"\bbox[background:url(//x)]{y}",
        "x" * (latex.MAX_LATEX + 1),
    ],
)
def test_formula_that_does_more_is_left_as_text(formula: str) -> None:
    bundle = cleaned({"text/latex": formula, "text/plain": "plain"})

    assert bundle.data == {"text/plain": "plain"}
    assert len(bundle.withheld) == 1


def test_svg_is_only_ever_an_image() -> None:
    svg = "<svg onload='1'><image href='http://127.0.0.1/'/><script/></svg>"

    bundle = cleaned({"image/svg+xml": svg, "text/plain": "p"}, "image/svg+xml=30x20")

    encoded = base64.b64encode(svg.encode()).decode()
    source = f"data:image/svg+xml;base64,{encoded}"
    assert bundle.data == {
        "text/html": f'<img src="{source}" alt="SVG image" width="30" height="20">',
        "text/plain": "p",
    }
    assert bundle.metadata == {}


# --- JSON -------------------------------------------------------------------------------------


def test_json_becomes_a_value() -> None:
    bundle = cleaned({"application/json": '{"a": [1, 2.5, null, true, "\\u00e9"]}'})

    assert bundle.data["application/json"] == {"a": [1, 2.5, None, True, "é"]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("[" * 100_000, "not JSON", id="a-hundred-thousand-deep"),
        pytest.param("[" * 34 + "]" * 34, "deeper", id="deeper-than-32"),
        pytest.param('{"a":' * 34 + "1" + "}" * 34, "deeper", id="objects-deeper-than-32"),
        pytest.param("[" + "1," * 20_000 + "1]", "values", id="too-many-values"),
        pytest.param("NaN", "finite", id="nan"),
        pytest.param("[-Infinity]", "finite", id="infinity"),
        pytest.param("1e999", "finite", id="overflow"),
        pytest.param("9" * 5000, "not JSON", id="endless-number"),
        pytest.param('"\\ud800"', "Unicode", id="half-a-character"),
        pytest.param('{"\\udc00": 1}', "Unicode", id="half-a-character-as-key"),
        pytest.param('"' + "x" * jsontext.MAX_JSON + '"', "1 MiB", id="too-large"),
        pytest.param("{", "not JSON", id="cut-off"),
    ],
)
def test_hostile_json_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        jsontext.parse(text)


@given(st.text() | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_json_that_is_kept_can_be_written(text: str) -> None:
    try:
        value = jsontext.parse(text)
    except RefusedError:
        return

    assert json.loads(json.dumps(value, allow_nan=False)) == value


# --- honest bundles of real libraries ---------------------------------------------------------


def test_matplotlib_figure_is_silent_and_unchanged() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pylab = pytest.importorskip("IPython.core.pylabtools")
    pyplot.switch_backend("agg")
    figure = pyplot.figure()
    figure.add_subplot().plot([1, 2])
    image = pylab.print_figure(figure, base64=True)
    drawing = pylab.print_figure(figure, "svg")
    pyplot.close(figure)

    png = cleaned({"image/png": image, "text/plain": "<Figure>"}, "image/png=640x480")
    svg = cleaned({"image/svg+xml": drawing, "text/plain": "<Figure>"})

    assert png.data == {"image/png": image, "text/plain": "<Figure>"}
    assert png.metadata == {"image/png": {"width": 640, "height": 480}}
    assert "data:image/svg+xml;base64," in str(svg.data["text/html"])
    assert png.withheld | svg.withheld == frozenset()


def test_sympy_like_bundle_is_silent() -> None:
    bundle = cleaned({"text/latex": r"$\displaystyle x^{2}$", "text/plain": "x**2"})

    assert bundle.data == {"text/latex": r"$\displaystyle x^{2}$", "text/plain": "x**2"}
    assert bundle.withheld == frozenset()
