"""The docker adapter on a real engine, and on sockets that are none."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandbox_kernel.adapters import docker_address, docker_context, docker_engine
from sandbox_kernel.adapters.docker import DockerAdapter, DockerSandbox, DockerSettings
from sandbox_kernel.errors import SandboxDiedError, SandboxUnavailableError
from sandbox_kernel.policy import MIB, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

docker = pytest.importorskip("docker")

IMAGES = ("sandbox-kernel/python", "base-test:bookworm")

ECHO = "import os\nwhile data := os.read(0, 65536):\n    os.write(1, data)"
SLEEP = "import time; time.sleep(600)"


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """docker-py, to look at the engine past the adapter."""
    with closing(docker.APIClient(**docker.utils.kwargs_from_env(), timeout=60)) as client:
        yield client


@pytest.fixture(scope="module")
def engine_image(engine: Any) -> str:
    for name in IMAGES:
        with suppress(docker.errors.ImageNotFound):
            engine.inspect_image(name)
            return name
    pytest.skip(f"the engine has none of the images {', '.join(IMAGES)}")


@pytest.fixture
def adapter() -> DockerAdapter:
    return DockerAdapter(DockerSettings())


@pytest.fixture
def labels(adapter: DockerAdapter) -> Iterator[dict[str, str]]:
    """Labels of this test alone; it fails if it leaves a container behind."""
    labels = {"sandbox-kernel.test": uuid.uuid4().hex}
    yield labels
    left = wait_until_none(adapter, labels)
    for info in left:
        adapter.remove(info.sandbox_id)
    assert left == []


@pytest.fixture
def start(
    adapter: DockerAdapter, labels: dict[str, str], engine_image: str
) -> Iterator[Callable[..., DockerSandbox]]:
    """Start Python code in a sandbox that is killed after the test."""
    started: list[DockerSandbox] = []

    def start(code: str, policy: Policy | None = None) -> DockerSandbox:
        argv = ["python3", "-I", "-u", "-c", code]
        chosen = policy or Policy(image=engine_image)
        started.append(adapter.create(chosen, argv, labels, ignore))
        return started[-1]

    yield start
    for sandbox in started:
        sandbox.kill()


def ignore(text: str) -> None:
    """Take a progress line."""


def wait_until_none(adapter: DockerAdapter, labels: dict[str, str]) -> list[Any]:
    deadline = time.monotonic() + 10
    while (left := adapter.list(labels)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def read_all(sandbox: DockerSandbox) -> bytes:
    received = bytearray()
    while data := sandbox.recv():
        received += data
    return bytes(received)


def read(sandbox: DockerSandbox, count: int) -> bytes:
    received = bytearray()
    while len(received) < count and (data := sandbox.recv()):
        received += data
    return bytes(received)


# The stream.


def test_eight_megabytes_go_there_and_back(start: Callable[..., DockerSandbox]) -> None:
    sandbox = start(ECHO)
    data = os.urandom(4 * MIB).hex().encode()
    writer = threading.Thread(target=sandbox.send, args=(data,))
    writer.start()

    received = read(sandbox, len(data))
    writer.join(10)

    assert received == data


def test_every_byte_passes_unchanged(start: Callable[..., DockerSandbox]) -> None:
    sandbox = start(ECHO)
    data = bytes(range(256)) * 257

    sandbox.send(data)

    assert read(sandbox, len(data)) == data


def test_stderr_is_kept_apart(start: Callable[..., DockerSandbox]) -> None:
    sandbox = start("import sys; sys.stderr.write('bad luck'); print('out'); sys.exit(3)")

    received = read_all(sandbox)

    assert received == b"out\n"
    assert sandbox.why() == "exited 3, it wrote 'bad luck' to stderr"


# The end.


def test_kill_ends_a_blocked_recv_and_removes(
    start: Callable[..., DockerSandbox], adapter: DockerAdapter, labels: dict[str, str]
) -> None:
    sandbox = start(SLEEP)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(sandbox.recv()))
    reader.start()

    sandbox.kill()
    reader.join(5)

    assert received == [b""]
    assert adapter.list(labels) == []
    assert sandbox.why() == "killed by the host"
    with pytest.raises(SandboxDiedError, match="closed"):
        sandbox.send(b"x")


def test_kill_from_many_threads_is_one_kill(
    start: Callable[..., DockerSandbox], adapter: DockerAdapter, labels: dict[str, str]
) -> None:
    sandbox = start(SLEEP)
    threads = [threading.Thread(target=sandbox.kill) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert adapter.list(labels) == []


def test_kill_of_what_has_ended_is_quiet(start: Callable[..., DockerSandbox]) -> None:
    sandbox = start("pass")
    read_all(sandbox)

    sandbox.kill()

    assert sandbox.recv() == b""


def test_kill_does_not_wait_for_a_hung_engine(
    start: Callable[..., DockerSandbox],
    adapter: DockerAdapter,
    labels: dict[str, str],
    hung_engine: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox = start(SLEEP)
    real = sandbox._engine.where
    sandbox._engine.where = docker_address.Endpoint(url=hung_engine, why="the test")
    before = time.monotonic()

    sandbox.kill()

    assert time.monotonic() - before < 10
    assert sandbox.recv() == b""
    sandbox._engine.where = real
    sandbox._engine.destroy(sandbox.sandbox_id)


def test_why_names_the_memory(start: Callable[..., DockerSandbox], engine_image: str) -> None:
    sandbox = start("bytearray(300 * 2**20)", Policy(image=engine_image, memory_bytes=64 * MIB))

    received = read_all(sandbox)

    assert received == b""
    assert sandbox.why() == "exited 137, out of memory"


def test_a_dead_host_ends_the_guest(
    adapter: DockerAdapter, labels: dict[str, str], engine_image: str
) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, engine_image, json.dumps(labels), ECHO],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    with host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"started\n"
        running = [info.status for info in adapter.list(labels)]

        host.send_signal(signal.SIGKILL)
        left = wait_until_none(adapter, labels)

    assert running == ["running"]
    assert left == []


HOST = """
import json, sys, time
from sandbox_kernel.adapters.docker import DockerAdapter, DockerSettings
from sandbox_kernel.policy import Policy
image, labels, code = sys.argv[1:]
argv = ["python3", "-I", "-c", code]
policy = Policy(image=image)
sandbox = DockerAdapter(DockerSettings()).create(policy, argv, json.loads(labels), print)
print("started", flush=True)
time.sleep(60)
"""


# List and remove.


def test_list_shows_what_runs_and_what_never_started(
    start: Callable[..., DockerSandbox],
    adapter: DockerAdapter,
    labels: dict[str, str],
    engine: Any,
    engine_image: str,
) -> None:
    running = start(SLEEP).sandbox_id
    created = engine.create_container(engine_image, ["true"], labels={**labels, "other": "label"})[
        "Id"
    ]

    found = {info.sandbox_id: info for info in adapter.list(labels)}

    assert {key: info.status for key, info in found.items()} == {
        running: "running",
        created: "created",
    }
    # The image's own labels come with them.
    assert found[created].labels.items() >= {**labels, "other": "label"}.items()
    assert abs(found[created].created - time.time()) < 60
    adapter.remove(created)


def test_list_wants_all_labels(
    start: Callable[..., DockerSandbox], adapter: DockerAdapter, labels: dict[str, str]
) -> None:
    start(SLEEP)

    assert adapter.list({**labels, "sandbox-kernel.other": "x"}) == []


def test_remove_twice_is_no_error(
    start: Callable[..., DockerSandbox], adapter: DockerAdapter, labels: dict[str, str]
) -> None:
    sandbox = start(SLEEP)

    adapter.remove(sandbox.sandbox_id)
    adapter.remove(sandbox.sandbox_id)

    assert adapter.list(labels) == []
    assert read_all(sandbox) == b""


# The box.


def test_the_engine_made_the_box_of_the_security_page(
    start: Callable[..., DockerSandbox], engine: Any, engine_image: str, labels: dict[str, str]
) -> None:
    sandbox = start(SLEEP)

    inspected = engine.inspect_container(sandbox.sandbox_id)

    config, host = inspected["Config"], inspected["HostConfig"]
    assert {key: config[key] for key in GOLDEN_CONFIG} == GOLDEN_CONFIG
    assert config["Labels"].items() >= labels.items()
    # Empty values are written as `null`, `""` or `[]`, as the version pleases.
    assert {key: host.get(key) for key in GOLDEN_HOST} == GOLDEN_HOST
    assert [key for key in FORBIDDEN if host.get(key)] == []
    assert "/proc/kcore" in host["MaskedPaths"]
    assert "/proc/sys" in host["ReadonlyPaths"]
    assert inspected["Mounts"] == []
    assert list(inspected["NetworkSettings"]["Networks"]) == []


GOLDEN_CONFIG = {
    "User": "65534:65534",
    "Hostname": "sandbox",
    "WorkingDir": "/sandbox",
    "Entrypoint": ["python3"],
    "Cmd": ["-I", "-u", "-c", SLEEP],
    "Tty": False,
    "OpenStdin": True,
    "StdinOnce": True,
    "Healthcheck": {"Test": ["NONE"]},
    # The image knows `localhost` by itself, as its label says.
    "NetworkDisabled": True,
}
GOLDEN_HOST = {
    "NetworkMode": "none",
    "IpcMode": "private",
    "CgroupnsMode": "private",
    "CapDrop": ["ALL"],
    "SecurityOpt": ["no-new-privileges"],
    "ReadonlyRootfs": True,
    "Tmpfs": {
        "/tmp": "rw,noexec,nosuid,nodev,size=67108864,nr_inodes=4096,mode=1777",
        "/sandbox": (
            "rw,exec,nosuid,nodev,size=67108864,nr_inodes=4096,mode=0700,uid=65534,gid=65534"
        ),
        "/run": "rw,noexec,nosuid,nodev,size=1048576,nr_inodes=64,mode=0755",
        "/var/tmp": "rw,noexec,nosuid,nodev,size=1048576,nr_inodes=64,mode=1777",
    },
    "ShmSize": 16777216,
    "Memory": 536870912,
    "MemorySwap": 536870912,
    "NanoCpus": 1000000000,
    "PidsLimit": 100,
    "Ulimits": [
        {"Name": "core", "Hard": 0, "Soft": 0},
        {"Name": "memlock", "Hard": 0, "Soft": 0},
        {"Name": "msgqueue", "Hard": 0, "Soft": 0},
        {"Name": "nofile", "Hard": 4096, "Soft": 4096},
    ],
    "LogConfig": {"Type": "none", "Config": {}},
    "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    "AutoRemove": True,
    "Init": False,
    "Dns": ["127.0.0.1"],
    "DnsSearch": ["."],
}
FORBIDDEN = (
    "Privileged",
    "CapAdd",
    "Binds",
    "Mounts",
    "VolumesFrom",
    "Devices",
    "DeviceRequests",
    "DeviceCgroupRules",
    "Links",
    "ExtraHosts",
    "GroupAdd",
    "PortBindings",
    "PublishAllPorts",
    "PidMode",
    "UTSMode",
    "UsernsMode",
    "CgroupParent",
    "OomKillDisable",
    "Sysctls",
)

INSIDE = """
import json, os, resource, socket, subprocess
def refused(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__
def run(path):
    with open(path, "w") as file:
        file.write("#!/bin/sh\\n")
    os.chmod(path, 0o700)
    subprocess.run([path], check=True)
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
mounts = [line.split()[4] for line in open("/proc/self/mountinfo") if line.split()[3] != "/"]
print(json.dumps({
    "pid": os.getpid(),
    "user": [os.getuid(), os.getgid(), *(set(os.getgroups()) - {os.getgid()})],
    "capabilities": [int(status[name], 16) for name in ("CapBnd", "CapEff", "CapInh", "CapAmb")],
    "seccomp": status["Seccomp"],
    "no_new_privs": status["NoNewPrivs"],
    "interfaces": [name for _, name in socket.if_nameindex()],
    "resolvers": open("/etc/resolv.conf").read().split()[:2],
    "search": "search" in open("/etc/resolv.conf").read(),
    "localhost": socket.gethostbyname("localhost"),
    "name": refused(lambda: socket.gethostbyname("example.invalid")),
    "connect": refused(lambda: socket.create_connection(("192.0.2.1", 80), 2)),
    "hostname": socket.gethostname(),
    "directory": os.getcwd(),
    "root": refused(lambda: open("/x", "w")),
    "run": refused(lambda: open("/run/x", "w")),
    "tmp program": refused(lambda: run("/tmp/x")),
    "var tmp program": refused(lambda: run("/var/tmp/x")),
    "sandbox program": refused(lambda: run("/sandbox/x")),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "host mounts": sorted(m for m in mounts if not m.startswith("/proc/")),
    "environment": dict(os.environ),
}))
"""


def test_the_box_from_inside(
    start: Callable[..., DockerSandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "s3cr3t")

    seen = json.loads(read_all(start(INSIDE)))

    environment = seen.pop("environment")
    assert seen == {
        "pid": 1,
        "user": [65534, 65534],
        "capabilities": [0, 0, 0, 0],
        "seccomp": "2",
        "no_new_privs": "1",
        "interfaces": ["lo"],
        "resolvers": [],
        "search": False,
        "localhost": "127.0.0.1",
        "name": "gaierror",
        "connect": "OSError",
        "hostname": "sandbox",
        "directory": "/sandbox",
        "root": "OSError",
        "run": "PermissionError",
        "tmp program": "PermissionError",
        "var tmp program": "PermissionError",
        "sandbox program": None,
        "core": [0, 0],
        "host mounts": ["/etc/hostname"],
    }
    assert "s3cr3t" not in environment.values()
    assert [name for name in environment if name.startswith(("JPY_", "JUPYTER_"))] == []
    assert environment["HOME"] == "/sandbox"
    assert environment["OMP_NUM_THREADS"] == "1"


def test_a_tmpfs_ends_at_its_size(start: Callable[..., DockerSandbox], engine_image: str) -> None:
    code = (
        "for path in ('/tmp/x', '/sandbox/x', '/var/tmp/x', '/dev/shm/x'):\n"
        "    with open(path, 'wb', buffering=0) as file:\n"
        "        print(file.write(bytes(20 * 2**20)) // 2**20)\n"
    )

    received = read_all(start(code, Policy(image=engine_image, tmpfs_bytes=2 * MIB)))

    assert received.split() == [b"2", b"2", b"1", b"16"]


def test_proxies_of_dockers_configuration_stay_out(
    start: Callable[..., DockerSandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxies = {"default": {"httpProxy": "http://user:SECRETPW@192.0.2.1:3128"}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    received = read_all(start("import os; print(dict(os.environ))"))

    assert b"SECRETPW" not in received
    assert b"proxy" not in received.lower()


# Images and policies that cannot be run.


def import_image(engine: Any, member: str | None, data: bytes) -> str:
    """Make an image with at most one file."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        if member is not None:
            info = tarfile.TarInfo(member)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    name = f"sandbox-kernel-test:{uuid.uuid4().hex}"
    engine.import_image_from_data(archive.getvalue(), *name.split(":"))
    return name


@pytest.fixture
def temporary_image(engine: Any) -> Iterator[Callable[..., str]]:
    names: list[str] = []

    def make(member: str | None = None, data: bytes = b"") -> str:
        names.append(import_image(engine, member, data))
        return names[-1]

    yield make
    for name in names:
        engine.remove_image(name, force=True)


@pytest.fixture
def volume_image(engine: Any, engine_image: str) -> Iterator[str]:
    name = f"sandbox-kernel-test:{uuid.uuid4().hex}"
    dockerfile = io.BytesIO(f"FROM {engine_image}\nVOLUME /data\n".encode())
    list(engine.build(fileobj=dockerfile, tag=name, rm=True))
    yield name
    engine.remove_image(name, force=True)


def test_an_image_with_a_volume_is_refused(
    start: Callable[..., DockerSandbox], volume_image: str, engine: Any
) -> None:
    before = engine.volumes()["Volumes"] or []

    with pytest.raises(SandboxUnavailableError, match="`VOLUME /data`") as caught:
        start("pass", Policy(image=volume_image))

    assert caught.value.hint == "use an image without `VOLUME`"
    assert (engine.volumes()["Volumes"] or []) == before


def test_an_image_without_python_is_named(
    start: Callable[..., DockerSandbox], temporary_image: Callable[..., str]
) -> None:
    image = temporary_image()

    with pytest.raises(SandboxUnavailableError) as caught:
        start("pass", Policy(image=image))

    assert caught.value.message == f"the image `{image}` has no `python3`"


def test_an_image_for_another_processor_says_so(
    start: Callable[..., DockerSandbox], temporary_image: Callable[..., str]
) -> None:
    # An ELF header for a machine number that nobody has.
    header = b"\x7fELF\2\1\1" + bytes(9) + b"\2\0\xfe\xca\1\0\0\0" + bytes(100)
    image = temporary_image("usr/bin/python3", header)

    # Whether the start already fails depends on the runtime's version.
    try:
        sandbox = start("pass", Policy(image=image))
    except SandboxUnavailableError as error:
        said = error.message
    else:
        read_all(sandbox)
        said = sandbox.why()

    assert "another processor" in said or "exec format error" in said


@pytest.mark.parametrize(
    ("image", "hint"),
    [
        pytest.param("nowhere/python:1", "pull it: `docker pull nowhere/python:1`", id="other"),
        pytest.param(
            "sandbox-kernel/python:absent", "build it: `sandbox-kernel image build`", id="ours"
        ),
    ],
)
def test_a_missing_image_is_named_with_its_command(
    start: Callable[..., DockerSandbox], image: str, hint: str
) -> None:
    with pytest.raises(SandboxUnavailableError) as caught:
        start("pass", Policy(image=image))

    assert caught.value.message == f"the engine has no image `{image}`"
    assert str(caught.value.hint).startswith(hint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"runtime": "absent"}, "the engine has no runtime `absent`", id="runtime"),
        pytest.param({"cpus": 1000.0}, "fewer CPUs than the policy's `cpus`", id="cpus"),
    ],
)
def test_what_the_engine_refuses_is_named(
    start: Callable[..., DockerSandbox], engine_image: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(SandboxUnavailableError, match=message) as caught:
        start("pass", Policy(image=engine_image, **change))

    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SandboxUnavailableError("no")])
