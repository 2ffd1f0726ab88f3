"""PID 1 of the sandbox: owns the stream to the host, watches the worker, says what became of it.

Invariants: one loop that waits only in `poll`; no read, write or wait in it blocks, so that the
host's frames and the timers are answered during any flood, and also when nobody reads our
output.  The worker is hostile: its frames are checked, counted and capped, its death is judged by
what the kernel tells.  While the host does not acknowledge, the worker is not read.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn, Union

from sandbox_kernel import wire
from sandbox_kernel.errors import RemoteProtocolError
from sandbox_kernel.guest import child, posture, process, seccomp, streams

if TYPE_CHECKING:
    from collections.abc import Mapping

    Settings = Mapping[str, Union[int, float, bool, str]]

#: Bytes for the host that may wait before the worker is read no more.
OUT_BYTES = 1024 * 1024
#: Bytes that one cell may put out, sent or not, before its worker is killed.
FLOOD_BYTES = 256 * 1024 * 1024
#: Bytes that are read from each pipe before a cell's reply: more than a pipe holds.
DRAIN_BYTES = 1024 * 1024
#: Reads between two sendings after which the worker is left alone for `NAP_SECONDS` each.
BRISK_READS = 8
#: In which small writes gather in the kernel's buffers: one wake-up for hundreds of lines.
NAP_SECONDS = 0.002
#: A read of this size needs no gathering.
LARGE_READ = 32 * 1024
#: From the end of the worker's channel until its death, if it is dying.
CLOSED_SECONDS = 1.0
#: For all that a dead worker started to be gone; then the next one starts anyway.
CLEAR_SECONDS = 5.0
#: Between two looks at what is still there.
CLEAR_TICK = 0.005
#: Workers in a row that may die before they are ready.
MAX_STILLBORN = 5

_RUNNING = (wire.Phase.BUSY, wire.Phase.WAITING_INPUT)
_BROKE = child.Verdict("crashed", "broke the protocol")


def main(settings: Settings) -> NoReturn:
    """Run this sandbox until its host, its lifetime or its worker ends it."""
    facts = posture.outer()
    process.ignore_signals()
    process.harden(int(settings["nofile"]))
    host_in, host_out = process.take_stream()
    wake = process.watch_children()
    filtered = seccomp.install()
    try:
        supervisor = Supervisor(settings, host_in, host_out, wake)
        supervisor.arm_lifetime()
        supervisor.start_worker()
        supervisor.send(posture.hello(facts, seccomp_inner=filtered, protected=posture.protected()))
        supervisor.run()
    except Exception:  # noqa: BLE001 - the outermost frame: the reason to stderr, then all ends
        sys.excepthook(*sys.exc_info())
        process.end(1)


class Supervisor:
    """The guest's end of the stream, and the worker of the moment."""

    def __init__(self, settings: Settings, host_in: int, host_out: int, wake: int) -> None:
        self._settings = settings
        self._host_in, self._host_out, self._wake = host_in, host_out, wake
        self._started = self._heard_at = self._used_at = time.monotonic()
        self._host = wire.Connection(
            wire.Role.GUEST,
            wire.Role.HOST,
            window=int(settings["window_bytes"]),
            replay=bool(settings["replay"]),
        )
        self._out = bytearray()
        self._text = streams.Gatherer()
        self._meter = streams.Meter(int(settings["output_bytes"]))
        self._cgroups = posture.Cgroups()
        self._oom_kills = self._cgroups.oom_kills()
        #: Requests for a worker that is not ready yet.
        self._queue: list[wire.Event] = []
        #: Completions and the like that are not answered yet.
        self._asked: set[int] = set()
        self._worker: child.Child
        self._stillborn = 0
        self._reads = 0
        self._nap_until = 0.0
        self._closed_at = 0.0
        #: Of the worker's death, until its replacement.
        self._ended: tuple[child.Verdict, int] | None = None
        self._clear_until = 0.0

    # --- life ---

    def arm_lifetime(self) -> None:
        """End with the lifetime, by a timer of the kernel's: no state of the loop matters."""
        seconds = float(self._settings["lifetime_seconds"])
        end = self._started + seconds

        def check(_signal: int, _frame: object) -> None:
            # Anyone in the sandbox may send the signal; only the clock counts.
            if time.monotonic() >= end:
                process.end(0)

        signal.signal(signal.SIGALRM, check)
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)

    def start_worker(self) -> None:
        """Fork a worker; what was asked meanwhile waits until it is ready."""
        self._worker = child.start(self._settings)
        self._asked.clear()
        self._closed_at = 0.0

    def run(self) -> NoReturn:
        """The loop."""
        while True:
            ready = self._wait()
            now = time.monotonic()
            if self._host_in in ready:
                self._read_host(now)
            if self._wake in ready:
                self._drain_wake()
            if self._wake in ready or self._ended:
                self._reap(now)
            self._read_worker(ready, now)
            self._check_timers(now)
            self._write()

    def _wait(self) -> set[int]:
        poll = select.poll()
        poll.register(self._host_in, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        if self._out:
            poll.register(self._host_out, select.POLLOUT)
        now = time.monotonic()
        worker = self._worker
        listening = self._may_read and now >= self._nap_until
        if listening:
            for fd in worker.pipes.values():
                poll.register(fd, select.POLLIN)
        # An fd at its end would wake the loop for ever, whatever it is asked for.
        if not worker.closed and (listening or worker.outgoing):
            mask = (select.POLLIN if listening else 0) | (select.POLLOUT if worker.outgoing else 0)
            poll.register(worker.channel, mask)
        wait = max(self._next_timer(now) - now, 0.0)
        # Rounded up: a poll that ends too early would spin.
        return {fd for fd, _ in poll.poll(int(wait * 1000) + 1 if wait else 0)}

    @property
    def _may_read(self) -> bool:
        return not (self._ended or self._host.window_full or len(self._out) > OUT_BYTES)

    def _next_timer(self, now: float) -> float:
        times = [self._heard_at + float(self._settings["deadman_seconds"])]
        if self._host.phase is not wire.Phase.BUSY:
            times.append(self._used_at + float(self._settings["idle_seconds"]))
        if self._text.due_at is not None:
            times.append(self._text.due_at)
        if self._may_read and self._nap_until > now:
            times.append(self._nap_until)
        if self._closed_at:
            times.append(self._closed_at + CLOSED_SECONDS)
        if self._ended:
            times.append(now + CLEAR_TICK)
        return min(times)

    def _check_timers(self, now: float) -> None:
        if now >= self._heard_at + float(self._settings["deadman_seconds"]):
            process.end(0)
        idle = self._host.phase is not wire.Phase.BUSY
        if idle and now >= self._used_at + float(self._settings["idle_seconds"]):
            process.end(0)
        if self._text.due_at is not None and now >= self._text.due_at:
            self._flush(now)
        if self._closed_at and now >= self._closed_at + CLOSED_SECONDS:
            self._closed_at = 0.0
            self._kill_worker(_BROKE)

    # --- the host ---

    def send(self, event: wire.Event) -> None:
        """Queue an event for the host."""
        self._out += self._host.send(event)

    def _write(self) -> None:
        while self._out:
            try:
                sent = os.write(self._host_out, self._out)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                process.end(0)
            del self._out[:sent]

    def _read_host(self, now: float) -> None:
        try:
            data = os.read(self._host_in, child.READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            process.end(0)
        self._heard_at = now
        self._host.receive_data(data)
        while True:
            event = self._host.next_event()
            if event is None:
                return
            self._obey(event, now)

    def _obey(self, event: wire.Event, now: float) -> None:
        if isinstance(event, wire.Ping):
            self.send(wire.Pong(event.nonce))
        elif isinstance(event, wire.Interrupt):
            self._interrupt(event.cell)
        elif isinstance(event, wire.KillWorker):
            self._kill_cell(event.cell)
        elif isinstance(event, wire.StatsRequest):
            self.send(self._cgroups.stats(event.request, self._started))
        elif isinstance(event, wire.Shutdown):
            process.end(0)
        elif isinstance(event, wire.Resume):
            self._out = bytearray(self._host.replayed(event.seq))
        else:
            self._used_at = now
            self._pass_on(event)

    def _pass_on(self, event: wire.Event) -> None:
        """Give the worker a request, as soon as there is one that takes it."""
        if isinstance(event, wire.InputReply):
            # One that crossed the end of its cell is for nobody.
            if self._worker.connection.phase is wire.Phase.WAITING_INPUT:
                self._worker.send(event)
            return
        if isinstance(event, wire.Execute):
            self._meter.begin(event.cell)
            self._oom_kills = self._cgroups.oom_kills()
            self._reads = 0
        if not self._worker.ready or self._ended:
            self._queue.append(event)
            return
        if isinstance(event, (wire.Complete, wire.Inspect, wire.IsComplete)):
            self._asked.add(event.request)
        self._worker.send(event)

    @property
    def _waiting_cell(self) -> int:
        """The cell that no worker has begun yet; 0 if there is none."""
        for event in self._queue:
            if isinstance(event, wire.Execute):
                return event.cell
        return 0

    def _runs(self, cell: int) -> bool:
        return cell == self._host.cell and self._host.phase in _RUNNING

    def _interrupt(self, cell: int) -> None:
        if not self._runs(cell) or self._ended:
            return
        if cell != self._waiting_cell:
            process.interrupt(self._worker.pid)
            return
        self._queue.clear()
        text = "the cell was interrupted before it began"
        self.send(wire.Error(cell, "KeyboardInterrupt", text, [f"KeyboardInterrupt: {text}"]))
        self.send(wire.ExecuteReply(cell, "error", 0, self._meter.finish()))

    def _kill_cell(self, cell: int) -> None:
        if not self._runs(cell) or self._ended:
            return
        if cell == self._waiting_cell:
            self._queue.clear()
        self._kill_worker(child.Verdict("killed", ""))

    # --- the worker ---

    def _read_worker(self, ready: set[int], now: float) -> None:
        worker = self._worker
        if worker.outgoing:
            worker.write()
        if not self._may_read or now < self._nap_until:
            return
        size = 0
        # Pipes first: what a subprocess wrote came before what the worker said after it.
        for name, fd in list(worker.pipes.items()):
            if fd in ready:
                size += self._read_pipe(name)
        if worker.channel.fileno() in ready and not worker.closed:
            size += worker.receive()
            self._take_events(now)
            if worker.closed:
                self._closed_at = now
        if 0 < size < LARGE_READ:
            self._reads += 1
            if self._reads > BRISK_READS:
                self._nap_until = now + NAP_SECONDS

    def _read_pipe(self, name: str) -> int:
        data = self._worker.read_pipe(name)
        if data is None:
            return 0
        # Of the running cell, or of the one before: nothing tells who wrote.
        cell = self._host.cell
        if self._meter.spent(cell):
            self._meter.drop(cell, len(data))
        else:
            self._print(cell, name, self._worker.decode(name, data))
        self._check_flood()
        return len(data)

    def _print(self, cell: int, name: str, text: str) -> None:
        self._text.add(cell, name, self._meter.text(cell, text))

    def _check_flood(self) -> None:
        if self._meter.cell and self._meter.seen > FLOOD_BYTES:
            self._kill_worker(child.Verdict("killed", "output"))

    def _take_events(self, now: float) -> None:
        while not self._worker.condemned:
            try:
                event = self._worker.connection.next_event()
            except RemoteProtocolError:
                self._kill_worker(_BROKE)
                return
            if event is None:
                return
            self._hand_on(event, now)

    def _hand_on(self, event: wire.Event, now: float) -> None:
        if isinstance(event, wire.Stream):
            self._print(event.cell, event.name, event.text)
            self._check_flood()
        elif isinstance(event, wire.ExecuteReply):
            self._finish(event, now)
        elif isinstance(event, wire.Ready):
            self._stillborn = 0
            waiting, self._queue = self._queue, []
            for request in waiting:
                self._pass_on(request)
        elif isinstance(event, (wire.CompleteReply, wire.InspectReply, wire.IsCompleteReply)):
            if event.request in self._asked:
                self._asked.remove(event.request)
                self.send(event)
        elif isinstance(event, wire.InputRequest):
            self._drain_pipes()
            self._flush(now)
            self.send(event)
        else:
            self._show(event, now)

    def _show(self, event: wire.Event, now: float) -> None:
        """Send output that is not text, if the cell has room for it."""
        cell: int = getattr(event, "cell")  # noqa: B009 - all that are left have one
        size = streams.weight(event)
        if isinstance(event, wire.Error):
            fits = self._meter.error(cell, size)
        else:
            fits = self._meter.whole(cell, size)
        if fits:
            self._flush(now)
            self.send(event)
        self._check_flood()

    def _finish(self, reply: wire.ExecuteReply, now: float) -> None:
        self._drain_pipes()
        self._flush(now)
        self.send(reply._replace(dropped=self._meter.finish()))
        self._used_at, self._reads, self._nap_until = now, 0, 0.0

    def _drain_pipes(self) -> None:
        """Read what stands in the pipes, so that it comes before what follows."""
        for name in list(self._worker.pipes):
            size = 0
            while size < DRAIN_BYTES and name in self._worker.pipes:
                count = self._read_pipe(name)
                if not count:
                    break
                size += count
            self._print(self._host.cell, name, self._worker.decode(name, b"", final=True))

    def _flush(self, now: float) -> None:
        for event in self._text.take(now):
            self.send(event)
        self._reads = 0

    # --- its end ---

    def _kill_worker(self, why: child.Verdict) -> None:
        if self._worker.condemned or self._ended:
            return
        self._worker.condemned = why
        process.kill_descendants()

    def _drain_wake(self) -> None:
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            return

    def _reap(self, now: float) -> None:
        reaped = process.reap()
        status = reaped.statuses.get(self._worker.pid)
        if status is not None and not self._ended:
            self._ended = self._judge(status), status
            self._closed_at = 0.0
            self._clear_until = now + CLEAR_SECONDS
        if not self._ended:
            return
        if reaped.none_left or now > self._clear_until:
            self._replace(now)
        else:
            process.kill_descendants()

    def _judge(self, status: int) -> child.Verdict:
        if self._worker.condemned:
            return self._worker.condemned
        if status >= 0:
            return child.Verdict("exited", f"status {status}")
        if status == -signal.SIGKILL and self._cgroups.oom_kills() > self._oom_kills:
            return child.Verdict("oom", "")
        return child.Verdict("crashed", process.signal_name(-status))

    def _replace(self, now: float) -> None:
        """Say what became of the worker, and start the next one."""
        assert self._ended is not None  # noqa: S101 - for the type; both callers have checked
        why, status = self._ended
        worker = self._worker
        # Nobody writes any more: what stands in the channel and the pipes is the rest.
        while worker.receive():
            self._take_events(now)
        self._drain_pipes()
        self._flush(now)
        stillborn = not worker.ready
        worker.close()
        running = self._host.phase in _RUNNING and not self._waiting_cell
        cell = self._host.cell if running else 0
        dropped = self._meter.finish() if running else 0
        self.send(wire.Verdict(cell, why.kind, why.detail, status, dropped, "lost"))
        self._used_at, self._ended, self._nap_until = now, None, 0.0
        self._oom_kills = self._cgroups.oom_kills()
        self._stillborn = self._stillborn + 1 if stillborn else 0
        if self._stillborn >= MAX_STILLBORN:
            sys.stderr.write(
                f"sandbox-kernel: {MAX_STILLBORN} workers in a row ended before they were ready"
                f" (`{why.kind}` {why.detail})\n"
            )
            self._write()
            process.end(1)
        self.start_worker()
