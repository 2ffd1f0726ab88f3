"""A Jupyter client for the tests: run a cell, look at what came back.

Speaks to a real kernel process over ZMQ, as JupyterLab's server does.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jupyter_client.manager import KernelManager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from jupyter_client.blocking.client import BlockingKernelClient

#: Seconds for any one message; a test that waits longer has failed.
TIMEOUT = 60


@dataclass
class Result:
    """All that a cell brought back."""

    reply: dict[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def content(self) -> dict[str, Any]:
        return self.reply["content"]

    @property
    def sandbox(self) -> dict[str, Any]:
        return self.reply["metadata"]["sandbox"]

    @property
    def ok(self) -> bool:
        return self.content["status"] == "ok"

    @property
    def stdout(self) -> str:
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        return self._stream("stderr")

    def _stream(self, name: str) -> str:
        found = self.of("stream")
        return "".join(m["text"] for m in found if m["name"] == name)

    @property
    def error(self) -> dict[str, Any]:
        """The one error output."""
        errors = self.of("error")
        assert len(errors) == 1, self.messages
        return errors[0]

    @property
    def ename(self) -> str | None:
        """The class of the error, None if there was none."""
        return self.error["ename"] if self.of("error") else None

    @property
    def bundles(self) -> list[dict[str, Any]]:
        """The MIME bundles shown, in order, results included."""
        kinds = ("display_data", "update_display_data", "execute_result")
        return [m["content"]["data"] for m in self.messages if m["msg_type"] in kinds]

    @property
    def value(self) -> str | None:
        """The text of the cell's last expression."""
        results = self.of("execute_result")
        return results[-1]["data"]["text/plain"] if results else None

    def of(self, msg_type: str) -> list[dict[str, Any]]:
        """The contents of all messages of a type."""
        return [m["content"] for m in self.messages if m["msg_type"] == msg_type]


class Kernel:
    """A running kernel."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def run(self, code: str, **options: Any) -> Result:
        """Run a cell to its end.

        `meanwhile=` is called once with this kernel after the cell has become busy;
        `answer=` maps a prompt to what the user types.
        """
        request = self.submit(code, **options)
        return self.wait(request, options.get("meanwhile"), options.get("answer"))

    def submit(self, code: str, **options: Any) -> str:
        """Send a cell and return its request's id."""
        options.setdefault("allow_stdin", options.get("answer") is not None)
        names = ("silent", "store_history", "allow_stdin", "stop_on_error", "user_expressions")
        return self.client.execute(code, **{n: options[n] for n in names if n in options})

    def wait(
        self,
        request: str,
        meanwhile: Callable[[Kernel], None] | None = None,
        answer: Callable[[Mapping[str, Any]], str] | None = None,
        timeout: float = TIMEOUT,
    ) -> Result:
        """Collect a cell's messages until its idle, then its reply."""
        result = Result({})
        begun = time.monotonic()
        while True:
            assert time.monotonic() - begun < timeout, result
            if answer is not None and self.client.stdin_channel.msg_ready():
                asked = self.client.get_stdin_msg(timeout=1)
                self.client.input(answer(asked["content"]))
            if not self.client.iopub_channel.msg_ready():
                time.sleep(0.002)
                continue
            message = self.client.get_iopub_msg(timeout=1)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status":
                if message["content"]["execution_state"] == "idle":
                    break
                if meanwhile is not None:
                    call, meanwhile = meanwhile, None
                    call(self)
                continue
            result.messages.append(message)
        result.reply = self.reply(request)
        result.seconds = time.monotonic() - begun
        return result

    def reply(self, request: str, timeout: float = TIMEOUT) -> dict[str, Any]:
        """The shell reply to a request."""
        while True:
            reply = self.client.get_shell_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == request:
                return reply

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()


@contextmanager
def started(
    *settings: str, name: str = "aisandbox-docker", provider: str = "docker", **options: Any
) -> Iterator[Kernel]:
    """Start a kernel; `settings` are `key=value` of the policy, as an installed kernelspec has."""
    arguments = [part for setting in settings for part in ("--set", setting)]
    arguments += ["--provider", provider]
    manager = KernelManager(kernel_name=name)
    manager.start_kernel(extra_arguments=arguments, **options)
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=TIMEOUT)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=False)
        manager.cleanup_resources()