def test_a_create_that_ends_early_leaves_nothing(
    start: Callable[..., DockerSandbox],
    adapter: DockerAdapter,
    labels: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    seen: list[str] = []

    def attach(engine: Any, container: str, request: Any) -> None:
        seen.extend(info.status for info in adapter.list(labels))
        raise error

    monkeypatch.setattr(docker_engine.Engine, "_attach", attach)

    with pytest.raises(type(error)):
        start(SLEEP)

    assert seen == ["created"]
    assert adapter.list(labels) == []


# Engines that are none.


class FakeEngine(threading.Thread):
    """A unix socket that answers by a table of (status, headers, body).

    Its keys are a method and the last part of a path, or a method alone; who asks for
    anything else waits for ever.
    """

    def __init__(self, path: Path, answers: dict[str, tuple[int, str, object]]) -> None:
        super().__init__(daemon=True)
        self.url = f"unix://{path}"
        self.asked: list[str] = []
        self._answers = answers
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                caller = self._listener.accept()[0]
                self._open.append(caller)
                self._answer(caller)

    def _answer(self, caller: socket.socket) -> None:
        head = caller.recv(65536).decode(errors="replace")
        method, _, rest = head.partition(" ")
        path = rest.split(" ")[0].split("?")[0]
        self.asked.append(f"{method} {path}")
        short = f"{method} {path.rpartition('/')[2]}"
        answer = self._answers.get(short, self._answers.get(method))
        if "/images/" in path:
            # What it would say of the image's labels.
            answer = self._answers.get("GET image", (404, "", {"message": "no such image"}))
        if answer is None:
            return
        status, headers, body = answer
        data = json.dumps(body).encode()
        caller.sendall(
            f"HTTP/1.1 {status} X\r\n{headers}Content-Length: {len(data)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + data
        )
        caller.close()

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join(5)
        for caller in self._open:
            caller.close()


PONG = (200, "Api-Version: 1.41\r\n", "OK")
GONE = (404, "", {"message": "no such container"})


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[..., FakeEngine]]:
    fakes: list[FakeEngine] = []

    def make(**answers: tuple[int, str, object] | None) -> FakeEngine:
        table = {name.replace("__", " "): answer for name, answer in answers.items() if answer}
        fakes.append(FakeEngine(tmp_path / f"{len(fakes)}.sock", table))
        return fakes[-1]

    yield make
    for engine in fakes:
        engine.stop()


