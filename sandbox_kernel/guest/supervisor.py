"""PID 1 of the sandbox: owns the stream to the host, watches the worker, says what became of it.

Invariants: one loop that waits only in `poll`; no read, write or wait in it blocks, so that the
host's frames and the timers are answered during any flood, and also when nobody reads our
output.  The worker is hostile: its frames are checked, counted and capped, its death is judged by
what the kernel tells.  While the host does not acknowledge, the worker is not read.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, Union

from sandbox_kernel import wire
from sandbox_kernel.errors import RemoteProtocolError
from sandbox_kernel.guest import child, posture, process
from sandbox_kernel.guest.child import Verdict
from sandbox_kernel.guest.copies import BrokenDockError, Copies
from sandbox_kernel.guest.recovery import Recovery
from sandbox_kernel.guest.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandbox_kernel.guest.uplink import Uplink

    Settings = Mapping[str, Union[int, float, bool, str]]

#: Small reads between two sendings after which the worker is left alone for `_NAP_SECONDS` each.
_BRISK_READS = 8
#: In which small writes gather in the kernel's buffers: one wake-up for hundreds of lines.
_NAP_SECONDS = 0.002
#: A read of this many bytes needs no gathering.
_LARGE_READ = 32 * 1024
#: While a cell runs, between two looks whether its worker could not wake us.
_TICK_SECONDS = 0.05
#: From the end of the worker's channel until its death, if it is dying.
_CLOSED_SECONDS = 1.0
#: For all that a dead worker started to be gone; then the next one starts anyway.
_CLEAR_SECONDS = 5.0
#: Between two looks at what is still there.
_CLEAR_TICK = 0.005
#: Workers in a row that may die before they are ready.
_MAX_STILLBORN = 5

_RUNNING = (wire.Phase.BUSY, wire.Phase.WAITING_INPUT)
_BROKE = Verdict("crashed", "broke the protocol")


class Supervisor:
    """The loop, and the worker of the moment."""

    def __init__(self, settings: Settings, host: Uplink, wake: int) -> None:
        self._settings = settings
        self._host = host
        self._wake = wake
        self._deadman_seconds = float(settings["deadman_seconds"])
        self._idle_seconds = float(settings["idle_seconds"])
        self._started = self._heard_at = self._used_at = time.monotonic()
        self._relay = Relay(host.send, int(settings["output_bytes"]))
        self._cgroups = posture.Cgroups()
        #: Kills by the kernel, when the running cell began, and those of copies since then.
        self._oom_kills = self._cgroups.oom_kills()
        self._copies = Copies(int(settings["checkpoints"]), self._cgroups)
        self._recovery = Recovery(self._copies, host.send)
        #: Requests for a worker that is not ready yet.
        self._queue: list[wire.Event] = []
        #: Completions and the like that are not answered yet.
        self._asked: set[int] = set()
        self._worker: child.Child
        self._stillborn = 0
        self._reads = 0
        self._nap_until = 0.0
        #: When the worker's channel ended; 0 while it has not.
        self._closed_at = 0.0
        #: Of the worker's death until its replacement: why, and its exit status.
        self._ended: tuple[Verdict, int] | None = None
        self._clear_until = 0.0

    def start_worker(self) -> None:
        """Fork a worker; what was asked meanwhile waits until it is ready."""
        self._welcome(child.start(self._settings))

    def _welcome(self, worker: child.Child) -> None:
        self._worker = worker
        self._asked.clear()
        self._closed_at = self._nap_until = 0.0

    # the loop

    def run(self) -> NoReturn:
        """Wait, and do what has become possible.

        Raises:
            HostGoneError: the host has closed the stream.
        """
        while True:
            ready = self._wait()
            now = time.monotonic()
            if self._host.reader in ready:
                self._heard_at = now
                for event in self._host.read():
                    self._obey(event, now)
            if self._wake in ready:
                os.read(self._wake, 4096)
            if self._wake in ready or self._ended:
                self._reap(now)
            self._read_worker(ready, now)
            self._check_timers(now)
            self._tell_copies()
            self._host.write()

    def _wait(self) -> set[int]:
        poll = select.poll()
        poll.register(self._host.reader, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        if self._host.unwritten:
            poll.register(self._host.writer, select.POLLOUT)
        now = time.monotonic()
        worker = self._worker
        listening = self._may_read and now >= self._nap_until
        if listening:
            for fd in worker.pipes.values():
                poll.register(fd, select.POLLIN)
            if worker.dock is not None:
                poll.register(worker.dock, select.POLLIN)
        if self._may_read:
            poll.register(worker.bell, select.POLLIN)
        # An fd at its end would wake the loop for ever, whatever it is asked for.
        if not worker.closed and (listening or worker.outgoing):
            mask = (select.POLLIN if listening else 0) | (select.POLLOUT if worker.outgoing else 0)
            poll.register(worker.channel, mask)
        wait = max(self._next_timer(now) - now, 0.0)
        # Rounded up: a poll that ends too early would spin.
        return {fd for fd, _ in poll.poll(int(wait * 1000) + 1 if wait else 0)}

    @property
    def _may_read(self) -> bool:
        return not (self._ended or self._host.congested)

    @property
    def _idle(self) -> bool:
        return self._host.phase is not wire.Phase.BUSY

    def _next_timer(self, now: float) -> float:
        times = [self._heard_at + self._deadman_seconds, self._recovery.due_at]
        if not self._idle:
            times.append(self._copies.look_at)
        if self._idle:
            times.append(self._used_at + self._idle_seconds)
        if self._relay.due_at is not None:
            times.append(self._relay.due_at)
        if self._may_read:
            if not self._worker.condemned:
                times.append(self._worker.text.look_at)
            if not self._idle:
                times.append(now + _TICK_SECONDS)
            if self._nap_until > now:
                times.append(self._nap_until)
        if self._closed_at:
            times.append(self._closed_at + _CLOSED_SECONDS)
        if self._ended:
            times.append(now + _CLEAR_TICK)
        return min(times)

    def _check_timers(self, now: float) -> None:
        if now >= self._heard_at + self._deadman_seconds:
            process.end(0)
        if self._idle and now >= self._used_at + self._idle_seconds:
            process.end(0)
        if self._relay.due_at is not None and now >= self._relay.due_at:
            self._relay.flush(now)
            self._reads = 0
        if self._closed_at and now >= self._closed_at + _CLOSED_SECONDS:
            self._closed_at = 0.0
            self._kill_worker(_BROKE)
        if not self._idle and now >= self._copies.look_at:
            self._copies.look(now, self._worker.pid)
        if now >= self._recovery.due_at:
            self._kill_worker(Verdict("killed", "no answer"))

    # the host's requests

    def _obey(self, event: wire.Event, now: float) -> None:
        if isinstance(event, wire.Ping):
            self._host.send(wire.Pong(event.nonce))
        elif isinstance(event, wire.Interrupt):
            self._interrupt(event.cell)
        elif isinstance(event, wire.KillWorker):
            self._kill_cell(event.cell)
        elif isinstance(event, wire.Rewind):
            self._rewind(event)
        elif isinstance(event, wire.StatsRequest):
            self._host.send(self._cgroups.stats(event.request, self._started))
        elif isinstance(event, wire.Shutdown):
            process.end(0)
        elif isinstance(event, wire.Resume):
            self._host.repeat(event.seq)
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
            self._relay.begin(event.cell)
            self._oom_kills = self._cgroups.oom_kills()
            self._reads = 0
        if self._ended or self._recovery.underway or not self._worker.ready:
            self._queue.append(event)
            return
        if isinstance(event, (wire.Complete, wire.Inspect, wire.IsComplete)):
            self._asked.add(event.request)
        self._worker.send(event)

    def _waits(self, cell: int) -> bool:
        """Whether no worker has begun this cell yet."""
        return any(isinstance(event, wire.Execute) and event.cell == cell for event in self._queue)

    def _runs(self, cell: int) -> bool:
        return cell == self._host.cell and self._host.phase in _RUNNING

    def _interrupt(self, cell: int) -> None:
        if not self._runs(cell) or self._ended:
            return
        if not self._waits(cell):
            if self._recovery.underway:
                return
            process.interrupt(self._worker.pid)
            return
        self._queue.clear()
        text = "the cell was interrupted before it began"
        self._host.send(wire.Error(cell, "KeyboardInterrupt", text, [f"KeyboardInterrupt: {text}"]))
        self._host.send(wire.ExecuteReply(cell, "error", 0, self._relay.finish()))

    def _kill_cell(self, cell: int) -> None:
        if not self._runs(cell) or self._ended or self._recovery.underway:
            return
        if self._waits(cell):
            self._queue.clear()
        self._kill_worker(Verdict("killed", ""))

    def _rewind(self, event: wire.Rewind) -> None:
        """Go back to a copy, as if the worker had died."""
        if self._recovery.go_back(event, possible=not self._ended):
            self._kill_worker(Verdict("killed", "to go back"))

    # the worker's events

    def _read_worker(self, ready: set[int], now: float) -> None:
        worker = self._worker
        worker.write()
        if not self._may_read:
            return
        if not worker.condemned:
            try:
                self._relay.read_text(worker, ready, now)
            except RemoteProtocolError:
                self._kill_worker(_BROKE)
        if now < self._nap_until:
            return
        if worker.dock is not None and worker.dock.fileno() in ready:
            self._receive_copies()
        size = 0
        # Pipes first: what a subprocess wrote came before what the worker said after it.
        for name, fd in list(worker.pipes.items()):
            if fd in ready:
                size += self._relay.read_pipe(worker, name)
        if not worker.closed and worker.channel.fileno() in ready:
            size += worker.receive()
            self._take_events(now)
            if worker.closed:
                self._closed_at = now
        if self._relay.flooded:
            self._kill_worker(Verdict("killed", "output"))
        if 0 < size < _LARGE_READ:
            self._reads += 1
            if self._reads > _BRISK_READS:
                self._nap_until = now + _NAP_SECONDS

    def _take_events(self, now: float) -> None:
        worker = self._worker
        while not worker.condemned:
            try:
                event = worker.connection.next_event()
                if event is None:
                    return
                self._relay.take_text(worker, worker.text.take())
            except RemoteProtocolError:
                self._kill_worker(_BROKE)
                return
            worker.text.event_received()
            self._hand_on(event, now)

    def _hand_on(self, event: wire.Event, now: float) -> None:
        if isinstance(event, wire.Stream):
            self._relay.print(event.cell, event.name, event.text)
        elif isinstance(event, wire.ExecuteReply):
            self._relay.drain(self._worker, now)
            # What the host knows by now says whether the cell ran with a net.
            self._receive_copies()
            self._tell_copies()
            self._host.send(event._replace(dropped=self._relay.finish()))
            self._used_at, self._reads, self._nap_until = now, 0, 0.0
        elif isinstance(event, wire.Ready):
            self._stillborn = 0
            self._recovery.answered()
            waiting, self._queue = self._queue, []
            for request in waiting:
                self._pass_on(request)
        elif isinstance(event, (wire.CompleteReply, wire.InspectReply, wire.IsCompleteReply)):
            if event.request in self._asked:
                self._asked.remove(event.request)
                self._host.send(event)
        elif isinstance(event, wire.InputRequest):
            self._relay.drain(self._worker, now)
            self._host.send(event)
        else:
            self._relay.show(event, now)

    # its copies

    def _receive_copies(self) -> None:
        try:
            self._copies.receive(self._worker)
        except BrokenDockError:
            self._kill_worker(_BROKE)

    def _tell_copies(self) -> None:
        if self._copies.news():
            cells = [str(cell) for cell in self._copies.cells]
            self._host.send(wire.Checkpoints(cells, self._copies.skipped))

    # the worker's end

    def _kill_worker(self, why: Verdict) -> None:
        if self._worker.condemned or self._ended:
            return
        self._worker.condemned = why
        process.kill_descendants(self._copies.pids)

    def _reap(self, now: float) -> None:
        statuses = process.reap().statuses
        gone = self._copies.forget(statuses)
        if gone and self._cgroups.oom_kills() > self._oom_kills:
            self._oom_kills += gone
        status = statuses.get(self._worker.pid)
        if status is not None and not self._ended:
            self._receive_copies()
            oom = self._cgroups.oom_kills() > self._oom_kills
            self._ended = self._worker.judge(status, oom=oom), status
            self._closed_at = 0.0
            self._clear_until = now + _CLEAR_SECONDS
        if not self._ended:
            return
        if process.kill_descendants(self._copies.pids) or now > self._clear_until:
            self._replace(*self._ended, now)

    def _replace(self, why: Verdict, status: int, now: float) -> None:
        """Say what became of the worker, and start the next one."""
        worker = self._worker
        # Nobody writes any more: what stands in the channel and the pipes is the rest.
        while worker.receive():
            self._take_events(now)
        # What it has written to its ring to break it is no output.
        with suppress(RemoteProtocolError):
            self._relay.take_text(worker, worker.text.take(final=True))
        self._relay.drain(worker, now)
        lost = self._runs(self._host.cell) and not self._waits(self._host.cell)
        cell, dropped = (self._host.cell, self._relay.finish()) if lost else (0, 0)
        # If this is a copy that has not answered, what the host waits for is another's end.
        self._recovery.begin(wire.Verdict(cell, why.kind, why.detail, status, dropped, "lost", 0))
        self._used_at, self._ended = now, None
        self._oom_kills = self._cgroups.oom_kills()
        self._tell_copies()
        thawed = self._recovery.next_worker(worker, now)
        if thawed is not None:
            self._welcome(thawed)
            return
        self._stillborn = 0 if worker.ready else self._stillborn + 1
        if self._stillborn >= _MAX_STILLBORN:
            sys.stderr.write(
                f"sandbox-kernel: {_MAX_STILLBORN} workers in a row ended before they were ready"
                f" ({why.kind} {why.detail})\n"
            )
            self._host.write()
            process.end(1)
        self.start_worker()
