"""Markdown -> HTML, on the host, so that no page renders the source.

Invariant: the result is still hostile, as links and images are in it, and goes
through `html.clean`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from sandbox_kernel.display.refused import RefusedError

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline

#: Characters; the parser is written in Python, and slow on hostile input.
MAX_MARKDOWN = 32 * 1024


def to_html(text: str) -> str:
    """Render CommonMark with tables; HTML in it becomes text, formulas stay as they are."""
    if len(text) > MAX_MARKDOWN:
        raise RefusedError("larger than 32 KiB")
    return str(_parser().render(text))


def _formula(state: StateInline, silent: bool) -> bool:  # noqa: FBT001 - the library's signature
    """Keep `$a_1 * b_1$` from being read as emphasis."""
    start = state.pos
    if not state.src.startswith("$", start):
        return False
    fence = "$$" if state.src.startswith("$$", start) else "$"
    end = state.src.find(fence, start + len(fence))
    end = start + len(fence) if end == -1 else end + len(fence)
    if not silent:
        state.pending += state.src[start:end]
    state.pos = end
    return True


@cache
def _parser() -> MarkdownIt:
    # Few cells show Markdown, and every kernel's start would pay for the import.
    from markdown_it import MarkdownIt  # noqa: PLC0415

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.inline.ruler.before("escape", "formula", _formula)
    return parser
