"""A kernel under measurement: started from its kernelspec, asked as any client asks."""

from __future__ import annotations

import time
from contextlib import contextmanager
from queue import Empty
from typing import TYPE_CHECKING, Any

from jupyter_client.manager import KernelManager

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyter_client.blocking.client import BlockingKernelClient

#: Seconds for any one answer.
TIMEOUT = 120


class Kernel:
    """A running kernel and its client."""

    def __init__(self, client: BlockingKernelClient, first_reply_seconds: float) -> None:
        self._client = client
        #: From the start of the process to the reply of its first cell.
        self.first_reply_seconds = first_reply_seconds

    def run(self, code: str) -> float:
        """Run a cell; return the seconds from the request until its reply and its idle.

        Raises:
            RuntimeError: the cell failed, so that nothing was measured.
        """
        started = time.perf_counter()
        request = self._client.execute(code)
        reply = self._reply(request)
        self.outputs = self._until_idle(request)
        elapsed = time.perf_counter() - started
        if reply["content"]["status"] != "ok":
            raise RuntimeError("\n".join(reply["content"].get("traceback", ["aborted"])))
        return elapsed

    def request(self, kind: str, code: str) -> float:
        """Ask for a completion or an inspection at the end of `code`; return the seconds."""
        started = time.perf_counter()
        ask = self._client.complete if kind == "complete" else self._client.inspect
        self._reply(ask(code, len(code)))
        return time.perf_counter() - started

    def _reply(self, request: str) -> dict[str, Any]:
        while True:
            reply: dict[str, Any] = self._client.get_shell_msg(timeout=TIMEOUT)
            if reply["parent_header"].get("msg_id") == request:
                return reply

    def _until_idle(self, request: str) -> list[dict[str, Any]]:
        outputs = []
        while True:
            message: dict[str, Any] = self._client.get_iopub_msg(timeout=TIMEOUT)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["content"].get("execution_state") == "idle":
                return outputs
            outputs.append(message)


@contextmanager
def started(name: str) -> Iterator[Kernel]:
    """Start the kernel of a kernelspec, and shut it down at the end."""
    manager = KernelManager(kernel_name=name)
    begun = time.perf_counter()
    manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        # Not `wait_for_ready`: it adds a wait of its own to every kernel.
        client.execute("1 + 1", reply=True, timeout=TIMEOUT)
        kernel = Kernel(client, time.perf_counter() - begun)
        _subscribe(client)
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)


def _subscribe(client: BlockingKernelClient) -> None:
    """Wait until outputs arrive: what is published before a subscriber is there is lost."""
    for _ in range(TIMEOUT):
        request = client.execute("", silent=True)
        try:
            while True:
                message = client.get_iopub_msg(timeout=1)
                mine = message["parent_header"].get("msg_id") == request
                if mine and message["content"].get("execution_state") == "idle":
                    return
        except Empty:
            continue
    raise RuntimeError("the kernel publishes nothing")
