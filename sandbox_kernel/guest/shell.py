"""Cells and a client's questions, served by IPython as ipykernel 7.4 serves them.

Invariant: nothing that user code raises leaves `run`; it is shown.
"""

from __future__ import annotations

# Most of IPython has no types.
# mypy: allow-untyped-calls
import asyncio
import os
import sys
import tempfile
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from IPython.core.async_helpers import _asyncio_runner
from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.core.error import StdinNotImplementedError
from IPython.utils.tokenutil import token_at_cursor
from traitlets.config import Config

from sandbox_kernel import wire
from sandbox_kernel.guest import signals
from sandbox_kernel.guest.interactive import NoFiles, ZMQInteractiveShell
from sandbox_kernel.guest.publish import exit_code_of

if TYPE_CHECKING:
    from sandbox_kernel.guest.publish import Publisher


def create(publisher: Publisher, *, network: bool) -> IPythonShell:
    """Make IPython's one shell of this process."""
    if find_spec("matplotlib_inline") is not None and not os.environ.get("MPLBACKEND"):
        os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    config = Config()
    # History in memory only: no database, and no thread that writes it.
    config.HistoryManager.enabled = False
    shell = ZMQInteractiveShell.instance(
        config=config,
        profile_dir=NoFiles(location=f"{tempfile.gettempdir()}/.ipython"),
        publisher=publisher,
        network=network,
    )
    return IPythonShell(shell)


class IPythonShell:
    """The worker's `Shell` on top of IPython's."""

    kind = "ipython"
    refusal: type[Exception] = StdinNotImplementedError

    def __init__(self, shell: ZMQInteractiveShell) -> None:
        self._shell = shell

    async def run(self, cell: wire.Execute) -> wire.ExecuteReply:
        """Run a cell as ipykernel's `do_execute` does."""
        shell = self._shell
        # The host counts: its numbers go on where a worker that died has stopped.
        shell.execution_count = cell.execution_count
        history: Any = shell.history_manager
        for inputs in (history.input_hist_parsed, history.input_hist_raw):
            inputs.extend([""] * (cell.execution_count - len(inputs)))
        result = await self._run(cell)
        error = result.error_before_exec or result.error_in_exec
        if result.success and not shell._last_traceback_during_displayhook:
            return wire.ExecuteReply(cell.cell, "ok", 0, 0)
        return wire.ExecuteReply(cell.cell, "error", exit_code_of(error), 0)

    async def _run(self, cell: wire.Execute) -> Any:
        shell = self._shell
        transformed, failure = cell.code, None
        try:
            transformed = shell.transform_cell(cell.code)
        # IPython shows whatever an input transformer raised when it is handed on.
        except Exception:  # noqa: BLE001
            failure = sys.exc_info()
        is_async = shell.loop_runner is _asyncio_runner and shell.should_run_async(
            cell.code, transformed_cell=transformed, preprocessing_exc_tuple=failure
        )
        if not is_async:
            return shell.run_cell(cell.code, store_history=cell.store_history, silent=cell.silent)
        coroutine = shell.run_cell_async(
            cell.code,
            store_history=cell.store_history,
            silent=cell.silent,
            transformed_cell=transformed,
            preprocessing_exc_tuple=failure,
        )
        future = asyncio.ensure_future(coroutine)
        result = None
        with signals.cancelled_by_interrupt(future):
            try:
                result = await future
            finally:
                shell.events.trigger("post_execute")
                if not cell.silent:
                    shell.events.trigger("post_run_cell", result)
        return result

    def complete(self, request: wire.Complete) -> wire.CompleteReply:
        """Complete as ipykernel does, with the types that Jupyter's clients show."""
        code, cursor = request.code, request.cursor
        with provisionalcompleter():
            raw = self._shell.Completer.completions(code, cursor)
            found = list(rectify_completions(code, raw))
        start, end = (found[0].start, found[0].end) if found else (cursor, cursor)
        matches = [completion.text for completion in found]
        types = [completion.type or "" for completion in found]
        return wire.CompleteReply(request.request, matches, types, start, end)

    def inspect(self, request: wire.Inspect) -> wire.InspectReply:
        """Describe the name at the cursor."""
        name = token_at_cursor(request.code, request.cursor)
        try:
            bundle = self._shell.object_inspect_mime(name, detail_level=request.detail)
        except KeyError:
            return wire.InspectReply(request.request, found=False, text="")
        return wire.InspectReply(request.request, found=True, text=bundle["text/plain"])

    def is_complete(self, request: wire.IsComplete) -> wire.IsCompleteReply:
        """Ask IPython's input transformer."""
        status, indent = self._shell.input_transformer_manager.check_complete(request.code)
        return wire.IsCompleteReply(request.request, status, " " * (indent or 0))
