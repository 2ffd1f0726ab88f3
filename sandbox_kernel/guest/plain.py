"""A shell for images without IPython: Python alone, and what a notebook cannot do without.

Invariants: a traceback shows the user's frames and lines, and none of ours.  What only
IPython can do is refused by name.
"""

from __future__ import annotations
import __future__

import ast
import asyncio
import builtins
import inspect
import linecache
import os
import sys
import traceback
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from sandbox_kernel import wire
from sandbox_kernel.guest import answers
from sandbox_kernel.guest.displays import Displays
from sandbox_kernel.guest.formats import bundle_of
from sandbox_kernel.guest.publish import exit_code_of, without_our_frames
from sandbox_kernel.guest.signals import cancelled_by_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandbox_kernel.guest.publish import Publisher


#: What `from __future__ import ...` of one cell leaves on for the next.
_FUTURE_FLAGS = sum(
    getattr(__future__, name).compiler_flag for name in __future__.all_feature_names
)


class StdinNotImplementedError(NotImplementedError):
    """Nobody can be asked for input; named as IPython's."""

    __module__ = "builtins"


class UsageError(Exception):
    """Something that only IPython understands; named as IPython's."""

    # A traceback names the module of all others.
    __module__ = "builtins"


def create(publisher: Publisher) -> PlainShell:
    """Make the shell, and the `__main__` that its cells are run in."""
    os.environ.setdefault("MPLBACKEND", "module://sandbox_kernel.guest.figures")
    main = ModuleType("__main__")
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    return PlainShell(publisher, vars(main))


class PlainShell:
    """The worker's `Shell` in plain Python."""

    kind = "python"
    refusal: type[Exception] = StdinNotImplementedError

    def __init__(self, publisher: Publisher, namespace: dict[str, Any]) -> None:
        self._publisher = publisher
        self._namespace = namespace
        self._inputs = [""]
        self._outputs: dict[int, object] = {}
        self._future_flags = 0
        namespace.update(In=self._inputs, Out=self._outputs, _="", __="", ___="")
        Displays(publisher).install()

    async def run(self, cell: wire.Execute) -> wire.ExecuteReply:
        """Run a cell; the value of its last expression is shown unless `;` follows it."""
        name = f"Cell In[{cell.execution_count}]"
        lines = cell.code.splitlines(keepends=True)
        # Without a time, `linecache` does not look for a file of this name.
        linecache.cache[name] = (len(cell.code), None, lines, name)
        if cell.store_history:
            self._inputs += [""] * (cell.execution_count + 1 - len(self._inputs))
            self._inputs[cell.execution_count] = cell.code
        saved = sys.displayhook
        sys.displayhook = lambda value: self._show(value, cell)
        try:
            for code in self._compile(cell.code, name):
                await self._run_code(code)
            _show_figures()
        # Whatever user code raises, `SystemExit` and an interrupt too, is shown and survived.
        except BaseException as error:  # noqa: BLE001
            self._publisher.error(error, type(error).__name__, _traceback(error, name))
            return wire.ExecuteReply(cell.cell, "error", exit_code_of(error), 0)
        finally:
            sys.displayhook = saved
        return wire.ExecuteReply(cell.cell, "ok", 0, 0)

    def _compile(self, source: str, name: str) -> Iterator[CodeType]:
        """Compile all before the last expression, then that; the first runs in between."""
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | self._future_flags
        try:
            tree = compile(source, name, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        except SyntaxError as error:
            _refuse_ipython(source, error)
            raise
        body = tree.body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        if last is not None and source.rstrip().endswith(";"):
            body.append(last)
            last = None
        code = compile(tree, name, "exec", flags, dont_inherit=True)
        self._future_flags |= code.co_flags & _FUTURE_FLAGS
        if body:
            yield code
        if last is not None:
            yield compile(ast.Interactive([last]), name, "single", flags, dont_inherit=True)

    async def _run_code(self, code: CodeType) -> None:
        if not code.co_flags & inspect.CO_COROUTINE:
            exec(code, self._namespace)
            return
        future = asyncio.ensure_future(eval(code, self._namespace))  # noqa: S307 - its purpose
        with cancelled_by_interrupt(future):
            await future

    def _show(self, value: object, cell: wire.Execute) -> None:
        if value is None or cell.silent:
            return
        space = self._namespace
        space.update(_=value, __=space.get("_"), ___=space.get("__"))
        if cell.store_history:
            self._outputs[cell.execution_count] = value
        self._publisher.result(*bundle_of(value))

    def complete(self, request: wire.Complete) -> wire.CompleteReply:
        """Complete a name, or an attribute of one."""
        return answers.complete(request, self._namespace)

    def inspect(self, request: wire.Inspect) -> wire.InspectReply:
        """Describe the name at the cursor."""
        return answers.inspect_name(request, self._namespace)

    def is_complete(self, request: wire.IsComplete) -> wire.IsCompleteReply:
        """Ask Python's own interactive compiler."""
        return answers.is_complete(request)


def _refuse_ipython(source: str, error: SyntaxError) -> None:
    """Name what only IPython understands, if that is why a cell is no Python."""
    lines = source.splitlines()
    number = error.lineno or 0
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    if line[:1] in ("%", "!") or line.endswith("?") or line.startswith("?"):
        raise UsageError(f"this image has no IPython: `{line.split()[0]}` needs it") from None


def _show_figures() -> None:
    """Show what the cell has drawn, also without `show()`."""
    figures = sys.modules.get("sandbox_kernel.guest.figures")
    if figures is not None:
        figures.show()


def _traceback(error: BaseException, name: str) -> list[str]:
    """The lines of a traceback that begins in the cell and does not end in our frames."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename != name:
        tb = tb.tb_next
    return traceback.format_exception(type(error), error, without_our_frames(tb))
