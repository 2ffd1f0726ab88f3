"""One sandbox from create to kill: pump, deadlines, interrupt, recovery.

The only file with clocks.  Invariants:

- every wait has a deadline, and the clock's thread acts on it however busy the pump is;
- nothing of the guest leaves here but what `display` made safe, and only the host's
  and the supervisor's word decides how a cell ended;
- a sandbox that was lost is replaced at the next cell, and somebody is told.

Threads: `boot` creates a sandbox and becomes its `pump`, which reads it to its end;
`clock` sends pings and enforces deadlines.  `_lock` guards all state and all sending;
outputs are cleaned outside of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from sandbox_kernel import verdicts, wire
from sandbox_kernel.about import About, Usage
from sandbox_kernel.box import Box
from sandbox_kernel.cell import Outcome, Remembered, Run, Stage, State
from sandbox_kernel.display import Firewall, safe
from sandbox_kernel.errors import (
    RemoteProtocolError,
    SandboxDiedError,
    SandboxKernelError,
    SandboxProtocolError,
    SandboxUnavailableError,
)
from sandbox_kernel.pending import Requests
from sandbox_kernel.policy import Display

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox_kernel.opening import Opened, Progress


log = logging.getLogger(__name__)

#: Seconds from the first byte to the guest until its `hello`: 20 kernels on 2 cores need about 15.
HELLO_SECONDS = 60.0
#: Seconds between pings: a quarter of the guest's patience.
PING_SECONDS = 15.0
#: Seconds that the supervisor has to report a worker it was told to kill.
#: A copy that does not answer is passed over after 2 seconds, and then another one.
KILL_SECONDS = 6.0
#: Seconds for a completion, an inspection or the like.
REQUEST_SECONDS = 5.0
#: Seconds for going back to a copy.
REWIND_SECONDS = 10.0
#: Characters of one cell; the rest of an event is for what else it carries.
MAX_CODE = wire.MAX_EVENT - 1024
#: What each output counts besides its text, so that a flood of empty ones ends too.
MESSAGE_BYTES = 64
#: What Jupyter's clients send for Ctrl-D, and the guest raises as EOFError.
END_OF_INPUT = "\x04"
#: Cells whose late output still finds its place.
REMEMBERED_CELLS = 1000


class Deliver(Protocol):
    """Takes each output, from the pump's or the clock's thread."""

    def __call__(self, context: Any, output: safe.Safe, /) -> None:
        """`context` is what `Session.execute` was given for that cell."""


def _nowhere(context: Any, output: safe.Safe) -> None:
    """Drop the output of a session that nobody listens to."""


class Session:
    """A sandbox that is started at once, replaced when it is lost, and ended with `close`.

    All methods may be called from any thread and none blocks on the guest; what takes time
    returns a future, which is always fulfilled within the policy's deadlines.
    """

    def __init__(
        self, open_sandbox: Callable[[Progress], Opened], deliver: Deliver = _nowhere
    ) -> None:
        # Called anew for each sandbox, so that a mended configuration counts.
        self._open = open_sandbox
        #: Where outputs go; may be set until the first cell.
        self.deliver = deliver
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._wake_at = 0.0
        self._booting = False
        self._box: Box | None = None
        self._hello_due = self._next_ping = inf
        self._about: Future[About | None] = Future()
        self._cell = 0
        self._run: Run | None = None
        self._cells: OrderedDict[int, Remembered] = OrderedDict()
        self._requests = Requests()
        self._reset_notice = ""

    # --- for the kernel -----------------------------------------------------------------

    def start(self) -> None:
        """Begin to make the sandbox, so that it is there when the first cell comes."""
        with self._lock:
            if self._booting or self._box is not None or self._closed:
                return
            if not self._threads:
                self._spawn("clock", self._clock)
            self._booting = True
            if self._about.done():
                self._about = Future()
            self._spawn("boot", self._boot)

    @property
    def about(self) -> Future[About | None]:
        """What runs; None if it could not be started.  A new one for each sandbox."""
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
        limit_seconds: float = inf,
    ) -> Future[Outcome]:
        """Run a cell; one at a time.  `context` comes back with each of its outputs.

        `limit_seconds` tightens the policy's timeout for this cell.
        """
        with self._lock:
            cell = self._mint(context)
            execute = wire.Execute(cell, code, silent, store_history, allow_stdin, execution_count)
            run = self._run = Run(execute=execute, future=Future(), limit_seconds=limit_seconds)
            if self._closed:
                error = (SandboxDiedError.__name__, "the kernel is shutting down")
                self._end_cell(run, error, exit_code=1, state=State.LOST)
            elif (reason := _unsendable(code)) is not None:
                self._end_cell(run, (ValueError.__name__, reason), exit_code=1)
            elif self._box is not None and self._box.ready:
                self._send_cell(self._box, run)
            else:
                self.start()
            return run.future

    def _mint(self, context: Any) -> int:
        if self._run is not None:
            raise SandboxProtocolError("a cell is running already")
        self._cell += 1
        self._cells[self._cell] = Remembered(context)
        if len(self._cells) > REMEMBERED_CELLS:
            self._cells.popitem(last=False)
        return self._cell

    def _begin_own(self, context: Any) -> Run:
        """A cell that the host answers itself."""
        execute = wire.Execute(self._mint(context), "", True, False, False, 0)  # noqa: FBT003
        self._run = Run(execute=execute, future=Future())
        return self._run

    def show(self, context: Any, text: str, html: str) -> Future[Outcome]:
        """Answer a cell with something of the host's own, as text and as clean HTML."""
        with self._lock:
            run = self._begin_own(context)
            self._hand_over(self._firewall.own_bundle(run.cell, text, html))
            self._end_cell(run, None, exit_code=0)
            return run.future

    def refuse(self, context: Any, error: SandboxKernelError) -> Future[Outcome]:
        """Answer a cell with an error of the host's own."""
        with self._lock:
            run = self._begin_own(context)
            self._end_cell(run, (type(error).__name__, str(error)), exit_code=1)
            return run.future

    @property
    def targets(self) -> tuple[tuple[int, int], ...]:
        """How many cells one can go back, each with the first `In [...]` that this undoes."""
        with self._lock:
            return self._box.lineage.targets if self._box is not None else ()

    def rewind(self, context: Any, back: int) -> Future[Outcome]:
        """Answer a cell by going back that many cells."""
        with self._lock:
            run, box = self._begin_own(context), self._box
            target = box.lineage.target(back) if box is not None and box.ready else None
            if box is None or target is None:
                self._end_cell(run, verdicts.no_way_back(back, self.targets), exit_code=1)
                return run.future
            answer: Future[wire.Rewound | None] = Future()
            answer.add_done_callback(lambda done: self._rewound(box, run, done.result()))
            due = time.monotonic() + REWIND_SECONDS
            box.send(wire.Rewind(self._requests.add(answer, due, ""), target))
            self._nudge(due)
            return run.future

    def _rewound(self, box: Box, run: Run, answer: wire.Rewound | None) -> None:
        with self._lock:
            if answer is not None and answer.state != "kept":
                told = self._became(box, answer)
                if run is self._run:
                    self._notice(run.cell, told)
                    state = verdicts.state_of(answer)
                    self._end_cell(run, None, exit_code=0, state=state)
            elif run is self._run:
                self._end_cell(run, verdicts.no_way_back(0, box.lineage.targets), exit_code=1)

    def interrupt(self) -> None:
        """Stop the running cell; code that does not stop is killed after the grace."""
        with self._lock:
            run, box = self._run, self._box
            if run is None:
                return
            if run.stage is Stage.WAITING or box is None:
                text = "interrupted while the sandbox was started"
                self._end_cell(run, (KeyboardInterrupt.__name__, text), exit_code=130)
            elif run.stage is Stage.RUNNING:
                self._interrupt_cell(box, run)
            else:
                # A second press: code that asked "really?" is told so.
                box.send(wire.Interrupt(run.cell))

    def input_reply(self, cell: int, value: str) -> None:
        """Hand the user's line to the cell that asked; a stale one is dropped."""
        with self._lock:
            run, box = self._run, self._box
            if run is None or run.cell != cell or box is None:
                return
            if not box.waits_for_input:
                return
            if run.paused is not None:
                run.due += time.monotonic() - run.paused
                run.paused = None
            box.send(wire.InputReply(cell, value))
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
            box = self._box
            if box is not None:
                box.broken = SandboxDiedError("the kernel was shut down")
                if box.ready:
                    box.send(wire.Shutdown())
            self._changed.notify_all()
        if box is not None:
            box.sandbox.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=10)

    # --- boot ---------------------------------------------------------------------------

    def _spawn(self, name: str, target: Callable[[], None]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=target, name=f"sandbox-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _boot(self) -> None:
        """Thread `boot`: open a sandbox, and become its pump."""
        try:
            box = Box(self._open(self._progress))
        except SandboxKernelError as error:
            self._failed(error)
            return
        except Exception as error:  # a bug must not leave the cell waiting
            log.exception("no sandbox could be made")
            self._failed(SandboxUnavailableError(f"the adapter failed: {type(error).__name__}"))
            return
        with self._lock:
            self._box, closed = box, self._closed
            self._hello_due = time.monotonic() + HELLO_SECONDS
            self._nudge(self._hello_due)
        if closed:
            box.sandbox.kill()
            return
        self._pump(box)

    def _progress(self, text: str) -> None:
        with self._lock:
            if self._run is not None:
                self._notice(self._run.cell, text)

    def _failed(self, error: SandboxKernelError) -> None:
        """No sandbox could be started: tell the waiting cell; the next one tries again."""
        with self._lock:
            self._booting, self._hello_due = False, inf
            self._box = None
            if not self._about.done():
                self._about.set_result(None)
            if self._run is not None:
                self._end_cell(
                    self._run, (type(error).__name__, str(error)), exit_code=1, state=State.LOST
                )

    def _welcome(self, box: Box, hello: wire.Hello) -> None:
        """The guest is up, and what the policy promised: let cells run."""
        about = box.welcome(hello)
        self._booting, self._hello_due = False, inf
        self._next_ping = time.monotonic() + PING_SECONDS
        self._nudge(self._next_ping)
        self._about.set_result(about)
        if self._run is not None:
            self._send_cell(box, self._run)

    # --- pump ---------------------------------------------------------------------------

    def _pump(self, box: Box) -> None:
        """Thread `boot`, from here on `pump`: read the sandbox to its end."""
        error: SandboxKernelError | None = None
        try:
            while data := box.sandbox.recv():
                self._receive(box, data)
        except RemoteProtocolError as broken:
            error = SandboxProtocolError(f"{broken.message}; the sandbox was killed")
        except SandboxUnavailableError as unavailable:
            error = unavailable
        except Exception as bug:  # a bug of ours must not leave the cell waiting
            log.exception("the pump failed")
            error = SandboxDiedError(f"the kernel failed to read the sandbox: {type(bug).__name__}")
        # Asked before the sandbox is removed, and outside of the lock: it may take 2 seconds.
        if error is None and box.broken is None:
            error = verdicts.death(box.sandbox.why(), box.connection.skipped)
        box.sandbox.kill()
        self._lost(box, error or box.broken or SandboxDiedError("the sandbox ended"))

    def _receive(self, box: Box, data: bytes) -> None:
        box.connection.receive_data(data)
        while True:
            with self._lock:
                event = box.connection.next_event()
                if event is None:
                    if (ack := box.connection.ack_due) is not None:
                        box.send(ack)
                    return
                if not isinstance(event, _OUTPUT):
                    self._on_event(box, event)
                    continue
                wanted = self._counted(box, event)
                asks = isinstance(event, wire.InputRequest)
                refused = asks and not self._may_ask(box)
            if wanted:
                outputs = () if refused else box.firewall.sanitize(event)
                for output in outputs:
                    self._emit(output)
                if asks and not _asks(outputs):
                    # The code must not wait for ever: it gets an EOFError.
                    self.input_reply(event.cell, END_OF_INPUT)

    def _may_ask(self, box: Box) -> bool:
        """Whether client and policy let the cell ask; the guest was told, and may not heed it."""
        return self._run is not None and self._run.execute.allow_stdin and box.policy.stdin

    def _on_event(self, box: Box, event: wire.Event) -> None:
        run = self._run
        match event:
            case wire.Hello():
                self._welcome(box, event)
            case wire.ExecuteReply() if run is not None and run.cell == event.cell:
                self._on_reply(box, run, event)
            case wire.Verdict() if run is not None and run.cell == event.cell:
                self._on_verdict(box, run, event)
            case wire.Verdict():
                self._reset_notice = verdicts.between_cells(event, self._became(box, event))
            case wire.Checkpoints():
                box.lineage.told(event)
            case wire.Rewound():
                self._requests.answer(event.request, event)
            case wire.CompleteReply() | wire.InspectReply() | wire.IsCompleteReply():
                if (code := self._requests.code(event.request)) is not None:
                    cleaned = box.firewall.sanitize(event, code=code)
                    self._requests.answer(event.request, cleaned[0] if cleaned else None)
            case wire.Stats():
                fields = event._asdict()
                self._requests.answer(fields.pop("request"), Usage(**fields))
            case _:
                log.debug("nothing to do for %s", type(event).__name__)

    def _counted(self, box: Box, event: Any) -> bool:
        """Count an output against its cell's cap, and say whether it is still within it."""
        run, size = self._run, _size(event)
        if run is None or run.cell != event.cell:
            remembered = self._cells.get(event.cell)
            if remembered is None or remembered.late_bytes < size:
                return False
            remembered.late_bytes -= size
            return True
        cap = _authority(box.policy.output_bytes)
        if run.count(size, cap, error=isinstance(event, wire.Error)):
            return True
        if run.flooded and run.stage not in (Stage.KILLED, Stage.DESTROYED):
            self._kill_cell(box, run)
        return False

    def _emit(self, output: Any) -> None:
        with self._lock:
            run = self._run
            if run is not None and run.cell == output.cell:
                match output:
                    case safe.Error():
                        run.error = output
                        if run.timed_out:
                            # Shown once, as the timeout that it is, when the cell has ended.
                            return
                    case safe.Page():
                        run.pages.append(output.text)
                        return
                    case safe.Prompt() if run.stage is Stage.RUNNING:
                        # A person may take longer than the deadline; not than the grace after it.
                        run.paused = time.monotonic()
        self._hand_over(output)

    def _hand_over(self, output: Any) -> None:
        remembered = self._cells.get(output.cell)
        if remembered is not None:
            self.deliver(remembered.context, output)

    def _notice(self, cell: int, text: str) -> None:
        self._hand_over(self._firewall.notice(cell, text))

    @property
    def _firewall(self) -> Firewall:
        return self._box.firewall if self._box is not None else Firewall(Display.STRICT)

    # --- how a cell ends ----------------------------------------------------------------

    def _send_cell(self, box: Box, run: Run) -> None:
        policy = box.policy
        run.stage = Stage.RUNNING
        run.started = time.monotonic()
        if inf > run.limit_seconds > policy.timeout_seconds:
            self._end_cell(run, verdicts.no_looser(run, policy), exit_code=1)
            return
        run.limit_seconds = min(run.limit_seconds, policy.timeout_seconds)
        run.due = run.started + run.limit_seconds
        box.firewall.begin_cell(run.cell)
        if self._reset_notice:
            self._notice(run.cell, self._reset_notice)
            self._reset_notice = ""
        if not run.execute.silent and (note := box.lineage.note):
            self._notice(run.cell, note)
        box.send(run.execute._replace(allow_stdin=self._may_ask(box)))
        self._nudge(run.due)

    def _on_reply(self, box: Box, run: Run, reply: wire.ExecuteReply) -> None:
        self._emit_rest(box, reply)
        run.dropped += reply.dropped
        error: safe.Error | tuple[str, str] | None = None
        if run.timed_out:
            error = verdicts.timeout(run, f"was interrupted; {verdicts.TOLD[State.KEPT]}")
        elif reply.status == "error":
            # IPython only prints mistakes in a magic's use and groups of errors: so do we.
            error = run.error or box.firewall.own_error(run.cell, "Exception", "see its output")
        net = box.lineage.net
        if not run.execute.silent:
            box.lineage.ran(run.cell, run.execute.execution_count)
        self._end_cell(run, error, exit_code=reply.exit_code, checkpoint=net)

    def _on_verdict(self, box: Box, run: Run, verdict: wire.Verdict) -> None:
        self._emit_rest(box, verdict)
        run.dropped += verdict.dropped
        told, state = self._became(box, verdict), verdicts.state_of(verdict)
        error = verdicts.killed(verdict, box.policy, run, told)
        self._end_cell(
            run,
            error,
            exit_code=verdict.exit_code,
            state=state,
            checkpoint=state is State.RESTORED,
        )

    def _became(self, box: Box, told: wire.Verdict | wire.Rewound) -> str:
        """Note what became of the variables, and say it."""
        state = verdicts.state_of(told)
        if state is State.RESTORED:
            return box.lineage.back_at(told.after)
        box.lineage.fresh()
        return verdicts.TOLD[state]

    def _emit_rest(self, box: Box, end: wire.ExecuteReply | wire.Verdict) -> None:
        """Show what the firewall held back until it knew that nothing follows."""
        for output in box.firewall.sanitize(end):
            self._emit(output)

    def _end_cell(
        self,
        run: Run,
        error: safe.Error | tuple[str, str] | None,
        *,
        exit_code: int,
        state: State = State.KEPT,
        checkpoint: bool = False,
    ) -> None:
        """Tell what is to be told, and fulfil the future.

        `error` is the guest's, which was shown already, or the name and text of ours.
        """
        self._run = None
        box = self._box
        if run.dropped and box is not None:
            cap = box.policy.output_bytes
            self._notice(
                run.cell, f"output truncated: {run.dropped} bytes over `output_bytes = {cap}`"
            )
        if isinstance(error, tuple):
            error = self._firewall.own_error(run.cell, *error)
            self._hand_over(error)
        elapsed = time.monotonic() - run.started if run.started else 0.0
        outcome = Outcome(
            error=error,
            pages=tuple(run.pages),
            provider=box.plan.provider if box is not None else "",
            sandbox_id=box.sandbox.sandbox_id if box is not None else "",
            exit_code=exit_code,
            timed_out=run.timed_out,
            duration_ms=round(elapsed * 1000),
            dropped=run.dropped,
            state=state,
            checkpoint=checkpoint,
        )
        if not run.future.done():
            run.future.set_result(outcome)

    def _lost(self, box: Box, error: SandboxKernelError) -> None:
        """The sandbox is gone; whoever waits is told, the next cell gets a fresh one."""
        with self._lock:
            if self._box is not box:
                return
            if self._booting:
                self._failed(verdicts.not_ready(error))
                return
            run = self._run
            if run is None:
                self._reset_notice = f"{error.message}: this is a fresh one, variables are gone"
            else:
                lost = "its variables are lost, the next cell starts fresh"
                shown = (type(error).__name__, f"{error}; {lost}")
                if run.stage is Stage.DESTROYED and run.timed_out:
                    shown = verdicts.timeout(run, f"its sandbox had to be killed; {lost}")
                self._end_cell(run, shown, exit_code=1, state=State.LOST)
            self._box, self._next_ping = None, inf
            self._about = Future()
            self._requests.expire(inf)

    # --- requests between cells -----------------------------------------------------------

    def _ask(
        self, make: Callable[[int], wire.Event], code: str, *, busy: bool = False
    ) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            box = self._box
            closed = box is None or not box.ready or (self._run is not None and not busy)
            if box is None or closed or _unsendable(code):
                future.set_result(None)
            else:
                due = time.monotonic() + REQUEST_SECONDS
                box.send(make(self._requests.add(future, due, code)))
                self._nudge(due)
        return future

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
                self._act(now)
                self._wake_at = min(self._next_due(), now + PING_SECONDS)
                self._changed.wait(max(self._wake_at - now, 0.001))

    def _act(self, now: float) -> None:
        self._requests.expire(now)
        box, run = self._box, self._run
        if box is None:
            return
        if now >= self._next_ping:
            self._next_ping = now + PING_SECONDS
            box.send(wire.Ping(int(now)))
        if now >= self._hello_due:
            box.broken = SandboxUnavailableError(
                f"the guest did not answer within {HELLO_SECONDS:g} s",
                hint="the machine is overloaded, or the image's `python3` does not work",
            )
            self._destroy(box)
        if run is not None and run.paused is None and now >= run.due:
            self._escalate(box, run)

    def _next_due(self) -> float:
        dues = [self._requests.due, self._next_ping, self._hello_due]
        if self._run is not None and self._run.paused is None:
            dues.append(self._run.due)
        return min(dues)

    def _escalate(self, box: Box, run: Run) -> None:
        """A deadline passed: interrupt, then kill the worker, then the sandbox."""
        match run.stage:
            case Stage.RUNNING:
                run.timed_out = True
                self._interrupt_cell(box, run)
            case Stage.INTERRUPTED:
                self._kill_cell(box, run)
            case Stage.KILLED:
                run.stage, run.due = Stage.DESTROYED, inf
                self._destroy(box)
            case _:
                run.due = inf

    def _interrupt_cell(self, box: Box, run: Run) -> None:
        run.stage, run.paused = Stage.INTERRUPTED, None
        run.due = time.monotonic() + box.policy.grace_seconds
        box.send(wire.Interrupt(run.cell))
        self._nudge(run.due)

    def _kill_cell(self, box: Box, run: Run) -> None:
        run.stage, run.paused = Stage.KILLED, None
        run.due = time.monotonic() + KILL_SECONDS
        box.send(wire.KillWorker(run.cell))
        self._nudge(run.due)

    def _destroy(self, box: Box) -> None:
        """Kill the sandbox from a thread of its own: the provider may take its time."""
        self._hello_due = inf
        self._spawn("kill", box.sandbox.kill)


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


def _authority(output_bytes: int) -> int:
    """The host's own cap: the guest cuts text at the policy's, to the character.

    Ours is for a guest that does not; what each message costs besides its text is in it.
    """
    return output_bytes + output_bytes // 8 + 64 * 1024


def _unsendable(code: str) -> str | None:
    """Say why code cannot be sent as it is; None if it can."""
    if len(code) > MAX_CODE:
        return f"the cell has {len(code)} characters, and the kernel takes {MAX_CODE}"
    try:
        code.encode()
    except UnicodeEncodeError as error:
        return f"character {error.start} of the cell is half of a surrogate pair: no valid text"
    return None


def _asks(outputs: tuple[safe.Safe, ...]) -> bool:
    return any(isinstance(output, safe.Prompt) for output in outputs)


def _size(event: Any) -> int:
    """Characters that an output event costs the client."""
    total = MESSAGE_BYTES
    for value in event:
        if type(value) is str:
            total += len(value)
        elif type(value) is list:
            total += sum(map(len, value))
    return total
