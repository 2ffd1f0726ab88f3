import base64
import io
import wave

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_kernel.display import html, markup
from sandbox_kernel.display.refused import RefusedError
from tests.display_oracle import check_html

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
    "RU5ErkJggg=="
)


# --- hostile ----------------------------------------------------------------------------------

HOSTILE = [
    pytest.param("<script>canary=1</script>", "script", id="script"),
    pytest.param("<ScRiPt\n>canary</sCrIpT\t>", "script", id="script-in-mixed-case"),
    pytest.param("<img src=x onerror=canary()>", "event handler", id="onerror"),
    pytest.param("<b/onclick=canary()>x</b>", "event handler", id="handler-after-slash"),
    pytest.param("<svg onload=canary()><script>1</script></svg>", "inline SVG", id="svg"),
    pytest.param("<img src='http://127.0.0.1:1/x'>", "image", id="remote-image"),
    pytest.param("<img src='//127.0.0.1:1/x'>", "image", id="scheme-less-image"),
    pytest.param("<img src='data:image/svg+xml;base64,AAAA'>", "image", id="svg-image"),
    pytest.param("<img src='data:text/html;base64,AAAA'>", "image", id="html-as-image"),
    pytest.param("<style>@import url(//127.0.0.1/x)</style>", "style sheet", id="import"),
    pytest.param("<style>*{position:fixed;inset:0}</style>", "style sheet", id="overlay-sheet"),
    pytest.param("<style>#T_a{color:red} body{color:red}</style>", "style sheet",
                 id="one-bad-rule"),
    pytest.param("<link rel=stylesheet href=//127.0.0.1/x>", "style sheet", id="link"),
    pytest.param("<base href=//127.0.0.1/>", "page header", id="base"),
    pytest.param("<meta http-equiv=refresh content='0;url=//x'>", "page header", id="meta"),
    pytest.param("<iframe srcdoc='<script>1</script>'></iframe>", "frame", id="iframe"),
    pytest.param("<object data=//x></object>", "object", id="object"),
    pytest.param("<embed src=//x>", "object", id="embed"),
    pytest.param("<form action=//evil><input></form>", "form", id="form"),
    pytest.param("<button data-commandlinker-command='terminal:create-new'>x</button>", "form",
                 id="command-linker"),
    pytest.param("<a href='javascript:canary()'>x</a>", "link", id="javascript-link"),
    pytest.param("<a href='java\tscript:canary()'>x</a>", "link", id="javascript-link-with-tab"),
    pytest.param("<a href='&#106;avascript:canary()'>x</a>", "link", id="javascript-as-reference"),
    pytest.param("<a href='data:text/html,x'>x</a>", "link", id="data-link"),
    pytest.param("<a href='/lab/tree/x'>x</a>", "link", id="relative-link"),
    pytest.param("<math><annotation-xml encoding='text/html'><img src=x></annotation-xml></math>",
                 "MathML", id="annotation-xml"),
    pytest.param("<math><mtext><table><mglyph><style><img src=x onerror=1>", "MathML",
                 id="mutation"),
    pytest.param("<audio src='http://127.0.0.1/x' controls></audio>", "sound or film", id="audio"),
    pytest.param("<video><source src='data:video/mp4;base64,AAAA'></video>", "sound or film",
                 id="film-without-magic"),
]  # fmt: skip


@pytest.mark.parametrize(("hostile", "told"), HOSTILE)
def test_hostile_html_is_inert_and_told_of(hostile: str, told: str) -> None:
    cleaned = html.clean(f"<p>before</p>{hostile}")

    check_html(cleaned.html)
    assert "canary" not in cleaned.html
    assert "before" in cleaned.html
    assert told in cleaned.withheld


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param("<noscript><p title='</noscript><img src=x onerror=1>'>", id="noscript"),
        pytest.param("<!--><img src=x onerror=1>-->", id="abrupt-comment"),
        pytest.param("<!-- --!><img src=x onerror=1> -->", id="comment-end-bang"),
        pytest.param("<b title='--><img src=x onerror=1>'>x</b>", id="markup-in-attribute"),
        pytest.param("<textarea></b><img src=x onerror=1></textarea>", id="textarea"),
        pytest.param("<template><img src=x onerror=1></template>", id="template"),
        pytest.param("<b x='a\"><img src=x onerror=1>'>y", id="quotes-in-quotes"),
        pytest.param("<form><math><mtext></form><form><mglyph><style></math><img src onerror=1>",
                     id="form-math"),
        pytest.param("<div style=\"background:url('//x')\">y</div>", id="style-url"),
        pytest.param("<div style='background:u\\72l(//x)'>y</div>", id="style-escape"),
        pytest.param("<div style='color:red/*;*/;background:image-set(\"//x\" 1x)'>y</div>",
                     id="image-set"),
        pytest.param("<div style='--x:url(//x);color:var(--x)'>y</div>", id="style-variable"),
        pytest.param("<div style='position:fixed;top:0;z-index:9;margin:-9px'>y</div>",
                     id="overlay"),
        pytest.param("<style>#T_a{background:url(//x)}</style><p>y", id="styler-url"),
        pytest.param("<style>#T_a ~ *{color:red} #T_a,body{color:red}</style><p>y",
                     id="styler-scope"),
        pytest.param("<style>@media all{#T_a{color:red}}</style><p>y", id="styler-at-rule"),
        pytest.param("<b title='&#xfdd1;img src=x onerror=1&#xfdd0;'>y",
                     id="placeholder-reference"),
        pytest.param("&lt;img src=x onerror=1&gt;", id="escaped-markup"),
        pytest.param("<b class='jp-Cell lm-Widget' id=jp-main-dock-panel>y", id="the-page's-names"),
        pytest.param("<a href='https://x.org' target=_self rel=opener ping=//x>y</a>",
                     id="link-rel"),
        pytest.param("<b contenteditable accesskey=x data-x=1 slot=s is=x>y</b>", id="attributes"),
        pytest.param("<b \0onclick=1>y</b>", id="nul"),
    ],
)  # fmt: skip
def test_hostile_html_is_inert(hostile: str) -> None:
    cleaned = html.clean(f"<p>before</p>{hostile}")

    check_html(cleaned.html)
    assert "before" in cleaned.html


