"""The worker's output on its way to the host: in order, in few events, within the caps.

Invariant: whatever the worker prints or shows, at most what `streams.Meter` allows is sent, and
what stands in its pipes is sent before what it says afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox_kernel import wire
from sandbox_kernel.errors import RemoteProtocolError
from sandbox_kernel.guest import ring, streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox_kernel.guest.child import Child

#: Bytes that one cell may put out, sent or not, before its worker should be killed.
_FLOOD_BYTES = 256 * 1024 * 1024
#: Bytes that `drain` reads from each pipe: more than a pipe holds.
_DRAIN_BYTES = 1024 * 1024


class Relay:
    """Output of one worker after the other.

    Args:
        send: Takes the events for the host.
        limit: Bytes of output that a cell may send.
    """

    def __init__(self, send: Callable[[wire.Event], None], limit: int) -> None:
        self._send = send
        self._text = streams.Gatherer()
        self._meter = streams.Meter(limit)
        #: The cell that runs, or the last one: what comes through the pipes counts as its own.
        self._cell = 0

    @property
    def due_at(self) -> float | None:
        """When to call `flush`; `None` while nothing waits."""
        return self._text.due_at

    @property
    def flooded(self) -> bool:
        """Whether the running cell puts out more than anyone could want."""
        return self._meter.seen > _FLOOD_BYTES

    def begin(self, cell: int) -> None:
        """A cell starts to run."""
        self._cell = cell
        self._meter.begin(cell)

    def finish(self) -> int:
        """The cell has ended and was flushed; return how many bytes were dropped."""
        return self._meter.finish()

    def print(self, cell: int, name: str, text: str) -> None:
        """Text that the worker wrote to one of its streams."""
        self._text.add(cell, name, self._meter.text(cell, text))

    def read_text(self, worker: Child, ready: set[int], now: float) -> None:
        """Look into the worker's ring if it is time, or if what the pipes hold came later.

        Raises:
            RemoteProtocolError: The worker broke the ring's format.
        """
        text = worker.text
        rung = worker.hear_bell() if worker.bell in ready else b""
        if ring.BEHIND_PIPES in rung:
            for name in list(worker.pipes):
                self.read_pipe(worker, name)
        piped = not ready.isdisjoint(worker.pipes.values())
        # Text that has not rung while the ring slept is later than what stands in the pipes.
        if rung or (text.asleep and text.unread and not piped):
            text.woken(now)
        if now >= text.look_at or (piped and not text.asleep):
            self.take_text(worker, text.look(now))

    def take_text(self, worker: Child, texts: list[ring.Text]) -> int:
        """What the worker has put into its ring; return how many bytes.

        Raises:
            RemoteProtocolError: It is of a cell that was never begun.
        """
        size = 0
        for cell, name, data in texts:
            if cell > worker.connection.cell:
                raise RemoteProtocolError(f"text of cell {cell}, which was never begun")
            size += len(data)
            if self._meter.spent(cell):
                self._meter.drop(cell, len(data))
            else:
                self.print(cell, name, data.decode("utf-8", "replace"))
        return size

    def show(self, event: Any, now: float) -> None:
        """Output that is not text: sent whole, or dropped."""
        size = streams.weight(event)
        allowed = self._meter.error if isinstance(event, wire.Error) else self._meter.whole
        if allowed(event.cell, size):
            self.flush(now)
            self._send(event)

    def read_pipe(self, worker: Child, name: str) -> int:
        """Read once what fd 1 or 2 got; return how many bytes."""
        data = worker.read_pipe(name)
        if data is None:
            return 0
        if self._meter.spent(self._cell):
            self._meter.drop(self._cell, len(data))
        else:
            self.print(self._cell, name, worker.decode(name, data))
        return len(data)

    def drain(self, worker: Child, now: float) -> None:
        """Send all text there is by now, what stands in the pipes too."""
        for name in list(worker.pipes):
            size = 0
            while size < _DRAIN_BYTES and name in worker.pipes:
                count = self.read_pipe(worker, name)
                if not count:
                    break
                size += count
            self.print(self._cell, name, worker.decode(name, b"", final=True))
        self.flush(now)

    def flush(self, now: float) -> None:
        """Send the text that waits."""
        for event in self._text.take(now):
            self._send(event)
