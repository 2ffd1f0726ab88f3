"""SandboxKernel: Jupyter requests in, Jupyter messages out.

The only file that knows ipykernel and ZMQ.  Invariants:

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
import signal
import threading
from contextvars import copy_context
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import zmq
from ipykernel._version import kernel_protocol_version
from ipykernel.jsonutil import json_clean
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel
from traitlets import Instance, default

from sandbox_kernel import messages
from sandbox_kernel.cell import Outcome
from sandbox_kernel.display import safe
from sandbox_kernel.history import History
from sandbox_kernel.session import About, Session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

#: Seconds that `kernel_info` waits for the guest, so that it can name its Python's version.
ABOUT_SECONDS = 2.0

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


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a cell's outputs go."""

    parent: dict[str, Any]
    ident: Any
    execution_count: int


class SandboxKernel(Kernel):
    """A kernel that runs its cells in a session's sandbox."""

    implementation = "sandbox-kernel"
    implementation_version = version("sandbox-kernel")

    sandbox = Instance(Session)

    @default("sandbox")
    def _sandbox_of_the_application(self) -> Session:
        session: Session = self.parent.sandbox
        return session

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("comm_open", "comm_msg", "comm_close"):
            self.shell_handlers[name] = self._ignore
        self.history = History()
        self._next_count = 1
        self._arrivals = 0
        self._abort_until = 0
        self._about: About | None = None
        self._last_outcome: Outcome | None = None
        self._last_result: str | None = None
        self._prompt_over = threading.Event()
        self._last_usage: tuple[int, int] | None = None
        self.sandbox.deliver = self._deliver

    # --- what it is -----------------------------------------------------------------------

    @property
    def language_info(self) -> dict[str, object]:  # type: ignore[override]
        """As ipykernel's, with the version of the sandbox's Python."""
        python = self._about.python if self._about else "3"
        return {
            "name": "python",
            "version": python,
            "mimetype": "text/x-python",
            "codemirror_mode": {"name": "ipython", "version": 3},
            "pygments_lexer": "ipython3",
            "nbconvert_exporter": "python",
            "file_extension": ".py",
        }

    @property
    def banner(self) -> str:  # type: ignore[override]
        """One line: what runs where, under which limits."""
        if self._about is None:
            return "aisandbox: no sandbox is running yet"
        about, policy = self._about, self._about.policy
        weak = "" if about.protected else "; the guest's supervisor is not protected here"
        return (
            f"aisandbox ({about.provider}): Python {about.python} in {policy.image}; "
            f"network {'on' if policy.network else 'off'}, "
            f"{policy.memory_bytes / (1024 * 1024):.0f} MiB, {policy.cpus:g} CPU, "
            f"{policy.timeout_seconds:g} s a cell{weak}"
        )

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
    def execution_count(self) -> int:  # type: ignore[override]
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

    # --- dispatch ---------------------------------------------------------------------------

    def start(self) -> None:
        """Serve requests in the order of their arrival."""
        super().start()
        self._shell_context = copy_context()
        self.shell_stream.on_recv(self._on_shell_message, copy=False)

    def _on_shell_message(self, frames: list[Any]) -> None:
        self._arrivals += 1
        coroutine = self._serve(frames, self._arrivals)
        task = asyncio.get_running_loop().create_task(coroutine, context=copy_context())
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)

    async def _serve(self, frames: list[Any], arrival: int) -> None:
        if self._main_asyncio_lock.locked() and self._msg_type(frames) in ANSWERED_WHILE_BUSY:
            await self._serve_while_busy(frames)
            return
        async with self._main_asyncio_lock:
            self._aborting = arrival <= self._abort_until
            await self.dispatch_shell(frames)

    async def _serve_while_busy(self, frames: list[Any]) -> None:
        """Answer with the request's own busy and idle, and leave the kernel shown as busy."""
        running = self._running
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

    # --- cells ------------------------------------------------------------------------------

    async def execute_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Remember whose cell runs, for outputs and for the kernel's status."""
        self._running = parent
        self._running_ident = ident
        try:
            await super().execute_request(stream, ident, parent)
        finally:
            self._running = None

    _running: dict[str, Any] | None = None
    _running_ident: Any = None

    def _publish_execute_input(self, code: str, parent: Any, execution_count: int) -> None:
        """Show what is run; half a surrogate pair, which no message can carry, as `?`."""
        super()._publish_execute_input(_sendable(code), parent, execution_count)

    async def do_execute(  # type: ignore[override]
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
        origin = _Origin(self._running or {}, self._running_ident, count)
        self._last_result = None
        self._prompt_over.clear()
        running = self.sandbox.execute(
            code,
            origin,
            silent=silent,
            store_history=store_history,
            allow_stdin=allow_stdin,
            execution_count=count,
        )
        outcome = await asyncio.wrap_future(running)
        self._prompt_over.set()
        self._last_outcome = outcome
        if store_history and code.strip():
            self._next_count += 1
            self.history.add(count, _sendable(code), self._last_result)
        return self._reply(outcome)

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

    def finish_metadata(self, parent: Any, metadata: Any, reply_content: Any) -> Any:
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
        self, code: str, cursor_pos: int | None, detail_level: int = 0, omit_sections: Any = ()
    ) -> dict[str, Any]:
        """Inspect, or answer with nothing while a cell runs."""
        cursor = len(code) if cursor_pos is None else cursor_pos
        detail = 1 if detail_level else 0
        return messages.inspect_content(await _soon(self.sandbox.inspect(code, cursor, detail)))

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        """Say whether the code is whole, or `unknown` while a cell runs."""
        return messages.is_complete_content(await _soon(self.sandbox.is_complete(code)))

    async def do_history(  # type: ignore[override]
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
        content: dict[str, Any] = {"hostname": "sandbox", "pid": os.getpid()}
        usage = await _soon(self.sandbox.usage())
        if usage is not None:
            last = self._last_usage or (0, 0)
            self._last_usage = (usage.uptime_ms, usage.cpu_ms)
            elapsed = usage.uptime_ms - last[0]
            if usage.cpu_ms >= 0 and elapsed > 0:
                content["kernel_cpu"] = round(100 * (usage.cpu_ms - last[1]) / elapsed, 1)
            if usage.memory_bytes >= 0:
                content["kernel_memory"] = usage.memory_bytes
            if usage.memory_limit > 0:
                content["host_virtual_memory"] = {
                    "total": usage.memory_limit,
                    "used": usage.memory_bytes,
                    "available": usage.memory_limit - usage.memory_bytes,
                    "percent": round(100 * usage.memory_bytes / usage.memory_limit, 1),
                }
        self.session.send(stream, "usage_reply", json_clean(content), parent, ident)

    # --- interrupt, shutdown ------------------------------------------------------------------

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Interrupt the running cell; answered at once, from the control thread."""
        self.sandbox.interrupt()
        self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:  # type: ignore[override]  # noqa: FBT001
        """End the sandbox, then say so."""
        self._prompt_over.set()
        await asyncio.to_thread(self.sandbox.close)
        return {"status": "ok", "restart": restart}


#: Tasks are only weakly held by their loop.
_TASKS: set[asyncio.Task[None]] = set()


def _sendable(code: str) -> str:
    return code.encode("utf-8", "replace").decode()


async def _soon(future: Future[Any]) -> Any:
    """A session's answer; the session bounds the wait."""
    return future.result() if future.done() else await asyncio.wrap_future(future)


class SandboxKernelApp(IPKernelApp):
    """ipykernel's application, without what only an in-process shell needs."""

    kernel_class = SandboxKernel
    # The host process prints nothing into notebooks.
    outstream_class = None

    sandbox = Instance(Session)

    def init_control(self, context: Any) -> None:
        """One shell channel, served by the main thread: a sandbox runs one cell at a time."""
        super().init_control(context)
        self.shell_channel_thread = None

    def init_pdb(self) -> None:
        """Nothing to debug here."""

    def init_signal(self) -> None:
        """SIGINT interrupts the cell (clients with `interrupt_mode: signal`), SIGTERM ends."""
        signal.signal(signal.SIGINT, lambda *_: self.sandbox.interrupt())
        signal.signal(signal.SIGTERM, lambda *_: self._stop())

    def _stop(self) -> None:
        loop = self.kernel.io_loop
        loop.add_callback_from_signal(loop.stop)


def serve(session: Session, argv: list[str]) -> None:
    """Run the kernel until it is shut down, then end its session."""
    app = SandboxKernelApp.instance(sandbox=session)
    app.initialize(argv)
    try:
        app.start()
    finally:
        session.close()
