"""SandboxKernel: Jupyter requests in, Jupyter messages out.

Invariants:

- it shows nothing but messages that `messages` made of safe events;
- while a cell runs it still answers: completion and inspection with nothing, the kernel's
  description and an interrupt at once;
- it survives its sandbox, whatever that does, and answers the next cell.

Outputs are sent from the session's pump thread.  Their order against the main thread's
`status` is that of the calls: ipykernel's IOPub thread takes both from one queue.
"""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from ipykernel._version import kernel_protocol_version
from traitlets import Instance, default

from sandbox_kernel import __version__, about, magic, messages
from sandbox_kernel.dispatch import OrderedKernel
from sandbox_kernel.display import safe
from sandbox_kernel.errors import SandboxPolicyError
from sandbox_kernel.history import History
from sandbox_kernel.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from sandbox_kernel.about import About, Usage
    from sandbox_kernel.cell import Outcome

#: Seconds that `kernel_info` waits for the guest, so that it can name its Python's version.
ABOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a cell's outputs go."""

    parent: dict[str, Any]
    ident: Any
    execution_count: int


class SandboxKernel(OrderedKernel):
    """A kernel that runs its cells in a session's sandbox."""

    implementation = "sandbox-kernel"
    implementation_version = __version__

    sandbox = Instance(Session)

    @default("sandbox")
    def _sandbox_of_the_application(self) -> Session:
        session: Session = self.parent.sandbox
        return session

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.history = History()
        self._next_count = 1
        self._about: About | None = None
        self._running_ident: Any = None
        self._last_outcome: Outcome | None = None
        self._last_result: str | None = None
        self._prompt_over = threading.Event()
        self._last_usage: Usage | None = None
        self.sandbox.deliver = self._deliver

    # --- what it is -----------------------------------------------------------------------

    @property
    def language_info(self) -> dict[str, object]:  # type: ignore[override]
        """As ipykernel's, with the version of the sandbox's Python."""
        return about.language_info(self._about)

    @property
    def banner(self) -> str:  # type: ignore[override]
        """One line: what runs where, under which limits."""
        return about.banner(self._about)

    @property
    def kernel_info(self) -> dict[str, Any]:
        """As ipykernel's, without the debugger (which is slow to import) and subshells."""
        return {
            "protocol_version": kernel_protocol_version,
            "implementation": self.implementation,
            "implementation_version": self.implementation_version,
            "language_info": self.language_info,
            "banner": self.banner,
            "help_links": self.help_links,
            "supported_features": [],
        }

    @property
    def execution_count(self) -> int:
        """The number that the next cell gets."""
        return self._next_count

    @execution_count.setter
    def execution_count(self, value: int) -> None:
        # kernelbase counts every request; cells that are not stored do not count.
        pass

    async def kernel_info_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Answer once the sandbox is up, or failed, or `ABOUT_SECONDS` have passed."""
        await self._learn_about()
        await super().kernel_info_request(stream, ident, parent)

    async def _learn_about(self) -> None:
        future = asyncio.wrap_future(self.sandbox.about)
        done, _ = await asyncio.wait({future}, timeout=ABOUT_SECONDS)
        if done:
            self._about = future.result() or self._about

    # --- cells ------------------------------------------------------------------------------

    async def execute_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Remember whose cell runs, for outputs and for the kernel's status."""
        self.running, self._running_ident = parent, ident
        try:
            await super().execute_request(stream, ident, parent)
        finally:
            self.running = None

    def _publish_execute_input(self, code: str, parent: Any, execution_count: int) -> None:
        """Show what is run; half a surrogate pair, which no message can carry, as `?`."""
        super()._publish_execute_input(_sendable(code), parent, execution_count)

    async def do_execute(
        self,
        code: str,
        silent: bool,  # noqa: FBT001 - ipykernel's signature
        store_history: bool = True,  # noqa: FBT001, FBT002
        user_expressions: Mapping[str, str] | None = None,  # noqa: ARG002 - never carried
        allow_stdin: bool = False,  # noqa: FBT001, FBT002
        *,
        cell_meta: Any = None,  # noqa: ARG002 - a notebook decides nothing
        cell_id: Any = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        """Run a cell and say how it ended."""
        store_history = store_history and not silent
        count = self._next_count
        origin = _Origin(self.running or {}, self._running_ident, count)
        self._last_result = None
        self._prompt_over.clear()
        try:
            wish = magic.parse(code)
        except SandboxPolicyError as error:
            running = self.sandbox.refuse(origin, error)
        else:
            running = await self._begin(
                wish,
                code,
                origin,
                silent=silent,
                store_history=store_history,
                allow_stdin=allow_stdin,
            )
        outcome = await asyncio.wrap_future(running)
        self._prompt_over.set()
        self._last_outcome = outcome
        if store_history and code.strip():
            self._next_count += 1
            self.history.add(count, _sendable(code), self._last_result)
        return self._reply(outcome)

    async def _begin(
        self,
        wish: magic.Wish | None,
        code: str,
        origin: _Origin,
        *,
        silent: bool,
        store_history: bool,
        allow_stdin: bool,
    ) -> Future[Outcome]:
        """Run a cell in the sandbox, or answer it here."""
        match wish:
            case magic.Show():
                await self._learn_about()
                targets = self.sandbox.targets
                pairs = magic.rows(self._about, await _soon(self.sandbox.usage()), targets)
                return self.sandbox.show(origin, magic.as_text(pairs), magic.as_html(pairs))
            case magic.Rewind(cells):
                return self.sandbox.rewind(origin, cells)
        limit_seconds = inf
        if isinstance(wish, magic.Tightened):
            code, limit_seconds = wish.code, wish.timeout_seconds
        return self.sandbox.execute(
            code,
            origin,
            silent=silent,
            store_history=store_history,
            allow_stdin=allow_stdin,
            execution_count=origin.execution_count,
            limit_seconds=limit_seconds,
        )

    def _reply(self, outcome: Outcome) -> dict[str, Any]:
        reply: dict[str, Any] = {
            "status": "ok" if outcome.ok else "error",
            "execution_count": self._next_count - 1,
            "payload": [messages.page_payload(text) for text in outcome.pages],
            "user_expressions": {},
        }
        if outcome.error is not None:
            reply.update(messages.error_content(outcome.error))
        return reply

    def finish_metadata(self, _parent: Any, metadata: Any, reply_content: Any) -> Any:
        """Put the verdict beside the reply."""
        metadata["status"] = reply_content["status"]
        outcome = self._last_outcome
        if outcome is not None and reply_content["status"] != "aborted":
            metadata["sandbox"] = {
                "provider": outcome.provider,
                "sandbox_id": outcome.sandbox_id,
                "exit_code": outcome.exit_code,
                "timed_out": outcome.timed_out,
                "duration_ms": outcome.duration_ms,
                "truncated": outcome.dropped > 0,
                "state": outcome.state.value,
                "checkpoint": outcome.checkpoint,
            }
        return metadata

    def _deliver(self, origin: _Origin, output: safe.Safe) -> None:
        """Send an output to whoever watches; called from the session's threads."""
        if isinstance(output, safe.Prompt):
            thread = threading.Thread(
                target=self._ask_user, args=(origin, output), name="sandbox-input", daemon=True
            )
            thread.start()
            return
        message = messages.to_iopub(output, execution_count=origin.execution_count)
        if message is None or not self.session:
            return
        if message.msg_type == "execute_result":
            self._last_result = message.content["data"].get("text/plain")
        self.session.send(
            self.iopub_socket,
            message.msg_type,
            message.content,
            parent=origin.parent,
            ident=self._topic(message.msg_type),
        )

    # --- input ------------------------------------------------------------------------------

    def _ask_user(self, origin: _Origin, prompt: safe.Prompt) -> None:
        """Thread `input`: ask the client, and give up when the cell is over."""
        stdin, session = self.stdin_socket, self.session
        while stdin.poll(0):
            stdin.recv_multipart()  # answers to what was asked before
        content = {"prompt": prompt.prompt, "password": prompt.password}
        session.send(stdin, "input_request", content, origin.parent, ident=origin.ident)
        while not self._prompt_over.is_set():
            if not stdin.poll(50):
                continue
            _, reply = session.recv(stdin)
            if reply is not None:
                value = reply["content"].get("value")
                self.sandbox.input_reply(prompt.cell, value if isinstance(value, str) else "")
                return

    # --- between cells ------------------------------------------------------------------------

    async def do_complete(self, code: str, cursor_pos: int | None) -> dict[str, Any]:
        """Complete, or answer with nothing while a cell runs."""
        cursor = len(code) if cursor_pos is None else cursor_pos
        return messages.complete_content(await _soon(self.sandbox.complete(code, cursor)), cursor)

    async def do_inspect(
        self, code: str, cursor_pos: int | None, detail_level: int = 0, _omit_sections: Any = ()
    ) -> dict[str, Any]:
        """Inspect, or answer with nothing while a cell runs."""
        cursor = len(code) if cursor_pos is None else cursor_pos
        detail = 1 if detail_level else 0
        return messages.inspect_content(await _soon(self.sandbox.inspect(code, cursor, detail)))

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        """Say whether the code is whole, or `unknown` while a cell runs."""
        return messages.is_complete_content(await _soon(self.sandbox.is_complete(code)))

    async def do_history(  # noqa: PLR0917 - ipykernel's signature
        self,
        hist_access_type: str,
        output: bool = False,  # noqa: FBT001, FBT002 - the protocol's names
        raw: bool = True,  # noqa: FBT001, FBT002, ARG002
        session: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        n: int | None = None,
        pattern: str | None = None,
        unique: bool = False,  # noqa: FBT001, FBT002
    ) -> dict[str, Any]:
        """The cells of this session."""
        match hist_access_type:
            case "tail":
                rows = self.history.tail(n, output=output)
            case "range":
                rows = self.history.range(session or 0, start or 0, stop, output=output)
            case "search":
                rows = self.history.search(pattern or "*", n, output=output, unique=unique)
            case _:
                rows = []
        return {"status": "ok", "history": rows}

    async def usage_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """What the sandbox uses, not what this process does."""
        usage = await _soon(self.sandbox.usage())
        content = about.usage_content(usage, self._last_usage)
        self._last_usage = usage
        self.session.send(stream, "usage_reply", {**content, "pid": os.getpid()}, parent, ident)

    # --- interrupt, shutdown ------------------------------------------------------------------

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Interrupt the running cell; answered at once, from the control thread."""
        self.sandbox.interrupt()
        self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:  # noqa: FBT001
        """End the sandbox, then say so."""
        self._prompt_over.set()
        await asyncio.to_thread(self.sandbox.close)
        return {"status": "ok", "restart": restart}


def _sendable(code: str) -> str:
    return code.encode("utf-8", "replace").decode()


async def _soon(future: Future[Any]) -> Any:
    """A session's answer; the session bounds the wait."""
    return future.result() if future.done() else await asyncio.wrap_future(future)