def test_no_id_of_the_page_can_be_taken() -> None:
    cleaned = html.clean("<b id='main' class='jp-Cell row1'>x</b>")

    assert cleaned.html == '<b id="sbx-main" class="row1">x</b>'


def test_characters_that_stand_for_others_change_nothing() -> None:
    cleaned = html.clean("\ufdd1i>\ufdd0lt;<b title='&#xfdd1;i&#xfdd0;'>x</b>")

    assert cleaned.html == "i&gt;lt;<b>x</b>"


def test_long_style_is_dropped() -> None:
    cleaned = html.clean("<b style='" + "color:red;" * 410 + "'>x</b>")

    assert cleaned.html == "<b>x</b>"


@pytest.mark.parametrize(
    "formula",
    [
        pytest.param(r"$\href{javascript:canary()}{x}$", id="plain"),
        pytest.param(r"$\hr<wbr>ef{javascript:canary()}{x}$", id="joined-by-wbr"),
        pytest.param(r"$\hr<!-- -->ef{javascript:canary()}{x}$", id="joined-by-comment"),
        pytest.param(r"$&#92;&#104;ref{javascript:canary()}{x}$", id="references"),
        pytest.param(r"$\bbox[background:url(//x)]{x}$", id="bbox"),
    ],
)
def test_mathjax_finds_no_active_command_in_html(formula: str) -> None:
    cleaned = html.clean(f"<p>{formula}</p>")

    # MathJax reads no command across the border of a `span`.
    assert r"\<span></span>" in cleaned.html
    assert r"\href" not in cleaned.html
    assert r"\bbox" not in cleaned.html


def test_what_is_left_of_only_active_html_is_nothing() -> None:
    cleaned = html.clean("<div id='plot'>&nbsp;</div><script>draw()</script>")

    assert cleaned.html == ""
    assert cleaned.withheld == {"script"}


# --- honest -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("honest", "expected"),
    [
        pytest.param("<p>a<p>b", "<p>a</p><p>b</p>", id="left-out-end-tags"),
        pytest.param("<p>x" * 300, "<p>x</p>" * 300, id="many-left-out-end-tags"),
        pytest.param("1 < 2 & 3 &amp; &lt;b&gt; &copy;",
                     "1 &lt; 2 &amp; 3 &amp; &lt;b&gt; ©", id="references"),
        pytest.param("<b>bold<i>both</b>", "<b>bold<i>both</i></b>", id="interleaved"),
        pytest.param("<pre>\n\nx</pre>", "<pre>\n\nx</pre>", id="newline-in-pre"),
        pytest.param("<a href='https://x.org/?a=1&amp;b=2'>x</a>",
                     '<a href="https://x.org/?a=1&amp;b=2" rel="noopener noreferrer nofollow"'
                     ' target="_blank">x</a>', id="link"),
        pytest.param("<b style='color: RED;position:fixed'>x</b>", '<b style="color:RED">x</b>',
                     id="style"),
        pytest.param(f"<img src='data:image/png;base64,{PNG}' width=10>",
                     f'<img src="data:image/png;base64,{PNG}" width="10">', id="image"),
    ],
)  # fmt: skip
def test_honest_html_stays(honest: str, expected: str) -> None:
    cleaned = html.clean(honest)

    assert cleaned == html.Cleaned(expected, frozenset())


def test_pandas_table_is_silent() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a<b": [1.5, 2], "c": ["<script>", "ü&"]})

    cleaned = html.clean(frame._repr_html_())

    check_html(cleaned.html)
    assert cleaned.withheld == frozenset()
    assert '<table border="1" class="dataframe">' in cleaned.html
    assert "<td>&lt;script&gt;</td>" in cleaned.html
    assert "<th>a&lt;b</th>" in cleaned.html


