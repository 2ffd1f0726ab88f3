"""One sandbox from create to kill: pump, deadlines, interrupt, recovery.

The only file with clocks.  Invariants:

- every wait has a deadline, and the clock thread acts on it however busy the pump is;
- nothing of the guest leaves here but what `display` made safe, and only the host's
  and the supervisor's word decides how a cell ended;
- a sandbox that was lost is replaced at the next cell, and somebody is told.

Threads: `boot` creates a sandbox and hands over to `pump`, which reads it to its end;
`clock` sends pings and enforces deadlines.  `_lock` guards all state and all sending.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from sandbox_kernel import bootstrap, wire
from sandbox_kernel.adapters.base import require
from sandbox_kernel.display import Firewall, safe
from sandbox_kernel.errors import (
    RemoteProtocolError,
    SandboxCrashError,
    SandboxDiedError,
    SandboxKernelError,
    SandboxMemoryError,
    SandboxPolicyError,
    SandboxProtocolError,
    SandboxTimeoutError,
    SandboxUnavailableError,
)
from sandbox_kernel.policy import NOFILE
from sandbox_kernel.posture import mismatches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandbox_kernel.adapters.base import Adapter, Sandbox
    from sandbox_kernel.policy import Policy

log = logging.getLogger(__name__)

#: Seconds from the first byte to the guest until its `hello`: 20 kernels on 2 cores need about 15.
HELLO_SECONDS = 60.0
#: Seconds between pings; the guest ends itself after `DEADMAN_SECONDS` without one.
PING_SECONDS = 15.0
DEADMAN_SECONDS = 60.0
#: Seconds that the supervisor has to report a worker it was told to kill.
KILL_SECONDS = 3.0
#: Seconds for a completion, an inspection or the like.
REQUEST_SECONDS = 5.0
#: Bytes that threads of a finished cell may still print, and how many cells are remembered.
LATE_BYTES = 64 * 1024
REMEMBERED_CELLS = 1000
#: Past this much output, dropped or not, a cell is killed.
FLOOD_BYTES = 256 * 1024 * 1024


class State(Enum):
    """What became of the variables."""

    KEPT = "kept"
    RESTORED = "restored"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to start: made anew for each sandbox, so that a mended configuration counts."""

    provider: str
    adapter: Adapter
    policy: Policy
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a cell ended, by the host's and the supervisor's word.

    Attributes:
        error: What was shown as the cell's error, or None if it succeeded.
        pages: Texts for the pager.
        duration_ms: Wall-clock time, waiting for a sandbox not included.
        dropped: Bytes of output over the cap.
    """

    ok: bool
    error: safe.Error | None
    pages: tuple[str, ...]
    provider: str
    sandbox_id: str
    exit_code: int
    timed_out: bool
    duration_ms: int
    dropped: int
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What runs, once it runs."""

    provider: str
    sandbox_id: str
    policy: Policy
    python: str
    shell: str
    protected: bool
    inner_filter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the sandbox uses, by its own cgroup; -1 where that is not known."""

    memory_bytes: int
    memory_limit: int
    cpu_ms: int
    pids: int
    uptime_ms: int


class Deliver(Protocol):
    """Takes each output, from the pump's or the clock's thread."""

    def __call__(self, context: Any, output: safe.Safe) -> None:
        """`context` is what `Session.execute` was given for that cell."""


def _nowhere(context: Any, output: safe.Safe) -> None:
    """Drop the output of a session that nobody listens to."""


class _Stage(Enum):
    WAITING = "waiting for a sandbox"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    DESTROYED = "destroyed"


@dataclass(slots=True, kw_only=True)
class _Run:
    """The running cell."""

    execute: wire.Execute
    future: Future[Outcome]
    stage: _Stage = _Stage.WAITING
    started: float = 0.0
    due: float = inf
    timed_out: bool = False
    paused: float | None = None
    output_bytes: int = 0
    dropped: int = 0
    error: safe.Error | None = None
    pages: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Late:
    """What is remembered of a cell: where its output goes, and how much may still come."""

    context: Any
    budget: int = LATE_BYTES


class Session:
    """A sandbox that is started at once, replaced when it is lost, and ended with `close`.

    All methods may be called from any thread and none blocks on the guest; what takes time
    returns a future, which is always fulfilled within the policy's deadlines.
    """

    def __init__(self, plan: Callable[[], Plan], deliver: Deliver = _nowhere) -> None:
        self._make_plan = plan
        #: Where outputs go; may be set until the first cell.
        self.deliver = deliver
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._wake_at = 0.0
        # Of the current sandbox:
        self._plan: Plan | None = None
        self._sandbox: Sandbox | None = None
        self._connection: wire.Connection | None = None
        self._firewall: Firewall | None = None
        self._booting = False
        self._boot_started = 0.0
        self._about: Future[About | None] = Future()
        self._next_ping = inf
        self._broken: SandboxKernelError | None = None
        # Of the conversation:
        self._cell = 0
        self._run: _Run | None = None
        self._cells: OrderedDict[int, _Late] = OrderedDict()
        self._request = 0
        self._pending: dict[int, tuple[Future[Any], float, str]] = {}
        self._reset_notice = ""

    # --- for the kernel -----------------------------------------------------------------

    def start(self) -> None:
        """Begin to make the sandbox, so that it is there when the first cell comes."""
        with self._lock:
            if not self._threads:
                self._spawn("clock", self._clock)
            self._boot()

    @property
    def about(self) -> Future[About | None]:
        """What runs; None if it could not be started.  Changes with each sandbox."""
        return self._about

    def execute(
        self,
        code: str,
        context: Any,
        *,
        silent: bool = False,
        store_history: bool = True,
        allow_stdin: bool = False,
        execution_count: int = 1,
    ) -> Future[Outcome]:
        """Run a cell; one at a time.  `context` comes back with each of its outputs."""
        with self._lock:
            if self._run is not None:
                raise SandboxProtocolError("a cell is running already")
            self._cell += 1
            self._remember(self._cell, context)
            self._run = _Run(
                execute=wire.Execute(
                    self._cell, code, silent, store_history, allow_stdin, execution_count
                ),
                future=Future(),
            )
            future = self._run.future
            if self._ready:
                self._send_cell()
            else:
                self.start()
            return future

    def interrupt(self) -> None:
        """Stop the running cell; code that does not stop is killed after the grace."""
        with self._lock:
            run = self._run
            if run is None:
                return
            if run.stage is _Stage.WAITING:
                error = self._own_error("KeyboardInterrupt", "interrupted while the sandbox started")
                self._end_cell(error, exit_code=130, state=State.KEPT)
            elif run.stage is _Stage.RUNNING:
                self._interrupt_cell(run)
            elif run.stage is _Stage.INTERRUPTED:
                # A second press means it.
                self._send(wire.Interrupt(run.execute.cell))

    def input_reply(self, cell: int, value: str) -> None:
        """Hand the user's line to the cell that asked; a stale one is dropped."""
        with self._lock:
            run, connection = self._run, self._connection
            if run is None or run.execute.cell != cell or connection is None:
                return
            if connection.phase is not wire.Phase.WAITING_INPUT:
                return
            if run.paused is not None:
                run.due += time.monotonic() - run.paused
                run.paused = None
            self._send(wire.InputReply(cell, value))
            self._nudge(run.due)

    def complete(self, code: str, cursor: int) -> Future[safe.Completion | None]:
        """Completions, or None while a cell runs or no sandbox is up."""
        return self._ask(lambda number: wire.Complete(number, code, cursor), code)

    def inspect(self, code: str, cursor: int, detail: int) -> Future[safe.Inspection | None]:
        """Documentation, or None while a cell runs or no sandbox is up."""
        return self._ask(lambda number: wire.Inspect(number, code, cursor, detail), code)

    def is_complete(self, code: str) -> Future[safe.Completeness | None]:
        """Whether `code` is whole, or None while a cell runs or no sandbox is up."""
        return self._ask(lambda number: wire.IsComplete(number, code), code)

    def usage(self) -> Future[Usage | None]:
        """What the sandbox uses; answered while a cell runs, too."""
        return self._ask(wire.StatsRequest, "", busy=True)

    def close(self) -> None:
        """End the sandbox and all threads; returns within about 10 seconds."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sandbox, self._broken = self._sandbox, SandboxDiedError("the kernel was shut down")
            if sandbox is not None and self._connection is not None:
                self._send(wire.Shutdown())
            self._changed.notify_all()
        if sandbox is not None:
            sandbox.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=10)

    # --- boot ---------------------------------------------------------------------------

    @property
    def _ready(self) -> bool:
        return self._connection is not None and self._connection.phase is not wire.Phase.STARTING

    def _spawn(self, name: str, target: Callable[[], None]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=target, name=f"sandbox-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _boot(self) -> None:
        if self._booting or self._sandbox is not None or self._closed:
            return
        self._booting = True
        self._boot_started = inf
        self._broken = None
        if self._about.done():
            self._about = Future()
        self._spawn("boot", self._create)

    def _create(self) -> None:
        """Thread `boot`: make a sandbox and send it the guest, then become its pump."""
        try:
            plan = self._make_plan()
            require(plan.adapter, plan.policy)
            sandbox = plan.adapter.create(
                plan.policy, bootstrap.ARGV, plan.labels, self._progress
            )
        except SandboxKernelError as error:
            self._failed(error)
            return
        except Exception as error:  # a bug in an adapter must not leave the cell waiting
            log.exception("adapter failed")
            self._failed(SandboxUnavailableError(f"the adapter failed: {type(error).__name__}"))
            return
        with self._lock:
            self._plan, self._sandbox = plan, sandbox
            self._connection = wire.Connection(
                wire.Role.HOST, wire.Role.GUEST, window=_WINDOW_BYTES
            )
            self._firewall = Firewall(plan.policy.display)
            self._boot_started = time.monotonic()
            closed = self._closed
            self._nudge(self._boot_started + HELLO_SECONDS)
        if closed:
            sandbox.kill()
            return
        try:
            sandbox.send(bootstrap.payload(_settings(plan.policy)))
        except SandboxDiedError:
            log.debug("the guest ended before it was sent")
        self._pump(sandbox)

    def _progress(self, text: str) -> None:
        with self._lock:
            if self._run is not None:
                self._notice(self._run.execute.cell, text)

    def _failed(self, error: SandboxKernelError) -> None:
        """No sandbox could be started: tell the waiting cell; the next one tries again."""
        with self._lock:
            self._booting = False
            self._plan = self._sandbox = self._connection = None
            if not self._about.done():
                self._about.set_result(None)
            if self._run is not None:
                shown = self._own_error(type(error).__name__, str(error))
                self._end_cell(shown, exit_code=1, state=State.LOST)

    def _welcome(self, hello: wire.Hello) -> None:
        """The guest is up: compare its posture with the policy, then let cells run."""
        plan, sandbox = self._plan, self._sandbox
        assert plan is not None
        assert sandbox is not None
        wrong = mismatches(plan.policy, hello, wire.VERSION)
        if wrong:
            raise SandboxUnavailableError(
                f"the sandbox is not what the policy promised: {'; '.join(wrong)}",
                hint="the engine discards a limit, or the image or runtime weakens the box",
            )
        self._booting = False
        self._next_ping = time.monotonic() + PING_SECONDS
        self._about.set_result(
            About(
                provider=plan.provider,
                sandbox_id=sandbox.sandbox_id,
                policy=plan.policy,
                python=hello.python,
                shell=hello.shell,
                protected=hello.protected,
                inner_filter=hello.seccomp_inner,
            )
        )
        if self._run is not None:
            self._send_cell()

    # --- pump ---------------------------------------------------------------------------

    def _pump(self, sandbox: Sandbox) -> None:
        """Thread `boot`, from here on `pump`: read the sandbox to its end."""
        error: SandboxKernelError | None = None
        try:
            while data := sandbox.recv():
                self._receive(data)
        except RemoteProtocolError as broken:
            error = SandboxProtocolError(f"{broken.message}; the sandbox was killed")
        except SandboxUnavailableError as unavailable:
            error = unavailable
        except Exception as bug:  # a bug of ours must not leave the cell waiting
            log.exception("the pump failed")
            error = SandboxDiedError(f"the kernel failed to read the sandbox: {type(bug).__name__}")
        # Asked before the sandbox is removed, and outside of the lock: it may take 2 seconds.
        why = "" if error is not None else sandbox.why()
        sandbox.kill()
        self._lost(sandbox, error, why)

    def _receive(self, data: bytes) -> None:
        connection = self._connection
        assert connection is not None
        with self._lock:
            connection.receive_data(data)
        while True:
            with self._lock:
                event = connection.next_event()
                if event is None:
                    ack = connection.ack_due
                    if ack is not None:
                        self._send(ack)
                    return
                if not isinstance(event, _OUTPUT):
                    self._on_event(event)
                    continue
                wanted = self._counted(event)
            # Outside of the lock, which an interrupt or a completion may be waiting for.
            if wanted:
                assert self._firewall is not None
                for output in self._firewall.sanitize(event):
                    self._emit(output)

    def _on_event(self, event: wire.Event) -> None:
        match event:
            case wire.Hello():
                self._welcome(event)
            case wire.ExecuteReply():
                self._on_reply(event)
            case wire.Verdict():
                self._on_verdict(event)
            case wire.CompleteReply() | wire.InspectReply() | wire.IsCompleteReply():
                self._on_answer(event)
            case wire.Stats():
                usage = Usage(**{name: getattr(event, name) for name in _USAGE})
                self._answer(event.request, usage)
            case _:
                log.debug("nothing to do for %s", type(event).__name__)

    def _counted(self, event: Any) -> bool:
        """Count an output against its cell's cap, and say whether it is still within it."""
        cell, size = event.cell, _size(event)
        run = self._run
        if run is not None and run.execute.cell == cell:
            return self._within_cap(run, size)
        late = self._cells.get(cell)
        if late is None or late.budget < size:
            return False
        late.budget -= size
        return True

    def _within_cap(self, run: _Run, size: int) -> bool:
        assert self._plan is not None
        run.output_bytes += size
        if run.output_bytes <= self._plan.policy.output_bytes:
            return True
        run.dropped += size
        if run.output_bytes > FLOOD_BYTES and run.stage is not _Stage.KILLED:
            self._kill_cell(run)
        return False

    def _emit(self, output: Any) -> None:
        with self._lock:
            run = self._run
            mine = run is not None and run.execute.cell == output.cell
            match output:
                case safe.Error() if run is not None and mine:
                    run.error = output
                    if run.timed_out:
                        # Shown once, as the timeout that it is, when the cell has ended.
                        return
                case safe.Page() if run is not None and mine:
                    run.pages.append(output.text)
                    return
                case safe.Prompt() if run is not None and mine:
                    # A person may take longer than the cell's deadline.
                    run.paused = time.monotonic()
        self._hand_over(output)

    def _hand_over(self, output: Any) -> None:
        late = self._cells.get(output.cell)
        if late is not None:
            self.deliver(late.context, output)

    # --- how a cell ends ----------------------------------------------------------------

    def _send_cell(self) -> None:
        run, plan, firewall = self._run, self._plan, self._firewall
        assert run is not None
        assert plan is not None
        assert firewall is not None
        run.stage = _Stage.RUNNING
        run.started = time.monotonic()
        run.due = run.started + plan.policy.timeout_seconds
        firewall.begin_cell(run.execute.cell)
        if self._reset_notice:
            self._notice(run.execute.cell, self._reset_notice)
            self._reset_notice = ""
        allowed = run.execute.allow_stdin and plan.policy.stdin
        self._send(run.execute._replace(allow_stdin=allowed))
        self._nudge(run.due)

    def _on_reply(self, reply: wire.ExecuteReply) -> None:
        run = self._run
        if run is None or run.execute.cell != reply.cell:
            return
        run.dropped += reply.dropped
        error = None
        if run.timed_out:
            error = self._timeout_error(run, "was interrupted; its variables are kept")
        elif reply.status == "error":
            error = run.error or self._own_error("Error", "the cell failed")
        self._end_cell(error, exit_code=reply.exit_code, state=State.KEPT)

    def _on_verdict(self, verdict: wire.Verdict) -> None:
        state = State.RESTORED if verdict.state == "restored" else State.LOST
        run = self._run
        if run is None or run.execute.cell != verdict.cell:
            self._reset_notice = (
                f"between two cells the worker ended ({verdict.detail}): {_TOLD[state]}"
            )
            return
        run.dropped += verdict.dropped
        name, text = self._explain(run, verdict)
        error = (
            self._timeout_error(run, f"had to be killed; {_TOLD[state]}")
            if name == SandboxTimeoutError.__name__
            else self._own_error(name, f"{text}; {_TOLD[state]}")
        )
        self._end_cell(error, exit_code=verdict.exit_code, state=state)

    def _explain(self, run: _Run, verdict: wire.Verdict) -> tuple[str, str]:
        assert self._plan is not None
        policy = self._plan.policy
        match verdict.kind:
            case "oom":
                limit = f"{policy.memory_bytes / (1024 * 1024):.0f} MiB"
                return SandboxMemoryError.__name__, f"killed: out of memory (limit {limit})"
            case "killed" if run.timed_out:
                return SandboxTimeoutError.__name__, ""
            case "killed" if run.output_bytes + run.dropped > FLOOD_BYTES:
                return SandboxCrashError.__name__, "killed: it printed without end"
            case "killed":
                return "KeyboardInterrupt", "it did not stop when interrupted and was killed"
            case _:
                return SandboxCrashError.__name__, f"the worker ended: {verdict.detail}"

    def _timeout_error(self, run: _Run, what: str) -> safe.Error:
        assert self._plan is not None
        limit = self._plan.policy.timeout_seconds
        error = self._own_error(
            SandboxTimeoutError.__name__, f"the cell ran longer than {limit:g} s and {what}"
        )
        self._hand_over(error)
        run.error = error
        return error

    def _end_cell(self, error: safe.Error | None, *, exit_code: int, state: State) -> None:
        run = self._run
        if run is None:
            return
        self._run = None
        cell = run.execute.cell
        if run.dropped and self._plan is not None:
            cap = self._plan.policy.output_bytes
            self._notice(
                cell, f"output truncated: {run.dropped} bytes more than `output_bytes = {cap}`"
            )
        if error is not None and error is not run.error:
            self._hand_over(error)
        plan, sandbox = self._plan, self._sandbox
        elapsed = time.monotonic() - run.started if run.started else 0.0
        outcome = Outcome(
            ok=error is None,
            error=error,
            pages=tuple(run.pages),
            provider=plan.provider if plan else "",
            sandbox_id=sandbox.sandbox_id if sandbox else "",
            exit_code=exit_code,
            timed_out=run.timed_out,
            duration_ms=round(elapsed * 1000),
            dropped=run.dropped,
            state=state,
        )
        if not run.future.done():
            run.future.set_result(outcome)

    def _lost(self, sandbox: Sandbox, error: SandboxKernelError | None, why: str) -> None:
        """The sandbox is gone; whoever waits is told, the next cell gets a fresh one."""
        with self._lock:
            if self._sandbox is not sandbox:
                return
            connection = self._connection
            was_up = not self._booting
            if error is None:
                error = self._broken or _death(why, connection.skipped if connection else b"")
            if not was_up:
                if not isinstance(error, SandboxUnavailableError | SandboxPolicyError):
                    error = SandboxUnavailableError(
                        f"the sandbox ended before it was ready: {error.message}", hint=error.hint
                    )
                self._failed(error)
                return
            run = self._run
            if run is not None:
                self._end_run_with(run, error)
            else:
                self._reset_notice = f"{error.message}: this is a fresh one, variables are gone"
            self._sandbox = self._connection = None
            self._about = Future()
            self._next_ping = inf
            for future, _, _ in self._pending.values():
                future.set_result(None)
            self._pending.clear()

    def _end_run_with(self, run: _Run, error: SandboxKernelError) -> None:
        if run.stage is _Stage.DESTROYED and run.timed_out:
            shown = self._timeout_error(run, "took the sandbox with it; its variables are lost")
        else:
            shown = self._own_error(
                type(error).__name__, f"{error}; its variables are lost, the next cell starts fresh"
            )
        self._end_cell(shown, exit_code=1, state=State.LOST)

    def _own_error(self, ename: str, evalue: str) -> safe.Error:
        cell = self._run.execute.cell if self._run is not None else self._cell
        firewall = self._firewall
        if firewall is None:
            firewall = Firewall()
        return firewall.own_error(cell, ename, evalue)

    def _notice(self, cell: int, text: str) -> None:
        firewall = self._firewall
        if firewall is None:
            firewall = Firewall()
        self._hand_over(firewall.notice(cell, text))

    # --- requests between cells -----------------------------------------------------------

    def _ask(
        self, make: Callable[[int], wire.Event], code: str, *, busy: bool = False
    ) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if not self._ready or (self._run is not None and not busy):
                future.set_result(None)
                return future
            self._request += 1
            due = time.monotonic() + REQUEST_SECONDS
            self._pending[self._request] = (future, due, code)
            self._send(make(self._request))
            self._nudge(due)
        return future

    def _on_answer(self, event: Any) -> None:
        assert self._firewall is not None
        pending = self._pending.get(event.request)
        if pending is None:
            return
        cleaned = self._firewall.sanitize(event, code=pending[2])
        self._answer(event.request, cleaned[0] if cleaned else None)

    def _answer(self, request: int, value: object) -> None:
        pending = self._pending.pop(request, None)
        if pending is not None:
            pending[0].set_result(value)

    # --- sending --------------------------------------------------------------------------

    def _send(self, event: wire.Event) -> None:
        """Send under the lock; if the stream is gone, the pump finds out and says so."""
        if self._connection is None or self._sandbox is None:
            return
        try:
            self._sandbox.send(self._connection.send(event))
        except SandboxDiedError as error:
            log.debug("send failed: %s", error)

    def _remember(self, cell: int, context: Any) -> None:
        self._cells[cell] = _Late(context)
        if len(self._cells) > REMEMBERED_CELLS:
            self._cells.popitem(last=False)

    # --- the clock ------------------------------------------------------------------------

    def _nudge(self, due: float) -> None:
        """Wake the clock if it would sleep past `due`."""
        if due < self._wake_at:
            self._changed.notify_all()

    def _clock(self) -> None:
        """Thread `clock`: do what is due, sleep until the next thing is."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                self._wake_at = self._act(now)
                self._changed.wait(min(max(self._wake_at - now, 0.001), PING_SECONDS))

    def _act(self, now: float) -> float:
        if now >= self._next_ping:
            self._next_ping = now + PING_SECONDS
            self._send(wire.Ping(int(now)))
        if self._sandbox is not None and not self._ready:
            if now >= self._boot_started + HELLO_SECONDS:
                self._broken = SandboxUnavailableError(
                    f"the guest did not answer within {HELLO_SECONDS:g} s",
                    hint="the machine is overloaded, or the image's `python3` does not work",
                )
                self._destroy()
        run = self._run
        if run is not None and run.paused is None and now >= run.due:
            self._escalate(run)
        for number, (_, due, _) in list(self._pending.items()):
            if now >= due:
                self._answer(number, None)
        dues = [self._next_ping, *(due for _, due, _ in self._pending.values())]
        if self._run is not None and self._run.paused is None:
            dues.append(self._run.due)
        if self._sandbox is not None and not self._ready:
            dues.append(self._boot_started + HELLO_SECONDS)
        return min(dues)

    def _escalate(self, run: _Run) -> None:
        """A deadline passed: interrupt, then kill the worker, then the sandbox."""
        match run.stage:
            case _Stage.RUNNING:
                run.timed_out = True
                self._interrupt_cell(run)
            case _Stage.INTERRUPTED:
                self._kill_cell(run)
            case _Stage.KILLED:
                run.stage = _Stage.DESTROYED
                run.due = inf
                self._destroy()
            case _:
                run.due = inf

    def _interrupt_cell(self, run: _Run) -> None:
        assert self._plan is not None
        run.stage, run.paused = _Stage.INTERRUPTED, None
        run.due = time.monotonic() + self._plan.policy.grace_seconds
        self._send(wire.Interrupt(run.execute.cell))
        self._nudge(run.due)

    def _kill_cell(self, run: _Run) -> None:
        run.stage, run.paused = _Stage.KILLED, None
        run.due = time.monotonic() + KILL_SECONDS
        self._send(wire.KillWorker(run.execute.cell))
        self._nudge(run.due)

    def _destroy(self) -> None:
        """Kill the sandbox from a thread of its own: the provider may take its time."""
        if self._sandbox is not None:
            self._boot_started = inf
            self._spawn("kill", self._sandbox.kill)


#: On a local stream the window only bounds memory; see `docs/reference/protocol.md`.
_WINDOW_BYTES = 4 * 1024 * 1024

#: What a cell shows; counted, cleaned and handed on in the order in which it came.
_OUTPUT = (
    wire.Stream,
    wire.DisplayData,
    wire.UpdateDisplayData,
    wire.ExecuteResult,
    wire.ClearOutput,
    wire.Error,
    wire.Page,
    wire.InputRequest,
)

_USAGE = ("memory_bytes", "memory_limit", "cpu_ms", "pids", "uptime_ms")

_TOLD = {
    State.KEPT: "its variables are kept",
    State.RESTORED: "variables are as they were before this cell",
    State.LOST: "all variables are lost",
}


def _settings(policy: Policy) -> dict[str, int | float | bool | str]:
    """What the guest is told at boot."""
    return {
        "memory_bytes": policy.memory_bytes,
        "output_bytes": policy.output_bytes,
        "window_bytes": _WINDOW_BYTES,
        "replay": False,
        "deadman_seconds": DEADMAN_SECONDS,
        "lifetime_seconds": policy.lifetime_seconds,
        "idle_seconds": policy.idle_seconds,
        "network": policy.network,
        "stdin": policy.stdin,
        "image": policy.image,
        "checkpoint": policy.checkpoint,
        "checkpoints": policy.checkpoints,
        "nofile": NOFILE,
    }



def _size(event: Any) -> int:
    """Characters that an output event carries."""
    total = 0
    for value in event:
        if type(value) is str:
            total += len(value)
        elif type(value) is list:
            total += sum(map(len, value))
    return total


def _death(why: str, skipped: bytes) -> SandboxKernelError:
    said = f", it said {skipped[-300:]!r}" if skipped.strip() else ""
    return SandboxDiedError(f"the sandbox ended ({why or 'its stream was closed'}{said})")
