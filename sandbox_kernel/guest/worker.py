"""The process that runs the cells: takes a request, lets the shell do it, answers.

Invariants: the worker says only what the wire allows it.  It is as hostile as the code it
runs, so nothing here is a defence; what keeps the sandbox is outside of this process.
Requests are served one by one in an asyncio loop, so that a notebook's tasks go on between
its cells, as they do in ipykernel.
"""

from __future__ import annotations

import asyncio
import builtins
import getpass
import os
import selectors
import sys
import time
import traceback
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn, Protocol

from sandbox_kernel import wire
from sandbox_kernel.guest import signals
from sandbox_kernel.guest.checkpoint import Dock
from sandbox_kernel.guest.link import ROOM, Link
from sandbox_kernel.guest.output import OutStream, Spool
from sandbox_kernel.guest.pace import Pace
from sandbox_kernel.guest.prefault import Prefault
from sandbox_kernel.guest.publish import Asking, Publisher, message_of
from sandbox_kernel.guest.routing import Routing

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping

    from sandbox_kernel.guest.ring import Outlet

#: User code that counts through small descriptors must not meet the loop's.
_LOWEST_FD = 64
#: A reply gets to the user in that time, if a copy does not take the processor away; and the
#: next cell comes in that time, if a program and not a person sends it.
_TRAVEL_SECONDS = 0.005
#: Characters of a completion, and how many there may be.
_NAME, _COMPLETIONS = 1000, 1000


class Shell(Protocol):
    """What runs code: IPython's shell, or the plain one."""

    #: As in `wire.Ready`.
    kind: str
    #: What `input` raises where nobody can be asked.
    refusal: type[Exception]

    async def run(self, cell: wire.Execute) -> wire.ExecuteReply:
        """Run a cell and show what comes of it; user code's exceptions are shown, not raised."""

    def complete(self, request: wire.Complete) -> wire.CompleteReply:
        """Return completions."""

    def inspect(self, request: wire.Inspect) -> wire.InspectReply:
        """Return documentation."""

    def is_complete(self, request: wire.IsComplete) -> wire.IsCompleteReply:
        """Tell whether code is whole."""


def main(
    sock: socket.socket,
    settings: Mapping[str, object],
    dock: socket.socket | None,
    outlet: Outlet,
) -> NoReturn:
    """Serve requests on `sock` until the supervisor is gone.

    Called in a process freshly forked from the supervisor that has no other thread.

    Args:
        sock: Connected to the supervisor.
        settings: `network`, `stdin` (booleans), `memory_bytes`, and `image` (a name for hints).
        dock: Likewise, for copies of this process; `None`: none are wanted.
        outlet: Where printed text goes.
    """
    signals.restore_defaults()
    link = Link(sock, outlet)
    with _small_descriptors_taken():
        # Of all selectors this one alone has nothing in the kernel that a copy would share.
        loop = asyncio.SelectorEventLoop(selectors.PollSelector())
    asyncio.set_event_loop(loop)
    routing = Routing()
    spool = Spool(link, routing)
    _prepare_process(spool, network=bool(settings.get("network")))
    publisher = Publisher(link, routing, spool, str(settings.get("image", "")))
    shell = _make_shell(publisher, network=bool(settings.get("network")))
    spool.flush()
    link.send(wire.Ready(shell.kind))
    link.listen(loop)
    worker = _Worker(link, routing, spool, publisher, shell, stdin=bool(settings.get("stdin")))
    if dock is not None:
        worker.dock = Dock(dock, int(str(settings["memory_bytes"])))
    serving = loop.create_task(worker.serve())
    serving.add_done_callback(_die_of)
    while True:
        # Of a task or a callback of the user's: the cells go on.
        with suppress(KeyboardInterrupt, SystemExit):
            loop.run_forever()
        worker.leave_copy(loop)


@contextmanager
def _small_descriptors_taken() -> Iterator[None]:
    taken = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
    while taken[-1] < _LOWEST_FD:
        taken.append(os.dup(taken[0]))
    yield
    for fd in taken:
        os.close(fd)


def _prepare_process(spool: Spool, *, network: bool) -> None:
    """Make the process look as a kernel's does to user code."""
    sys.argv = [""]
    if "" not in sys.path:
        sys.path.insert(0, "")
    sys.stdout = OutStream("stdout", spool)
    sys.stderr = OutStream("stderr", spool)
    if not network:
        # Without these, pip tries for minutes what cannot succeed.
        os.environ.setdefault("PIP_RETRIES", "0")
        os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")


def _make_shell(publisher: Publisher, *, network: bool) -> Shell:
    if find_spec("IPython") is not None:
        try:
            from sandbox_kernel.guest import shell  # noqa: PLC0415 - imports IPython
        except ImportError as error:
            publisher.note(f"this image's IPython cannot be imported: {error}")
        else:
            return shell.create(publisher, network=network)
    from sandbox_kernel.guest import plain  # noqa: PLC0415 - only where there is no IPython

    return plain.create(publisher)


def _die_of(serving: asyncio.Task[None]) -> None:
    """Serving never ends by itself: say why it did, and let the supervisor start anew."""
    if not serving.cancelled() and serving.exception() is not None:
        lines = traceback.format_exception(None, serving.exception(), None)
        os.write(2, "".join(lines).encode("utf-8", "replace"))
    os._exit(1)


