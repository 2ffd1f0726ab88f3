"""The attached stream: the engine's frames, and a socket used by three threads."""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.adapters import docker_stream
from sandbox_kernel.adapters.docker_stream import STDERR_BYTES, AttachStream, Demultiplexer
from sandbox_kernel.errors import SandboxDiedError

if TYPE_CHECKING:
    from collections.abc import Iterator

STDOUT, STDERR = 1, 2


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">BxxxL", kind, len(data)) + data


FRAMES = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=50)))


@given(FRAMES, st.data())
def test_chunks_do_not_matter(frames: list[tuple[int, bytes]], data: st.DataObject) -> None:
    rest = b"".join(frame(kind, body) for kind, body in frames)
    demultiplexer = Demultiplexer()

    stdout = b""
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        stdout += demultiplexer.feed(memoryview(rest[:cut]))
        rest = rest[cut:]

    assert stdout == b"".join(body for kind, body in frames if kind == STDOUT)
    assert demultiplexer.stderr == b"".join(body for kind, body in frames if kind == STDERR)


@given(st.binary())
def test_garbage_is_refused_and_nothing_worse(garbage: bytes) -> None:
    demultiplexer = Demultiplexer()

    try:
        stdout = demultiplexer.feed(memoryview(garbage))
    except ValueError:
        return
    assert len(stdout) <= len(garbage)


def test_stderr_keeps_its_end() -> None:
    demultiplexer = Demultiplexer()

    for letter in (b"a", b"b"):
        demultiplexer.feed(memoryview(frame(STDERR, letter * STDERR_BYTES)))
    demultiplexer.feed(memoryview(frame(STDERR, b"end")))

    assert demultiplexer.stderr == b"b" * (STDERR_BYTES - 3) + b"end"


@pytest.fixture
def ends() -> Iterator[tuple[AttachStream, socket.socket]]:
    ours, engine = socket.socketpair()
    with ours, engine:
        stream = AttachStream(ours, release=ours.close)
        yield stream, engine
        stream.close()


def test_a_frame_of_another_stream_ends_it(ends: tuple[AttachStream, socket.socket]) -> None:
    stream, engine = ends
    engine.sendall(frame(STDOUT, b"good"))
    first = stream.recv()
    engine.sendall(frame(9, b"bad"))

    assert (first, stream.recv()) == (b"good", b"")


def test_stderr_alone_does_not_end_recv(ends: tuple[AttachStream, socket.socket]) -> None:
    stream, engine = ends
    engine.sendall(frame(STDERR, b"warning") + frame(STDOUT, b"") + frame(STDOUT, b"out"))

    received = stream.recv()

    assert received == b"out"
    assert stream.stderr == b"warning"


def test_the_other_sides_end_is_the_end(ends: tuple[AttachStream, socket.socket]) -> None:
    stream, engine = ends
    engine.close()

    assert stream.recv() == b""
    with pytest.raises(SandboxDiedError, match="broke"):
        stream.send(b"x")


def test_close_wakes_a_blocked_recv_and_then_closes_the_descriptor() -> None:
    ours, engine = socket.socketpair()
    stream = AttachStream(ours, release=ours.close)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(stream.recv()))
    reader.start()
    time.sleep(0.1)

    stream.close()
    reader.join(5)

    assert received == [b""]
    assert ours.fileno() == -1
    assert engine.recv(1) == b""
    engine.close()


def test_close_wakes_a_blocked_send(ends: tuple[AttachStream, socket.socket]) -> None:
    stream, _ = ends
    failures: list[str] = []

    def write() -> None:
        try:
            stream.send(bytes(4 * 1024 * 1024))
        except SandboxDiedError as error:
            failures.append(error.message)

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(0.1)

    stream.close()
    writer.join(5)

    assert failures == ["the stream to the sandbox is closed"]


def test_after_close_nothing_is_read_or_written(
    ends: tuple[AttachStream, socket.socket],
) -> None:
    stream, engine = ends
    engine.sendall(frame(STDOUT, b"late"))

    stream.close()

    assert stream.recv() == b""
    with pytest.raises(SandboxDiedError, match="closed"):
        stream.send(b"x")


def test_a_guest_that_reads_nothing_is_dead(
    ends: tuple[AttachStream, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_stream, "SEND_SECONDS", 0.2)
    stream, _ = ends

    with pytest.raises(SandboxDiedError, match=r"took no input for 0\.2 seconds"):
        stream.send(bytes(4 * 1024 * 1024))


def test_a_slow_guest_is_not_dead(
    ends: tuple[AttachStream, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_stream, "SEND_SECONDS", 0.2)
    stream, engine = ends
    data = bytes(range(256)) * 4096
    received = bytearray()

    def read_slowly() -> None:
        while len(received) < len(data):
            received.extend(engine.recv(64 * 1024))
            time.sleep(0.05)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    stream.send(data)
    reader.join(10)

    assert received == data
