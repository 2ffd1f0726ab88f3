"""Speaks the engine's HTTP API over a unix socket, TCP or TLS, with the standard library alone.

Invariants: an exchange ends within its seconds however slowly the engine answers,
connecting included; only a host's name takes what it takes.  No more than
`MAX_ANSWER` bytes of an answer are read.  Proxies and `.netrc` are for the web, and
not read.  Nothing but `SandboxUnavailableError` leaves a `Client`.
"""

from __future__ import annotations

import io
import json
import socket
import ssl
import time
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any

from sandbox_kernel.adapters import docker_errors
from sandbox_kernel.adapters.docker_address import left, take_apart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandbox_kernel.adapters.docker_address import Address, Endpoint
    from sandbox_kernel.adapters.docker_errors import Request

#: Bytes; an inspected container has about 8 KiB, a listed one 2 KiB.
MAX_ANSWER = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine answered, whether it was a success or not.

    Attributes:
        status: Of HTTP.
        version: The highest API that the engine speaks, by its header, or `""`.
        body: As it came.
    """

    status: int
    version: str
    body: bytes

    @property
    def succeeded(self) -> bool:
        """Whether the engine did what was asked; a redirect is none that an engine sends."""
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """Why the engine refused, in its own words."""
        try:
            said = json.loads(self.body)
        except (ValueError, RecursionError):
            said = None
        if isinstance(said, dict) and said.get("message"):
            return str(said["message"])
        return (
            f"status {self.status} {self.body[: docker_errors.MAX_QUOTED].decode(errors='replace')}"
        )


class Client:
    """At most one connection to an engine, kept for the exchanges of one errand in one thread.

    Args:
        where: The engine; nothing is connected before the first exchange.
        asked: What the errand is about, for the messages of its errors.

    Raises:
        SandboxUnavailableError: The address or its certificates are of no use; from every
            method also: the engine cannot be reached, is silent, or does not speak HTTP.
    """

    def __init__(self, where: Endpoint, asked: Request) -> None:
        self.asked = asked
        self._sock: socket.socket | None = None
        try:
            self._address = take_apart(where)
        except OSError as error:
            files = where.tls.cert if where.tls else "the system's certificates"
            raise docker_errors.misconfigured(f"{files}: {error.strerror}") from None
        except ValueError as error:
            # Not the address itself, which may hold a password.
            raise docker_errors.misconfigured(f"the address {where.why}: {error}") from None

    def ask(self, method: str, path: str, seconds: float, body: Any = None) -> Answer:
        """Send a request, with `body` as JSON, and read all of the answer."""
        with self._plain_errors(seconds):
            response = self._exchange(method, path, seconds, body=body)
            answer = _answer(response)
            if response.will_close:
                self.close()
        return answer

    def lines(self, path: str, seconds: float) -> Iterator[bytes]:
        """Send a request, and yield the lines of its answer while they come.

        The connection is of no further use, unless the last line was read.
        """
        with self._plain_errors(seconds):
            response = self._exchange("GET", path, seconds)
            if response.status != 200:
                raise docker_errors.refused(_answer(response).message, self.asked)
            yield from response

    def hijack(self, path: str, seconds: float) -> socket.socket:
        """Send a request that makes the connection a stream; return it, now the caller's.

        No byte of the stream has been read.
        """
        with self._plain_errors(seconds):
            response = self._exchange("POST", path, seconds, hijack=True)
            # A proxy may have dropped our wish to upgrade; the engine hijacks all the same.
            if response.status not in (101, 200):
                raise docker_errors.refused(_answer(response).message, self.asked)
        sock, self._sock = self._sock, None
        assert sock is not None  # noqa: S101 - for mypy: the exchange connected it
        return sock

    def close(self) -> None:
        """Close the connection; the next exchange opens another."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _exchange(
        self, method: str, path: str, seconds: float, *, body: Any = None, hijack: bool = False
    ) -> HTTPResponse:
        deadline = time.monotonic() + seconds
        if self._sock is None:
            self._sock = self._address.connect(deadline)
        self._sock.settimeout(left(deadline))
        self._sock.sendall(_request(self._address, method, path, body, hijack=hijack))
        source = _Source(self._sock, deadline, buffer_bytes=1 if hijack else io.DEFAULT_BUFFER_SIZE)
        # All that it does with a socket is to call its `makefile`.
        response = HTTPResponse(source, method=method)  # type: ignore[arg-type]
        response.begin()
        if source.ended:
            raise HTTPException("the answer ends within its head")
        return response

    @contextmanager
    def _plain_errors(self, seconds: float) -> Iterator[None]:
        try:
            yield
            return
        except TimeoutError:
            problem = docker_errors.silent(seconds, self.asked)
        except OSError as error:
            # A name that is not found and a failed handshake have numbers of their own.
            foreign = isinstance(error, (ssl.SSLError, socket.gaierror))
            problem = docker_errors.unreachable(None if foreign else error.errno, self.asked)
        except (HTTPException, ValueError):
            problem = docker_errors.unreachable(None, self.asked)
        self.close()
        raise problem from None


class _Source(io.RawIOBase):
    """What arrives on a socket until a deadline, as the file that `http.client` reads.

    Args:
        buffer_bytes: With 1, nothing is taken from the socket beyond what was asked for.
    """

    def __init__(self, sock: socket.socket, deadline: float, *, buffer_bytes: int) -> None:
        self._sock = sock
        self._deadline = deadline
        self._buffer_bytes = buffer_bytes
        self._left = MAX_ANSWER
        self.ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left == 0:
            raise HTTPException("the answer is too long")
        self._sock.settimeout(left(self._deadline))
        count = self._sock.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        self.ended = count == 0
        return count

    def makefile(self, _mode: str) -> io.BufferedReader:
        return _Bounded(self, self._buffer_bytes)


class _Bounded(io.BufferedReader):
    def read(self, size: int | None = -1, /) -> bytes:
        # A length is the engine's word, and room for all of it would be made at once.
        return super().read(min(-1 if size is None else size, MAX_ANSWER))


def _answer(response: HTTPResponse) -> Answer:
    version = response.headers.get("Api-Version", "")
    return Answer(status=response.status, version=version, body=response.read())


def _request(address: Address, method: str, path: str, body: Any, *, hijack: bool) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {address.prefix}{path} HTTP/1.1", f"Host: {address.authority}"]
    if data:
        lines.append("Content-Type: application/json")
    if hijack:
        lines += ["Connection: Upgrade", "Upgrade: tcp"]
    if method == "POST":
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "\r\n"]).encode("ascii") + data