@pytest.fixture
def hung_engine(fake: Callable[..., FakeEngine], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(docker_engine, "CALL_SECONDS", 0.3)
    monkeypatch.setattr(docker_engine, "KILL_SECONDS", 0.3)
    return fake().url


def create_at(url: str) -> SandboxUnavailableError:
    """Try to make a sandbox at an address, and return what was said."""
    with pytest.raises(SandboxUnavailableError) as caught:
        DockerAdapter(DockerSettings(host=url)).create(Policy(), ["python3"], {}, ignore)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "\n" not in caught.value.message
    assert "Traceback" not in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_no_engine(tmp_path: Path) -> None:
    error = create_at(f"unix://{tmp_path}/absent.sock")

    assert error.message == f"there is no docker engine at `unix://{tmp_path}/absent.sock`"


def test_an_engine_that_is_down(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "down.sock"))

    error = create_at(f"unix://{tmp_path}/down.sock")

    assert error.message == f"no docker engine listens at `unix://{tmp_path}/down.sock`"


def test_a_socket_of_others() -> None:
    # Not below `tmp_path`, whose parents other users cannot enter.
    path = Path(f"/tmp/sandbox-kernel-test-{uuid.uuid4().hex}.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0)
        before = os.geteuid()
        try:
            # Root may connect to anything.
            if before == 0:
                os.seteuid(65534)
            error = create_at(f"unix://{path}")
        finally:
            os.seteuid(before)
            path.unlink()

    assert error.message == f"this user may not use the docker engine at `unix://{path}`"
    assert "group `docker`" in str(error.hint)


def test_an_engine_that_hangs(hung_engine: str) -> None:
    before = time.monotonic()

    error = create_at(hung_engine)

    assert error.message.endswith("did not answer within 0.3 seconds")
    assert time.monotonic() - before < 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param((200, "", "hello"), "is not a docker engine", id="web-server"),
        pytest.param((200, "Api-Version: x\r\n", ""), "has API 'x'", id="no-version"),
        pytest.param((200, "Api-Version: 1.40\r\n", ""), "has API '1.40'", id="engine-of-2019"),
    ],
)
def test_what_is_no_engine_of_ours(
    fake: Callable[..., FakeEngine], answer: tuple[int, str, object], message: str
) -> None:
    error = create_at(fake(GET___ping=answer).url)

    assert message in error.message