class _Worker:
    """Serves requests one by one."""

    def __init__(
        self,
        link: Link,
        routing: Routing,
        spool: Spool,
        publisher: Publisher,
        shell: Shell,
        *,
        stdin: bool,
    ) -> None:
        self._link = link
        self._routing = routing
        self._spool = spool
        self._publisher = publisher
        self._shell = shell
        self._stdin = stdin
        self._asking = Asking(link, spool, shell.refusal)
        self._pid = os.getpid()
        self._streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        #: Where copies go, if any are wanted.
        self.dock: Dock | None = None
        self._last_cell = 0
        self._prefault = Prefault()
        self._pace = Pace()
        #: While the loop is halted for a copy: done when it goes on.
        self._halted: asyncio.Future[None] | None = None

    async def serve(self) -> None:
        """Serve until the process ends."""
        await self._halt()
        while True:
            event = await self._link.request()
            if isinstance(event, wire.Execute):
                if self.dock is not None:
                    self.dock.settle()
                begun = time.monotonic()
                await self._execute(event)
                if not event.silent:
                    self._last_cell = event.cell
                    seconds = time.monotonic() - begun
                    await self._link.quiet(_TRAVEL_SECONDS)
                    self._pace.ended(seconds, next_waits=self._link.called)
                    if not self._pace.hurried(time.monotonic()):
                        await self._halt()
            elif isinstance(event, wire.Shutdown):
                os._exit(0)
            else:
                self._link.send(_fitting(self._answer(event)))

    async def _halt(self) -> None:
        """Stop the loop for a copy: inside of it, asyncio's own state is of no use to one."""
        if self.dock is not None:
            loop = asyncio.get_running_loop()
            self._halted = loop.create_future()
            loop.stop()
            await self._halted

    def leave_copy(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave a copy if the loop was stopped for it; returns in the copy when it is thawed."""
        halted, self._halted = self._halted, None
        if halted is None or self.dock is None:
            return
        _end_monitor()
        # Only if nobody waits: this takes as long as it saves.
        if not self._link.called:
            self._prefault.look()
        channel = self.dock.leave(self._last_cell)
        while channel is not None:
            self._pid = os.getpid()
            self._link.rejoin(channel)
            self._link.send(wire.Ready(self._shell.kind))
            self._link.listen(loop)
            # The next fatal cell is to be survived, too.
            channel = self.dock.leave(self._last_cell)
        if not self._link.called:
            self._prefault.touch()
        self._pace.copied(time.monotonic())
        halted.set_result(None)

    async def _execute(self, cell: wire.Execute) -> None:
        self._mend_streams()
        self._routing.begin(cell.cell)
        self._asking.allowed = cell.allow_stdin and self._stdin
        reply = wire.ExecuteReply(cell.cell, "error", 1, 0)
        try:
            with self._input_asks(), signals.interruptible():
                reply = await self._shell.run(cell)
        # An interrupt just before or after the user's code, or user code that has broken its
        # shell: the cell fails, and the state is kept.
        except BaseException as error:  # noqa: BLE001
            lines = traceback.format_exception(type(error), error, error.__traceback__)
            self._publisher.error(error, type(error).__name__, lines)
        if os.getpid() != self._pid:
            # The cell forked, and this is the child: it has no more cells to run.
            self._spool.flush()
            os._exit(reply.exit_code & 0xFF)
        self._spool.flush()
        self._link.send(reply)

    def _mend_streams(self) -> None:
        """Put our streams back where an earlier cell's have gone, or would break each cell."""
        for name, stream in self._streams.items():
            try:
                getattr(sys, name).flush()
            # The user's own object may raise anything.
            except BaseException:  # noqa: BLE001, PERF203
                setattr(sys, name, stream)

    @contextmanager
    def _input_asks(self) -> Iterator[None]:
        saved = builtins.input, getpass.getpass
        builtins.input = self._asking.raw_input
        getpass.getpass = self._asking.getpass
        try:
            yield
        finally:
            builtins.input, getpass.getpass = saved

    def _answer(self, event: wire.Event) -> wire.Event:
        """Answer what a client asks while it edits a cell; what fails is answered empty."""
        try:
            with signals.interruptible():
                if isinstance(event, wire.Complete):
                    return self._shell.complete(event)
                if isinstance(event, wire.Inspect):
                    return self._shell.inspect(event)
                if isinstance(event, wire.IsComplete):
                    return self._shell.is_complete(event)
        # Objects of the user's (`__dir__`, `__getattr__`) may raise anything.
        except BaseException as error:  # noqa: BLE001
            return _empty_answer(event, message_of(error))
        raise AssertionError(event)


def _end_monitor() -> None:
    """End the thread with which tqdm watches its bars: it outlives them, and keeps copies off.

    It comes back with the next bar.
    """
    bars = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    monitor = getattr(bars, "monitor", None)
    if bars is not None and monitor is not None and not getattr(bars, "_instances", None):
        # User code may have put anything there.
        with suppress(Exception):
            monitor.exit()
            bars.monitor = None


def _fitting(reply: wire.Event) -> wire.Event:
    """An answer without what no client would show: names may be of any length and number."""
    if isinstance(reply, wire.CompleteReply):
        pairs = zip(reply.matches, reply.types)
        kept = [pair for pair in pairs if len(pair[0]) <= _NAME][:_COMPLETIONS]
        return reply._replace(
            matches=[match for match, _ in kept], types=[kind[:_NAME] for _, kind in kept]
        )
    if isinstance(reply, wire.InspectReply):
        return reply._replace(text=reply.text[:ROOM])
    return reply


def _empty_answer(event: wire.Event, why: str) -> wire.Event:
    if isinstance(event, wire.Complete):
        return wire.CompleteReply(event.request, [], [], event.cursor, event.cursor)
    if isinstance(event, wire.Inspect):
        return wire.InspectReply(event.request, False, why)  # noqa: FBT003 - a wire value
    assert isinstance(event, wire.IsComplete)  # noqa: S101 - nothing else comes here
    return wire.IsCompleteReply(event.request, "unknown", "")
