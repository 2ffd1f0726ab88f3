"""Completion, documentation and wholeness of code in plain Python.

Invariant: looks at names and attributes only; nothing of the user's code is called but what
an attribute access calls.
"""

from __future__ import annotations

import ast
import builtins
import codeop
import inspect
import pydoc
import re
import rlcompleter
from typing import TYPE_CHECKING, Any

from sandbox_kernel import wire

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME_BEFORE = re.compile(r"[\w.]*$")
_NAME_AFTER = re.compile(r"\w*")


def complete(request: wire.Complete, namespace: dict[str, Any]) -> wire.CompleteReply:
    """Complete a name, or an attribute of one."""
    before = _name_before(request.code, request.cursor)
    completer = rlcompleter.Completer(namespace)
    found = completer.attr_matches(before) if "." in before else completer.global_matches(before)
    # Only what stands behind the last dot is replaced; `(` is a terminal's habit.
    names = sorted({match.rpartition(".")[2].strip().rstrip("()") for match in found})
    types = [_kind(before.rpartition(".")[0], name, namespace) for name in names]
    start = request.cursor - len(before.rpartition(".")[2])
    return wire.CompleteReply(request.request, names, types, start, request.cursor)


def inspect_name(request: wire.Inspect, namespace: Mapping[str, Any]) -> wire.InspectReply:
    """Describe the dotted name at the cursor; with `detail`, its source too."""
    before = _name_before(request.code, request.cursor)
    after = _NAME_AFTER.match(request.code, request.cursor)
    # The cursor may stand behind the bracket of a call.
    name = before + (after.group() if after else "")
    if not name:
        name = _name_before(request.code, request.code.rfind("(", 0, request.cursor))
    found, value = _look_up(name, namespace)
    if not found:
        return wire.InspectReply(request.request, found=False, text="")
    text = pydoc.plain(pydoc.render_doc(value, "%s"))
    if request.detail:
        text += f"\n\n{_source(value)}"
    return wire.InspectReply(request.request, found=True, text=text)


def is_complete(request: wire.IsComplete) -> wire.IsCompleteReply:
    """Ask Python's own interactive compiler."""
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        code = compiler(request.code, symbol="exec")
    except (SyntaxError, ValueError, OverflowError):
        return wire.IsCompleteReply(request.request, "invalid", "")
    if code is not None:
        return wire.IsCompleteReply(request.request, "complete", "")
    last = (request.code.splitlines() or [""])[-1]
    indent = last[: len(last) - len(last.lstrip())] + ("    " if last.rstrip()[-1:] == ":" else "")
    return wire.IsCompleteReply(request.request, "incomplete", indent)


def _name_before(code: str, cursor: int) -> str:
    match = _NAME_BEFORE.search(code[: max(cursor, 0)])
    return match.group() if match else ""


def _look_up(name: str, namespace: Mapping[str, Any]) -> tuple[bool, Any]:
    first, *rest = name.split(".")
    if first not in namespace and not hasattr(builtins, first):
        return False, None
    value = namespace.get(first, getattr(builtins, first, None))
    for attribute in rest:
        if not hasattr(value, attribute):
            return False, None
        value = getattr(value, attribute)
    return True, value


def _kind(owner: str, name: str, namespace: Mapping[str, Any]) -> str:
    """The type of a completion, in the words that Jupyter's clients know."""
    found, value = _look_up(f"{owner}.{name}" if owner else name, namespace)
    if not found:
        return "keyword" if not owner else "<unknown>"
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        return "class"
    return "function" if callable(value) else "instance"


def _source(value: object) -> str:
    try:
        return inspect.getsource(value)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return "the source is not available"