def test_an_address_that_is_none() -> None:
    error = create_at("ftp://192.0.2.1")

    assert error.message.startswith("docker's own settings cannot be used")


def test_a_limit_that_the_engine_discards_is_refused(fake: Callable[..., FakeEngine]) -> None:
    inspected = {"Config": {}, "HostConfig": {"Memory": 0}, "Created": "2026-01-01T00:00:00Z"}
    engine = fake(
        GET___ping=PONG,
        POST__create=(201, "", {"Id": "abc", "Warnings": []}),
        GET__json=(200, "", inspected),
        DELETE=GONE,
    )

    error = create_at(engine.url)

    assert "`Memory` is `0` and not `536870912`" in error.message
    assert "cgroup v2" in str(error.hint)
    *asked, removed = engine.asked
    assert asked == [
        "GET /_ping",
        "GET /v1.41/images/sandbox-kernel/python/json",
        "POST /v1.41/containers/create",
        "GET /v1.41/containers/abc/json",
    ]
    assert removed.startswith("DELETE /v1.41/containers/sandbox-kernel-")


def test_an_engine_is_spoken_to_in_its_own_version(fake: Callable[..., FakeEngine]) -> None:
    engine = fake(GET___ping=(200, "Api-Version: 1.52\r\n", "OK"), GET__json=(200, "", []))

    DockerAdapter(DockerSettings(host=engine.url)).list({})

    assert engine.asked == ["GET /_ping", "GET /v1.52/containers/json"]