def test_styler_keeps_its_colours_and_is_silent() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": [3, 4]})
    hover = {"selector": "tr:hover", "props": "background-color: #ffff99"}
    styler = frame.style.highlight_max(color="yellow").bar(subset=["b"])
    styler = styler.set_uuid("abc").set_caption("Numbers").set_table_styles([hover])

    cleaned = html.clean(styler._repr_html_())

    check_html(cleaned.html)
    assert cleaned.withheld == frozenset()
    assert "#sbx-T_abc tr:hover{background-color:#ffff99}" in cleaned.html
    assert "#sbx-T_abc_row1_col0" in cleaned.html
    assert "background-color:yellow" in cleaned.html
    assert "linear-gradient(90deg, #d65f5f 100.0%, transparent 100.0%)" in cleaned.html
    assert 'id="sbx-T_abc_row1_col0" class="data row1 col0"' in cleaned.html


def test_rich_is_silent_and_keeps_its_colours() -> None:
    console = pytest.importorskip("rich.console").Console(width=40, force_jupyter=False)
    jupyter = pytest.importorskip("rich.jupyter")
    text = console.render_str("[bold red]x[/] [link=https://x.org]y[/link]")

    cleaned = html.clean(jupyter._render_segments(console.render(text)))

    check_html(cleaned.html)
    assert cleaned.withheld == frozenset()
    assert "color:#800000" in cleaned.html
    assert "font-weight:bold" in cleaned.html
    assert 'href="https://x.org"' in cleaned.html


def test_sound_stays_playable() -> None:
    display = pytest.importorskip("IPython.display")
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(b"\1\2" * 8000)

    cleaned = html.clean(display.Audio(data=file.getvalue(), autoplay=True)._repr_html_())

    check_html(cleaned.html)
    assert cleaned.withheld == frozenset()
    encoded = base64.b64encode(file.getvalue()).decode()
    assert "<audio controls=" in cleaned.html
    assert f'<source src="data:audio/wav;base64,{encoded}" type="audio/wav">' in cleaned.html
    assert "autoplay" not in cleaned.html


def test_film_stays_playable() -> None:
    film = base64.encodebytes(b"\0\0\0\x18ftypmp42" + bytes(200)).decode()
    page = f'<video width="640" controls loop>\n<source src="data:video/mp4;base64,{film}"></video>'

    cleaned = html.clean(page)

    check_html(cleaned.html)
    assert cleaned.withheld == frozenset()
    assert f'src="data:video/mp4;base64,{film.replace(chr(10), "")}"' in cleaned.html


# --- properties -------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [param.values[0] for param in HOSTILE]
    + [f"<{tag}>" for tag in sorted(markup.TAGS)]
    + [f"</{tag}>" for tag in sorted(markup.TAGS)]
    + [f"<{tag}>" for tag in sorted(markup.HIDDEN)]
    + [
        "<!--",
        "-->",
        "--!>",
        "<![CDATA[",
        "]]>",
        "<?",
        "</",
        "<",
        ">",
        '"',
        "'",
        "=",
        "/",
        "&",
        ";",
    ]
    + [
        "\0",
        "\n",
        "\r",
        "\t",
        "\f",
        "\u2028",
        "\ufdd0",
        "\ufdd1",
        "&lt;",
        "&#60",
        "&nbsp",
        "x",
        " ",
    ]
    + ["<a href='https://x.org'>", "<b id=x class='row1 y'>", "<b style='color:red;x:url(y)'>"]
    + ["<b title='", "<img src=", f"<img src='data:image/png;base64,{PNG}'>", "#T_a{color:red}"]
    + ["<style>#T_a td, #T_a:hover > th{color:red !important}</style>", "$\\href{x}", "<pre>\n"]
    + ["<svg><title>", "<math><mi>", "<p ", "style=", "'color:red'", "onclick=x", "\\", "url("]
)
MARKUP = st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=30).map("".join)


@settings(max_examples=400, deadline=None)
@given(MARKUP)
def test_whatever_comes_is_inert(hostile: str) -> None:
    cleaned = html.clean(hostile)

    check_html(cleaned.html)


@settings(max_examples=400, deadline=None)
@given(MARKUP)
def test_cleaning_again_changes_nothing(hostile: str) -> None:
    once = html.clean(hostile).html

    assert html.clean(once).html == once


@pytest.mark.parametrize(
    "moved",
    [
        pytest.param("<h1><a href='https://x.org'><h1><a href='https://y.org'>x", id="links"),
        pytest.param("<table><tr><b>x<td>y</table>z", id="text-in-a-table"),
    ],
)
def test_tags_that_a_parser_moves_come_to_rest(moved: str) -> None:
    once = html.clean(moved).html

    assert html.clean(once).html == once


def test_a_panic_of_the_sanitiser_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})

    class Broken:
        def __init__(self, **_: object) -> None: ...

        def clean(self, _: str) -> str:
            raise panic

    monkeypatch.setattr(html.nh3, "Cleaner", Broken)

    with pytest.raises(RefusedError):
        html.clean("<b>x</b>")
