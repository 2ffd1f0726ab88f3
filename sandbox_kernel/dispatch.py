"""In which order the shell channel's requests are served, and which do not wait.

Knows ipykernel and ZMQ, and nothing of sandboxes.  Invariants: cells run one at a time, in
the order of their arrival; what can be answered while one runs is answered at once; after an
error exactly the cells that had arrived by then are aborted.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any

import zmq
from ipykernel.kernelbase import Kernel

#: Answered at once while a cell runs; all else waits for the cell's end, as in ipykernel.
ANSWERED_WHILE_BUSY = frozenset(
    {
        "complete_request",
        "inspect_request",
        "is_complete_request",
        "kernel_info_request",
        "history_request",
        "comm_info_request",
        "connect_request",
    }
)


class OrderedKernel(Kernel):
    """ipykernel's base class with one shell thread and an order of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("comm_open", "comm_msg", "comm_close"):
            self.shell_handlers[name] = self._ignore
        #: The request of the cell that runs.
        self.running: dict[str, Any] | None = None
        self._arrivals = 0
        self._abort_until = 0
        # A loop holds its tasks only weakly.
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Serve requests in the order of their arrival."""
        super().start()
        self._shell_context = copy_context()
        self.shell_stream.on_recv(self._on_shell_message, copy=False)

    def _on_shell_message(self, frames: list[Any]) -> None:
        self._arrivals += 1
        coroutine = self._serve(frames, self._arrivals)
        task = asyncio.get_running_loop().create_task(coroutine, context=copy_context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, frames: list[Any], arrival: int) -> None:
        if self._main_asyncio_lock.locked() and self._msg_type(frames) in ANSWERED_WHILE_BUSY:
            await self._serve_while_busy(frames)
            return
        async with self._main_asyncio_lock:
            self._aborting = arrival <= self._abort_until
            await self.dispatch_shell(frames)

    async def _serve_while_busy(self, frames: list[Any]) -> None:
        """Answer with the request's own busy and idle, and leave the kernel shown as busy."""
        running = self.running
        _, inner = self.session.feed_identities(frames, copy=False)
        header = self.session.deserialize(inner, content=False, copy=False)
        self._publish_status("busy", "shell", parent=header)
        try:
            await self.dispatch_shell(frames, concurrent=True)
        finally:
            self._publish_status("idle", "shell", parent=header)
            if self._main_asyncio_lock.locked() and running is not None:
                self._publish_status("busy", "shell", parent=running)

    def _msg_type(self, frames: list[Any]) -> str:
        _, inner = self.session.feed_identities(frames, copy=False)
        try:
            header = self.session.deserialize(inner, content=False, copy=False)["header"]
        except (ValueError, TypeError, KeyError):
            return ""
        return str(header["msg_type"])

    def _abort_queues(self, subshell_id: str | None = None) -> None:  # noqa: ARG002
        """Abort the execute requests that have arrived by now, and no later one."""
        self.shell_stream.flush(zmq.POLLIN)
        self._abort_until = self._arrivals

    async def _ignore(self, stream: Any, ident: Any, parent: Any) -> None:
        """Comms do not cross the wall."""

    def pre_handler_hook(self) -> None:
        """Nothing: SIGINT is the session's interrupt at all times."""

    def post_handler_hook(self) -> None:
        """Nothing, likewise."""