CREATED = (201, "", {"Id": "abc"})


@pytest.mark.parametrize(
    ("created", "inspected"),
    [
        pytest.param((200, "", "<html>"), None, id="created-text"),
        pytest.param((201, "", []), None, id="created-list"),
        pytest.param((201, "", {}), None, id="created-without-id"),
        pytest.param(CREATED, (200, "", []), id="inspected-list"),
        pytest.param(CREATED, (200, "", {"Config": [1], "HostConfig": "x"}), id="inspected-odd"),
    ],
)
def test_an_answer_of_another_form_is_no_engines(
    fake: Callable[..., FakeEngine],
    created: tuple[int, str, object],
    inspected: tuple[int, str, object] | None,
) -> None:
    engine = fake(GET___ping=PONG, POST__create=created, GET__json=inspected, DELETE=GONE)

    error = create_at(engine.url)

    assert error.message.endswith("is not a docker engine")
    assert engine.asked[-1].startswith("DELETE ")


@pytest.mark.parametrize("entry", ["text", {}, {"Id": "a", "Labels": 1, "Created": 1, "State": ""}])
def test_a_list_of_another_form_is_no_engines(
    fake: Callable[..., FakeEngine], entry: object
) -> None:
    engine = fake(GET___ping=PONG, GET__json=(200, "", [entry]))

    with pytest.raises(SandboxUnavailableError, match="is not a docker engine"):
        DockerAdapter(DockerSettings(host=engine.url)).list({})


