"""The stream of an attached container: plain bytes to its stdin, framed bytes from it.

The engine puts eight bytes before every piece that the container wrote: the
stream's number, three zeros, and the length, big-endian.

Invariants: free of docker-py.  Nothing is buffered beyond one header and the
last bytes of stderr, whatever lengths arrive.  The descriptor is closed by the
last thread that uses it, so that no thread ever waits on another's descriptor.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from contextlib import suppress
from ssl import SSLWantReadError, SSLWantWriteError
from typing import TYPE_CHECKING

from sandbox_kernel.errors import SandboxDiedError

if TYPE_CHECKING:
    from collections.abc import Callable

STDOUT, STDERR, ENGINE_ERROR = 1, 2, 3

HEADER = struct.Struct(">BxxxL")

READ_BYTES = 256 * 1024

STDERR_BYTES = 4096

#: Without one byte taken, after which the sandbox counts as dead.
SEND_SECONDS = 10.0


class Demultiplexer:
    """Takes the engine's frames apart: feed it bytes, get the bytes of stdout.

    Attributes:
        stderr: The last 4 KiB of everything that was not stdout.
    """

    def __init__(self) -> None:
        self.stderr = bytearray()
        self._header = bytearray()
        self._kind = 0
        self._left = 0

    def feed(self, data: memoryview) -> bytes:
        """Return the bytes of stdout in `data`, which may be none.

        Raises:
            ValueError: `data` is no such stream.
        """
        found: list[memoryview] = []
        while data:
            if self._left == 0:
                missing = HEADER.size - len(self._header)
                self._header += data[:missing]
                data = data[missing:]
                if len(self._header) == HEADER.size:
                    self._start_frame()
                continue
            part, data = data[: self._left], data[self._left :]
            self._left -= len(part)
            if self._kind == STDOUT:
                found.append(part)
            else:
                self.stderr += part[-STDERR_BYTES:]
                del self.stderr[:-STDERR_BYTES]
        return b"".join(found)

    def _start_frame(self) -> None:
        self._kind, self._left = HEADER.unpack(self._header)
        self._header.clear()
        if self._kind not in (STDOUT, STDERR, ENGINE_ERROR):
            raise ValueError(f"the engine sent a frame for stream `{self._kind}`")


class AttachStream:
    """One attached socket; `recv` from one thread, `send` from one at a time, `close` from any.

    Args:
        sock: Connected, plain or TLS; it is made non-blocking, because a TLS socket
            cannot be read and written by two blocked threads.
        release: Closes `sock` and what owns it; called once.
    """

    def __init__(self, sock: socket.socket, release: Callable[[], None]) -> None:
        sock.settimeout(0)
        self._sock = sock
        self._release = release
        self._lock = threading.Lock()
        self._closed = False
        self._receiving = False
        self._demultiplexer = Demultiplexer()
        self._buffer = memoryview(bytearray(READ_BYTES))

    @property
    def stderr(self) -> bytes:
        """The last 4 KiB that came by another stream than stdout."""
        return bytes(self._demultiplexer.stderr)

    def recv(self) -> bytes:
        """Block for the next bytes of stdout; `b""` means that the stream ended."""
        with self._lock:
            if self._closed:
                return b""
            self._receiving = True
        try:
            while count := self._receive():
                # A stream that makes no sense has ended: nothing after it can be trusted.
                with suppress(ValueError):
                    if stdout := self._demultiplexer.feed(self._buffer[:count]):
                        return stdout
                    continue
                return b""
            return b""
        finally:
            with self._lock:
                self._receiving = False
                if self._closed:
                    self._release()

    def _receive(self) -> int:
        while True:
            with self._lock:
                if self._closed:
                    return 0
                try:
                    return self._sock.recv_into(self._buffer)
                except (BlockingIOError, SSLWantReadError):
                    wanted = select.POLLIN
                except SSLWantWriteError:
                    wanted = select.POLLOUT
                except OSError:
                    return 0
                descriptor = self._sock.fileno()
            _wait(descriptor, wanted, None)

    def send(self, data: bytes) -> None:
        """Write all of `data`.

        Raises:
            SandboxDiedError: The stream is gone, or took no byte for 10 seconds.
        """
        rest, waited = memoryview(data), False
        while rest:
            with self._lock:
                if self._closed:
                    raise SandboxDiedError("the stream to the sandbox is closed")
                try:
                    sent = self._sock.send(rest)
                except (BlockingIOError, SSLWantWriteError):
                    sent, wanted = 0, select.POLLOUT
                except SSLWantReadError:
                    sent, wanted = 0, select.POLLIN
                except OSError as error:
                    raise SandboxDiedError(
                        f"the stream to the sandbox broke: `{error.strerror}`"
                    ) from None
                descriptor = self._sock.fileno()
            rest = rest[sent:]
            if sent:
                waited = False
            elif waited:
                raise SandboxDiedError(f"the sandbox took no input for {SEND_SECONDS:g} seconds")
            else:
                # Tried once more after a time-out: `poll` wants more room than one byte needs.
                waited = not _wait(descriptor, wanted, SEND_SECONDS)

    def close(self) -> None:
        """End the stream and wake who waits on it; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            if not self._receiving:
                self._release()


def _wait(descriptor: int, wanted: int, seconds: float | None) -> bool:
    """Return whether the descriptor became ready (or broke) in time."""
    poll = select.poll()
    poll.register(descriptor, wanted)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
