"""The supervisor's end of the stream to the host: events in, events out.

Invariants: nothing here waits; whoever is slow or frozen on the other side, `read`, `send` and
`write` return at once.  What waits to be written is bounded by those who look at `congested`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sandbox_kernel import wire
from sandbox_kernel.guest import child

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes that may wait before the worker is read no more.
_WAITING_BYTES = 1024 * 1024


class HostGoneError(Exception):
    """The host has closed its end: nobody is left to run for."""


class Uplink:
    """The host, as two fds that do not block.

    Args:
        reader: What the host writes to.
        writer: What the host reads.
        window: Bytes that may be on their way, not acknowledged.
        replay: Whether these bytes are kept for a host that reconnects.
    """

    def __init__(self, reader: int, writer: int, *, window: int, replay: bool) -> None:
        self.reader, self.writer = reader, writer
        self.connection = wire.Connection(
            wire.Role.GUEST, wire.Role.HOST, window=window, replay=replay
        )
        self._waiting = bytearray()

    @property
    def phase(self) -> wire.Phase:
        """Where the conversation stands."""
        return self.connection.phase

    @property
    def cell(self) -> int:
        """The running cell, or the last one."""
        return self.connection.cell

    @property
    def unwritten(self) -> bool:
        """Whether `write` has something to do."""
        return bool(self._waiting)

    @property
    def congested(self) -> bool:
        """Whether nothing more should be sent that can wait."""
        return self.connection.window_full or len(self._waiting) > _WAITING_BYTES

    def send(self, event: wire.Event) -> None:
        """Queue an event; `write` sends it."""
        self._waiting += self.connection.send(event)

    def repeat(self, seq: int) -> None:
        """Begin anew after frame `seq`, for a host that has reconnected."""
        self._waiting = bytearray(self.connection.replayed(seq))

    def write(self) -> None:
        """Write as much as the stream takes.

        Raises:
            HostGoneError: nobody reads any more.
        """
        while self._waiting:
            try:
                sent = os.write(self.writer, self._waiting)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                raise HostGoneError from None
            del self._waiting[:sent]

    def read(self) -> Iterator[wire.Event]:
        """Read once; the events that are whole by now.

        Raises:
            HostGoneError: the stream has come to its end.
            RemoteProtocolError: the other side is not our host.
        """
        try:
            data = os.read(self.reader, child.READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            raise HostGoneError from None
        if not data:
            raise HostGoneError
        self.connection.receive_data(data)
        while True:
            event = self.connection.next_event()
            if event is None:
                return
            yield event