@pytest.mark.parametrize(
    ("status", "message"),
    [
        pytest.param(404, "No such container: abc", id="gone"),
        pytest.param(409, "removal of container abc is already in progress", id="going"),
    ],
)
def test_what_is_gone_anyway_is_removed(
    fake: Callable[..., FakeEngine], status: int, message: str
) -> None:
    engine = fake(GET___ping=PONG, DELETE=(status, "", {"message": message}))

    DockerAdapter(DockerSettings(host=engine.url)).remove("abc/../x")

    assert engine.asked[-1] == "DELETE /v1.41/containers/abc%2F..%2Fx"


def test_what_cannot_be_removed_is_an_error(fake: Callable[..., FakeEngine]) -> None:
    engine = fake(GET___ping=PONG, DELETE=(500, "", {"message": "device or resource busy"}))

    with pytest.raises(SandboxUnavailableError, match="device or resource busy"):
        DockerAdapter(DockerSettings(host=engine.url)).remove("abc")


def test_an_engine_that_hangs_later_is_given_up(
    fake: Callable[..., FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "CREATE_SECONDS", 0.3)
    monkeypatch.setattr(docker_engine, "KILL_SECONDS", 0.3)

    error = create_at(fake(GET___ping=PONG).url)

    assert error.message.endswith("did not answer within 0.3 seconds")


def test_the_engines_own_words_are_cut_and_quoted(fake: Callable[..., FakeEngine]) -> None:
    refusal = (500, "", {"message": "\x1b[31mno\n" + "x" * 1000})
    engine = fake(GET___ping=PONG, POST__create=refusal, DELETE=GONE)

    error = create_at(engine.url)

    assert "'\\x1b[31mno\\nxxx" in error.message
    assert len(error.message) < 400


# Which engine.


def write_context(folder: Path, name: str, host: str) -> None:
    meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    endpoints = {"docker": {"Host": host, "SkipTLSVerify": False}}
    text = json.dumps({"Name": name, "Metadata": {}, "Endpoints": endpoints})
    (meta / "meta.json").write_text(text)


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def where(host: str = "") -> tuple[str, str]:
    endpoint = DockerAdapter(DockerSettings(host=host)).endpoint()
    return endpoint.url, endpoint.why


def test_the_default_engine(docker_config: Path) -> None:
    assert where() == ("unix:///var/run/docker.sock", "the default")


def test_the_current_context_is_used(docker_config: Path) -> None:
    write_context(docker_config, "rootless", "unix:///run/user/1000/docker.sock")
    (docker_config / "config.json").write_text('{"currentContext": "rootless"}')

    url, why = where()

    assert url == "unix:///run/user/1000/docker.sock"
    assert why == "docker context `rootless`, the current one"


def test_each_source_wins_over_the_next(
    docker_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_context(docker_config, "one", "unix:///one.sock")
    write_context(docker_config, "two", "unix:///two.sock")
    (docker_config / "config.json").write_text('{"currentContext": "one"}')

    monkeypatch.setenv("DOCKER_CONTEXT", "two")
    by_context = where()
    monkeypatch.setenv("DOCKER_HOST", "unix:///host.sock")
    by_host = where()
    by_settings = where("unix:///settings.sock")

    assert by_context == ("unix:///two.sock", "docker context `two`, from `DOCKER_CONTEXT`")
    assert by_host == ("unix:///host.sock", "from `DOCKER_HOST`")
    assert by_settings == ("unix:///settings.sock", "from the configuration")


@pytest.mark.parametrize("meta", [pytest.param(None, id="absent"), pytest.param("{", id="damaged")])
def test_a_context_that_cannot_be_read_is_not_replaced_by_the_default(
    docker_config: Path, monkeypatch: pytest.MonkeyPatch, meta: str | None
) -> None:
    if meta is not None:
        write_context(docker_config, "mine", "unix:///mine.sock")
        next(docker_config.glob("contexts/meta/*/meta.json")).write_text(meta)
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")

    with pytest.raises(SandboxUnavailableError, match=r"context `mine` .* does not exist"):
        where()


def test_an_engine_behind_ssh_is_refused_with_a_way(docker_config: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match="ssh://me@there") as caught:
        where("ssh://me@there")

    assert "ssh -NL" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["{", "[]", '{"currentContext": null}', "\xff", "[" * 100_000])
def test_a_configuration_that_cannot_be_read_is_the_default(docker_config: Path, text: str) -> None:
    (docker_config / "config.json").write_bytes(text.encode("latin-1"))

    assert where() == ("unix:///var/run/docker.sock", "the default")


def test_without_dockers_own_folder_the_one_at_home_counts(
    docker_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(docker_config))
    monkeypatch.setenv("DOCKER_CONFIG", str(docker_config / "absent"))
    (docker_config / ".docker").mkdir()
    (docker_config / ".docker" / "config.json").write_text('{"currentContext": "at-home"}')

    with pytest.raises(SandboxUnavailableError, match="`at-home`"):
        where()


@pytest.mark.parametrize(
    ("verify", "folder", "tls"),
    [
        pytest.param(None, None, None, id="unset"),
        pytest.param("", "", None, id="empty"),
        pytest.param("1", None, ("~/.docker", True), id="verify"),
        pytest.param(None, "/certs", ("/certs", False), id="folder"),
        pytest.param("1", "/certs", ("/certs", True), id="both"),
    ],
)
def test_dockers_variables_say_what_tls_is(
    docker_config: Path,
    monkeypatch: pytest.MonkeyPatch,
    verify: str | None,
    folder: str | None,
    tls: tuple[str, bool] | None,
) -> None:
    for name, value in (("DOCKER_TLS_VERIFY", verify), ("DOCKER_CERT_PATH", folder)):
        if value is not None:
            monkeypatch.setenv(name, value)

    found = docker_context.find("tcp://192.0.2.1:2376").tls

    files = None if tls is None else Path(tls[0]).expanduser()
    assert found == (
        files
        and docker_address.Tls(
            ca=f"{files}/ca.pem",
            cert=f"{files}/cert.pem",
            key=f"{files}/key.pem",
            verify=bool(tls and tls[1]),
        )
    )


def test_a_context_brings_its_certificates(
    docker_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_context(docker_config, "far", "tcp://192.0.2.1:2376")
    meta = next(docker_config.glob("contexts/meta/*"))
    files = docker_config / "contexts" / "tls" / meta.name / "docker"
    files.mkdir(parents=True)
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (files / name).write_text("")
    monkeypatch.setenv("DOCKER_CONTEXT", "far")

    found = docker_context.find("").tls

    assert found == docker_address.Tls(
        ca=f"{files}/ca.pem", cert=f"{files}/cert.pem", key=f"{files}/key.pem", verify=True
    )


def test_a_sandbox_needs_no_vendor_from_start_to_end(
    engine_image: str, labels: dict[str, str], docker_config: Path
) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", NO_VENDOR, engine_image, json.dumps(labels)],
        stdout=subprocess.PIPE,
        check=True,
        cwd=Path(__file__).parents[1],
    ).stdout

    assert printed == b"exited 3 []\n"


NO_VENDOR = """
import json, sys
from sandbox_kernel import adapters
from sandbox_kernel.adapters.docker import DockerAdapter, DockerSettings
from sandbox_kernel.policy import Policy
image, labels = sys.argv[1], json.loads(sys.argv[2])
adapters.preload("docker")
adapter = DockerAdapter(DockerSettings())
argv = ["python3", "-I", "-c", "raise SystemExit(3)"]
sandbox = adapter.create(Policy(image=image), argv, labels, print)
while sandbox.recv():
    pass
why = sandbox.why()
sandbox.kill()
adapter.list(labels)
print(why, sorted({"docker", "requests", "urllib3"} & sys.modules.keys()))
"""


# The same stream over TCP, plain and with TLS.


class Relay(threading.Thread):
    """Carries each TCP connection to the engine's unix socket."""

    def __init__(self, path: str, tls: ssl.SSLContext | None) -> None:
        super().__init__(daemon=True)
        self._path, self._tls = path, tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._workers: list[threading.Thread] = []
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                caller = self._listener.accept()[0]
                self._workers.append(threading.Thread(target=self._serve, args=(caller,)))
                self._workers[-1].start()

    def _serve(self, caller: socket.socket) -> None:
        with caller, socket.socket(socket.AF_UNIX) as engine, suppress(OSError):
            engine.connect(self._path)
            if self._tls is None:
                self._pump(caller, engine)
            else:
                with self._tls.wrap_socket(caller, server_side=True) as wrapped:
                    self._pump(wrapped, engine)

    @staticmethod
    def _pump(caller: socket.socket, engine: socket.socket) -> None:
        # One thread moves both ways: a TLS socket is not for two.
        caller.settimeout(0.002)
        engine.settimeout(0.002)
        while True:
            for source, sink in ((caller, engine), (engine, caller)):
                try:
                    data = source.recv(65536)
                except TimeoutError:
                    continue
                if not data:
                    return
                sink.settimeout(20)
                sink.sendall(data)
                sink.settimeout(0.002)

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join(5)
        for worker in self._workers:
            worker.join(5)


@pytest.fixture
def relay(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    url = DockerAdapter(DockerSettings()).endpoint().url
    if not url.startswith("unix://"):
        pytest.skip("the engine has no unix socket")
    context = None
    if request.param != "plain":
        if shutil.which("openssl") is None:
            pytest.skip("`openssl` is missing")
        make_certificate(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "" if request.param == "unverified" else "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
        if request.param in ("unverified", "untrusted"):
            (tmp_path / "other").mkdir()
            make_certificate(tmp_path / "other")
            shutil.copy(tmp_path / "other" / "ca.pem", tmp_path / "ca.pem")
    relay = Relay(url.removeprefix("unix://"), context)
    yield relay.url
    relay.stop()


def make_certificate(folder: Path) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    shutil.copy(folder / "cert.pem", folder / "ca.pem")


@pytest.mark.parametrize("relay", ["plain", "tls", "unverified"], indirect=True)
def test_a_remote_engine_carries_the_same_bytes(
    relay: str, labels: dict[str, str], engine_image: str
) -> None:
    adapter = DockerAdapter(DockerSettings(host=relay))
    argv = ["python3", "-I", "-u", "-c", ECHO]
    sandbox = adapter.create(Policy(image=engine_image), argv, labels, ignore)
    data = os.urandom(MIB)
    writer = threading.Thread(target=sandbox.send, args=(data,))
    writer.start()

    received = read(sandbox, len(data))
    writer.join(10)
    sandbox.kill()

    assert received == data


@pytest.mark.parametrize("relay", ["untrusted"], indirect=True)
def test_an_engine_that_nobody_vouches_for_is_not_used(relay: str) -> None:
    error = create_at(relay)

    assert error.message == f"the connection to the docker engine at `{relay}` failed"
