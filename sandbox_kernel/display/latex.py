"""LaTeX as MathJax reads it: text of formulas, without commands that do more.

Invariant: no command that links, loads, styles or defines another command
reaches a page where MathJax could run it.
"""

from __future__ import annotations

import re

from sandbox_kernel.display.refused import RefusedError

#: Characters.
MAX_LATEX = 64 * 1024

_COMMAND = re.compile(
    r"""\\(?=(
        require | href | url | includegraphics | html[a-z]* | data | class | style | cssId
      | def | [egx]def | let | futurelet | global | csname | Declare[a-z]+
      | (?:re)?new(?:command|environment) | providecommand | new[a-z]*(?:arrow|form)
      | bbox | mmlToken | unicode | setOptions
    )(?![a-z]))""",
    re.VERBOSE | re.IGNORECASE,
)
_TEXT_OR_TAG = re.compile(r"(<[^>]*>)")


def check(text: str) -> str:
    """A formula as it is.

    Raises:
        RefusedError: it holds a command that does more than to set a formula.
    """
    if len(text) > MAX_LATEX:
        raise RefusedError("larger than 64 KiB")
    command = _COMMAND.search(text)
    if command is not None:
        raise RefusedError(f"`\\{command[1][:20]}`")
    return text


def defuse(html: str) -> str:
    r"""Break those commands in clean markup: MathJax reads no `\href` through a tag's border.

    The markup must be a sanitiser's, which writes no `<` or `>` but those of tags.
    """
    if _COMMAND.search(html) is None:
        return html
    pieces = _TEXT_OR_TAG.split(html)
    pieces[::2] = [_COMMAND.sub(r"\\<span></span>", piece) for piece in pieces[::2]]
    return "".join(pieces)
