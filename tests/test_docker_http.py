"""The engine's HTTP, on sockets whose other end says what the test wants."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from sandbox_kernel.adapters import docker_http
from sandbox_kernel.adapters.docker_address import Endpoint, Tls
from sandbox_kernel.adapters.docker_errors import Request
from sandbox_kernel.adapters.docker_http import Answer, Client
from sandbox_kernel.errors import SandboxUnavailableError
from sandbox_kernel.policy import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OK = b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\n"

#: For an exchange that shall succeed, and for one that shall not.
PATIENT, IMPATIENT = 10.0, 0.4


class ScriptedEngine(threading.Thread):
    """Answers each request, on whatever connection it comes, with the next list of pieces.

    A number among them is a pause in seconds, `None` the end of the connection; after the
    last piece the connection stays open.
    """

    def __init__(self, listener: socket.socket, *answers: list[bytes | float | None]) -> None:
        super().__init__(daemon=True)
        self.requests: list[bytes] = []
        self.connections = 0
        self._listener = listener
        self._answers = list(answers)
        self._open: list[socket.socket] = []
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                caller = self._listener.accept()[0]
                self._open.append(caller)
                self.connections += 1
                # Who is answered gives up when it pleases.
                with suppress(OSError):
                    self._serve(caller)

    def _serve(self, caller: socket.socket) -> None:
        while self._answers and (request := caller.recv(65536)):
            self.requests.append(request)
            for piece in self._answers.pop(0):
                if piece is None:
                    caller.shutdown(socket.SHUT_RDWR)
                    return
                if isinstance(piece, float):
                    time.sleep(piece)
                else:
                    caller.sendall(piece)

    def stop(self) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self.join(5)


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Callable[..., tuple[ScriptedEngine, Client]]]:
    """An engine with a script, and a client of it."""
    engines: list[ScriptedEngine] = []
    clients: list[Client] = []

    def make(*answers: list[bytes | float | None]) -> tuple[ScriptedEngine, Client]:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen()
        engines.append(ScriptedEngine(listener, *answers))
        clients.append(client_of(f"unix://{tmp_path}/engine.sock"))
        return engines[-1], clients[-1]

    yield make
    for client in clients:
        client.close()
    for engine in engines:
        engine.stop()


def client_of(url: str, tls: Tls | None = None) -> Client:
    return Client(Endpoint(url=url, why="the test", tls=tls), Request(url=url))


def refusal(client: Client, seconds: float = PATIENT) -> str:
    with pytest.raises(SandboxUnavailableError) as caught:
        client.ask("GET", "/x", seconds)
    assert caught.value.__suppress_context__
    assert caught.value.hint
    return caught.value.message


# What engines say.


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([OK + b"Content-Length: 5\r\n\r\nhello"], id="length"),
        pytest.param([OK + b"content-length: 5\r\n\r\n", 0.01, b"he", 0.01, b"llo"], id="pieces"),
        pytest.param([OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nl", 0.01,
                      b"lo\r\n0\r\n\r\n"], id="chunked"),
        pytest.param([OK + b"\r\nhello", None], id="until-it-closes"),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello"],
                     id="continue"),
    ],
)  # fmt: skip
def test_an_answer_is_read_however_it_is_framed(
    scripted: Callable[..., tuple[ScriptedEngine, Client]], pieces: list[bytes | float | None]
) -> None:
    _, client = scripted(pieces)

    answer = client.ask("GET", "/x", PATIENT)

    assert answer == Answer(status=200, version="1.41", body=b"hello")
    assert answer.succeeded


def test_one_connection_serves_an_errand(
    scripted: Callable[..., tuple[ScriptedEngine, Client]],
) -> None:
    answer = OK + b"Content-Length: 0\r\n\r\n"
    engine, client = scripted([answer], [b"HTTP/1.1 204 No Content\r\n\r\n"], [answer])

    for _ in range(3):
        client.ask("GET", "/x", PATIENT)

    assert engine.connections == 1


def test_a_connection_that_the_engine_closes_is_replaced(
    scripted: Callable[..., tuple[ScriptedEngine, Client]],
) -> None:
    answer = OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n"
    engine, client = scripted([answer, None], [answer, None])

    for _ in range(2):
        client.ask("GET", "/x", PATIENT)

    assert engine.connections == 2


def test_a_request_is_what_an_engine_wants(
    scripted: Callable[..., tuple[ScriptedEngine, Client]],
) -> None:
    engine, client = scripted([OK + b"Content-Length: 0\r\n\r\n"])

    client.ask("POST", "/v1.41/containers/create?name=a", PATIENT, {"Image": "ä"})

    assert engine.requests == [
        b"POST /v1.41/containers/create?name=a HTTP/1.1\r\nHost: docker\r\n"
        b"Content-Type: application/json\r\nContent-Length: 19\r\n\r\n"
        b'{"Image": "\\u00e4"}'
    ]


def test_lines_come_when_they_are_sent(
    scripted: Callable[..., tuple[ScriptedEngine, Client]],
) -> None:
    chunks = [b"4\r\none\n\r\n2\r\ntw\r\n", 0.05, b"2\r\no\n\r\n"]
    _, client = scripted([OK + b"Transfer-Encoding: chunked\r\n\r\n", *chunks])
    before = time.monotonic()

    with closing(client):
        lines = client.lines("/events", PATIENT)
        seen = [next(lines), next(lines)]

    assert seen == [b"one\n", b"two\n"]
    assert time.monotonic() - before < PATIENT / 2


@pytest.mark.parametrize("status", [b"101 UPGRADED", b"200 OK"])
def test_a_stream_begins_after_the_head(
    scripted: Callable[..., tuple[ScriptedEngine, Client]], status: bytes
) -> None:
    # As the guest's first bytes would come: in one piece with the head, line ends and all.
    first = b"\r\n\x01\x00HTTP/1.1 200 OK\r\n\r\n"
    head = b"HTTP/1.1 " + status + b"\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
    engine, client = scripted([head + first])

    with closing(client.hijack("/attach", PATIENT)) as sock:
        client.close()
        received = sock.recv(1000)

    assert received == first
    assert b"\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n" in engine.requests[0]


def test_a_stream_that_is_refused_says_why(
    scripted: Callable[..., tuple[ScriptedEngine, Client]],
) -> None:
    body = json.dumps({"message": "no such container: abc"}).encode()
    head = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body)
    _, client = scripted([head + body[:5], 0.05, body[5:]])

    with pytest.raises(SandboxUnavailableError, match="no such container: abc"):
        client.hijack("/attach", PATIENT)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b'{"message":"no"}', "no", id="docker"),
        pytest.param(b'{"cause":"x","message":"no","response":500}', "no", id="podman"),
        pytest.param(b"<h1>Bad Gateway</h1>", "status 500 <h1>Bad Gateway</h1>", id="proxy"),
        pytest.param(b"", "status 500", id="nothing"),
        pytest.param(b'["no"]', 'status 500 ["no"]', id="list"),
        pytest.param(b'{"message":""}', 'status 500 {"message":""}', id="empty"),
        pytest.param(b"\xff\xfe", "status 500 \ufffd\ufffd", id="no-text"),
        pytest.param(b"[" * 100_000, "status 500 " + "[" * 200, id="deep"),
    ],
)
def test_a_refusal_has_a_reason(body: bytes, message: str) -> None:
    answer = Answer(status=500, version="", body=body)

    assert not answer.succeeded
    assert answer.message.strip() == message


# What no engine says.


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([None], id="nothing"),
        pytest.param([b"220 mail.example ESMTP\r\n"], id="mail-server"),
        pytest.param([b"\x15\x03\x01\x00\x02\x02\x16\n"], id="tls-alert"),
        pytest.param([b"HTTP/2 200\r\n\r\n"], id="other-http"),
        pytest.param([b"HTTP/1.1 abc OK\r\n\r\n"], id="no-status"),
        pytest.param([OK[:30], None], id="closed-in-the-head"),
        pytest.param([OK + b"X: y\r\n" * 200 + b"\r\n"], id="many-headers"),
        pytest.param([OK + b"X: " + b"y" * 100_000 + b"\r\n\r\n"], id="long-header"),
        pytest.param([OK + b"Content-Length: 50\r\n\r\nhello", None], id="closed-in-the-body"),
        pytest.param([OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhe", None], id="half-a-chunk"),
        pytest.param([OK + b"Transfer-Encoding: chunked\r\n\r\nno\r\n"], id="no-chunk-length"),
        pytest.param([OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nab\r\n"], id="negative-chunk"),
    ],
)
def test_what_is_no_answer_is_a_failed_connection(
    scripted: Callable[..., tuple[ScriptedEngine, Client]], pieces: list[bytes | float | None]
) -> None:
    _, client = scripted(pieces)

    message = refusal(client)

    assert message.startswith("the connection to the docker engine at `unix://")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(OK + b"Content-Length: 999999999999\r\n\r\n", id="length"),
        pytest.param(OK + b"\r\n", id="until-it-closes"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n", id="chunk"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", id="negative-chunk"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n", id="head"),
    ],
)
def test_an_endless_answer_is_cut_off(
    scripted: Callable[..., tuple[ScriptedEngine, Client]],
    monkeypatch: pytest.MonkeyPatch,
    head: bytes,
) -> None:
    monkeypatch.setattr(docker_http, "MAX_ANSWER", MIB)
    _, client = scripted([head, *([b"x: y\r\n" * 10_000] * 1000)])

    message = refusal(client)

    assert "failed" in message


def test_an_answer_just_within_the_bound_is_read(
    scripted: Callable[..., tuple[ScriptedEngine, Client]], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = OK + b"Content-Length: 100000\r\n\r\n"
    monkeypatch.setattr(docker_http, "MAX_ANSWER", len(head) + 100_000)
    _, client = scripted([head + bytes(100_000)])

    answer = client.ask("GET", "/x", PATIENT)

    assert answer.body == bytes(100_000)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([], id="silence"),
        pytest.param([OK[:20]], id="in-the-head"),
        pytest.param([OK + b"Content-Length: 5\r\n\r\nhe"], id="in-the-body"),
        # Each byte comes in time; all of them do not.
        pytest.param([b"H", 0.1, b"T", 0.1, b"T", 0.1, b"P", 0.1, b"/", 0.1], id="drops-of-a-head"),
        pytest.param([OK + b"\r\n", *([b"x", 0.1] * 5)], id="drops-of-a-body"),
    ],
)
def test_an_engine_that_is_slow_is_given_up_in_time(
    scripted: Callable[..., tuple[ScriptedEngine, Client]], pieces: list[bytes | float | None]
) -> None:
    _, client = scripted(pieces)
    before = time.monotonic()

    message = refusal(client, IMPATIENT)

    assert message.endswith(f"did not answer within {IMPATIENT:g} seconds")
    assert IMPATIENT <= time.monotonic() - before < IMPATIENT + 0.3


def test_after_a_failure_a_new_connection_is_made(
    scripted: Callable[..., tuple[ScriptedEngine, Client]],
) -> None:
    # Else the rest of the first answer would be taken for the second.
    engine, client = scripted(
        [OK + b"Transfer-Encoding: chunked\r\n\r\nno\r\n", None],
        [OK + b"Content-Length: 5\r\n\r\nhello"],
    )
    refusal(client)

    answer = client.ask("GET", "/x", PATIENT)

    assert answer.body == b"hello"
    assert engine.connections == 2


# Addresses.


@pytest.mark.parametrize(
    ("path", "line"),
    [
        pytest.param("", b"GET /x HTTP/1.1", id="plain"),
        pytest.param("/engines/1/", b"GET /engines/1/x HTTP/1.1", id="prefix"),
    ],
)
@pytest.mark.parametrize("scheme", ["tcp://", "http://", ""])
def test_an_engine_behind_tcp_is_asked_directly(
    monkeypatch: pytest.MonkeyPatch, scheme: str, path: str, line: bytes
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    engine = ScriptedEngine(listener, [OK + b"Content-Length: 0\r\n\r\n"])

    with closing(client_of(f"{scheme}127.0.0.1:{port}{path}")) as client:
        client.ask("GET", "/x", PATIENT)
    engine.stop()

    assert engine.requests[0].split(b"\r\n")[:2] == [line, b"Host: 127.0.0.1:%d" % port]


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("ftp://192.0.2.1", id="scheme"),
        pytest.param("fd://", id="systemd"),
        pytest.param("tcp://", id="no-host"),
        pytest.param("tcp://127.0.0.1:http", id="no-port"),
        pytest.param("tcp://127.0.0.1:99999", id="port-too-large"),
        pytest.param("tcp://[::1", id="half-an-ipv6"),
        pytest.param("tcp://user:secret@127.0.0.1:2375", id="password"),
        pytest.param("tcp://127.0.0.1:2375?x=y", id="query"),
    ],
)
def test_an_address_that_is_none_is_named(url: str) -> None:
    with pytest.raises(SandboxUnavailableError) as caught:
        client_of(url)

    assert caught.value.message.startswith("docker's own settings cannot be used: ")
    assert "the test" in caught.value.message
    assert "secret" not in str(caught.value)


def test_a_path_too_long_for_a_socket_is_a_failed_connection() -> None:
    assert "failed" in refusal(client_of("unix:///" + "x" * 200))


def test_a_host_that_is_not_known_is_a_failed_connection() -> None:
    # A label cannot be this long, so that no name server is asked.
    assert "failed" in refusal(client_of(f"tcp://{'x' * 64}.invalid:2375"))


@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\n"])
def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "cert.pem").write_text(content)
    tls = Tls(cert=str(tmp_path / "cert.pem"), key=str(tmp_path / "key.pem"))

    with pytest.raises(SandboxUnavailableError, match="settings cannot be used") as caught:
        client_of("tcp://127.0.0.1:2376", tls)

    assert "cert.pem" in caught.value.message


def test_certificates_do_not_matter_to_a_unix_socket(
    scripted: Callable[..., tuple[ScriptedEngine, Client]], tmp_path: Path
) -> None:
    scripted([OK + b"Content-Length: 0\r\n\r\n"])
    tls = Tls(cert="/nonexistent/cert.pem", key="/nonexistent/key.pem")

    with closing(client_of(f"unix://{tmp_path}/engine.sock", tls)) as client:
        answer = client.ask("GET", "/x", PATIENT)

    assert answer.succeeded


def test_tls_with_who_speaks_none_is_a_failed_connection() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    engine = ScriptedEngine(listener, [b"HTTP/1.1 400 Bad Request\r\n\r\n", None])

    message = refusal(client_of(f"https://127.0.0.1:{listener.getsockname()[1]}"))
    engine.stop()

    assert "failed" in message
