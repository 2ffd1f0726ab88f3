"""Where an engine is: its address as `DOCKER_HOST` has it, and a socket to it.

Invariant: nothing is looked up or connected before `connect`.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_SOCKET = "/var/run/docker.sock"

#: Docker's own, without and with TLS.
DEFAULT_PORT, DEFAULT_TLS_PORT = 2375, 2376


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How both ends of a connection prove who they are.

    Attributes:
        ca: File of the authority that signed the engine's certificate, or `""` for the system's.
        cert: File of our own certificate, or `""` for none.
        key: File of its private key.
        verify: Whether the engine has to prove who it is.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    verify: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of an engine.

    Attributes:
        url: As `DOCKER_HOST` takes it.
        why: Who named it, for `doctor`.
        tls: For `tcp://` and `https://`, or `None`: a `tcp://` is then not encrypted.
    """

    url: str
    why: str
    tls: Tls | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """An `Endpoint` taken apart: either `path`, or all of the others.

    Attributes:
        path: Of a unix socket.
        host: A name or an address, IPv6 without brackets.
        port: Of TCP.
        prefix: Of the path of every request, without a slash at its end.
        context: Of TLS, or `None` for a plain connection.
    """

    path: str = ""
    host: str = ""
    port: int = 0
    prefix: str = ""
    context: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        """The value of a request's `Host`."""
        if self.path:
            return "docker"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connect(self, deadline: float) -> socket.socket:
        """Open a connection, and shake hands if it is TLS.

        Args:
            deadline: By `time.monotonic()`; each address of a host with several is
                given the seconds that are left before the first.

        Raises:
            OSError: It failed; `TimeoutError` if the deadline passed.
        """
        with ExitStack() as unless_connected:
            if self.path:
                sock = unless_connected.enter_context(socket.socket(socket.AF_UNIX))
                sock.settimeout(left(deadline))
                sock.connect(self.path)
            else:
                sock = socket.create_connection((self.host, self.port), timeout=left(deadline))
                unless_connected.enter_context(sock)
                # A frame of the stream is small, and somebody waits for it.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(left(deadline))
                if self.context is not None:
                    sock = self.context.wrap_socket(sock, server_hostname=self.host)
            unless_connected.pop_all()
        return sock


def take_apart(where: Endpoint) -> Address:
    """Understand an address as the `docker` command does.

    Raises:
        ValueError: It is none.
        OSError: A certificate cannot be read.
    """
    scheme, found, rest = where.url.partition("://")
    if scheme == "unix" and found:
        return Address(path="/" + rest.lstrip("/") if rest else DEFAULT_SOCKET)
    parts = urlsplit(where.url if found else f"tcp://{where.url}")
    if parts.scheme not in ("tcp", "http", "https"):
        raise ValueError(f"the protocol `{parts.scheme}` is not known")
    if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("it has to be a host and a port, and a path at most")
    tls = {"tcp": where.tls, "http": None, "https": where.tls or Tls()}[parts.scheme]
    return Address(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or (DEFAULT_TLS_PORT if tls else DEFAULT_PORT),
        prefix=parts.path.rstrip("/"),
        context=None if tls is None else _context(tls),
    )


def left(deadline: float) -> float:
    """Return the seconds until a deadline.

    Raises:
        TimeoutError: It has passed; a socket's time-out of 0 would mean another thing.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca if tls.ca and tls.verify else None)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert:
        context.load_cert_chain(tls.cert, tls.key)
    return context
