"""An independent judge of clean HTML: other parsers than the firewall's, and lists of its own."""

import re

import html5lib
import tinycss2

TAGS = re.findall(
    r"\w+",
    "a abbr article aside audio b big blockquote br caption center cite code col colgroup dd del "
    "details dfn div dl dt em figcaption figure font footer h1 h2 h3 h4 h5 h6 header hr i img ins "
    "kbd li main mark ol p pre q s samp section small source span strike strong sub summary sup "
    "table tbody td tfoot th thead time tr tt u ul var video",
)
VALUES = {
    "src": r"data:(image/(png|jpeg|gif|webp)|audio/(wav|x-wav|mpeg|ogg)|video/(mp4|webm|ogg))"
    r";base64,[A-Za-z0-9+/]+={0,2}",
    "href": r"https?://[^\s<>\"']+",
    "id": r"sbx-[\w.-]+",
    "class": r"[a-z0-9_ ]+",
    "rel": "noopener noreferrer nofollow",
    "target": "_blank",
    "type": r"(audio|video)/[a-z0-9-]+",
    "title": r"[\s\S]{0,1000}",
    "alt": r"[\s\S]{0,1000}",
    **dict.fromkeys(
        ("dir", "lang", "align", "valign", "scope", "open", "controls", "loop", "muted"),
        r"[A-Za-z0-9-]*",
    ),
    **dict.fromkeys(
        ("width", "height", "colspan", "rowspan", "span", "start", "value", "border"),
        r"\d{1,4}(%|px)?",
    ),
    "color": r"[#A-Za-z0-9]+",
}
FUNCTIONS = {"rgb", "rgba", "hsl", "hsla", "linear-gradient"}


def check_html(html: str) -> None:
    """Fail unless the HTML is inert."""
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    for element in parser.parseFragment(html).iter():
        if element.tag == "DOCUMENT_FRAGMENT":
            continue
        assert isinstance(element.tag, str), "a comment"
        if element.tag == "style":
            assert not element.attrib
            check_sheet(element.text)
            continue
        assert element.tag in TAGS
        for name, value in element.attrib.items():
            if name == "style":
                check_declarations(tinycss2.parse_declaration_list(value))
            else:
                assert re.fullmatch(VALUES[name], value), (name, value[:100])


def check_sheet(css: str) -> None:
    for rule in tinycss2.parse_stylesheet(css, skip_whitespace=True):
        assert rule.type == "qualified-rule"
        for selector in tinycss2.serialize(rule.prelude).split(","):
            assert re.match(r"#sbx-T_[\w-]+", selector)
            assert not re.search(r"[+~*\[\\]", re.sub(r"\(.*?\)", "", selector))
        check_declarations(tinycss2.parse_declaration_list(rule.content))


def check_declarations(declarations: list) -> None:
    for declaration in declarations:
        assert declaration.type == "declaration", declaration
        assert not re.search(r"position|index|transform|animation|image|filter|behavior|content",
                             declaration.name.replace("text-transform", ""))  # fmt: skip
        check_tokens(declaration.value)


def check_tokens(tokens: list) -> None:
    for token in tokens:
        assert token.type not in {"url", "error", "at-keyword", "() block", "{} block", "[] block"}
        if token.type == "function":
            assert token.lower_name in FUNCTIONS
            check_tokens(token.arguments)
