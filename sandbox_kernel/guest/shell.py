"""Cells and a client's questions, served by IPython as ipykernel 7.4 serves them.

Invariant: nothing that user code raises leaves `run`; it is shown.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core import interactiveshell
from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.core.error import StdinNotImplementedError
from IPython.utils.tokenutil import token_at_cursor
from traitlets.config import Config

from sandbox_kernel import wire
from sandbox_kernel.guest.interactive import NoFiles, ZMQInteractiveShell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandbox_kernel.guest.publish import Publisher

#: What IPython runs a cell in if it has a top-level `await`.
_ASYNCIO = interactiveshell._asyncio_runner  # noqa: SLF001 - as ipykernel does


def create(publisher: Publisher, *, network: bool) -> IPythonShell:
    """Make IPython's one shell of this process."""
    if not os.environ.get("MPLBACKEND"):
        os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    config = Config()
    # History in memory only: no database, and no thread that writes it.
    config.HistoryManager.enabled = False
    shell = ZMQInteractiveShell.instance(
        config=config,
        profile_dir=NoFiles(location=os.path.join(tempfile.gettempdir(), ".ipython")),
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
        result = await self._run(cell)
        error = result.error_before_exec or result.error_in_exec
        if result.success and not shell._last_traceback_during_displayhook:  # noqa: SLF001
            return wire.ExecuteReply(cell.cell, "ok", 0, 0)
        return wire.ExecuteReply(cell.cell, "error", _exit_code(error), 0)

    async def _run(self, cell: wire.Execute) -> Any:
        shell = self._shell
        transformed, failure = cell.code, None
        try:
            transformed = shell.transform_cell(cell.code)
        # IPython shows whatever an input transformer raised when it is handed on.
        except Exception:  # noqa: BLE001
            failure = sys.exc_info()
        is_async = shell.loop_runner is _ASYNCIO and shell.should_run_async(
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
        with _cancelled_by_interrupt(future):
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
            found = list(rectify_completions(code, raw))[: wire.MAX_ITEMS]
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


def _exit_code(error: BaseException | None) -> int:
    """The status that a script would have ended with."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return 1


@contextmanager
def _cancelled_by_interrupt(future: asyncio.Future[Any]) -> Iterator[None]:
    """Let SIGINT cancel a cell that awaits: it must not raise in the loop."""
    loop = asyncio.get_running_loop()

    def cancel(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(future.cancel)

    saved = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, saved)
