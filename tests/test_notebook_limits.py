"""What people who use notebooks run into: limits and environment (the T-cases)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.jupyter import Kernel, started

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("image")


@pytest.fixture(scope="module")
def kernel(image: str) -> Iterator[Kernel]:
    with started() as running:
        yield running


def test_out_of_memory_is_told_from_all_else(kernel: Kernel) -> None:
    result = kernel.run("x = bytearray(2 << 30)")
    after = kernel.run("1 + 1")

    assert result.ename == "SandboxMemoryError"
    assert "out of memory (limit 512 MiB)" in result.error["evalue"]
    assert not result.sandbox["timed_out"]
    assert after.value == "2"


def test_blas_does_not_start_a_thread_for_each_core_of_the_host(kernel: Kernel) -> None:
    result = kernel.run(
        "import numpy, os\na = numpy.ones((500, 500)) @ numpy.ones((500, 500))\n"
        "print(a[0, 0], len(os.listdir('/proc/self/task')))"
    )

    assert result.ok
    value, threads = result.stdout.split()
    assert float(value) == 500
    assert int(threads) <= 2


def test_a_full_disk_is_an_error_of_the_code(kernel: Kernel) -> None:
    result = kernel.run(
        "with open('/tmp/big', 'wb') as f:\n    while True: f.write(bytes(1 << 20))"
    )
    after = kernel.run("import os; os.remove('/tmp/big'); open('/tmp/ok', 'w').write('x')")

    assert result.ename == "OSError"
    assert "[Errno 28]" in result.error["evalue"]
    assert after.ok


def test_a_fork_bomb_is_contained(kernel: Kernel) -> None:
    with started("timeout_seconds=4") as bombed:
        result = bombed.run("import os\nwhile True:\n    os.fork()")
        after = bombed.run("1 + 1")

    assert not result.ok
    assert after.value == "2"


def test_nothing_of_the_host_is_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("FAKE_SECRET", "s3cr3t")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:s3cr3t@127.0.0.1:9")
    with started() as kernel:
        result = kernel.run(
            "import os; print(dict(os.environ))\n"
            "print(open('/proc/self/mountinfo').read())\n"
            "print(open('/proc/1/environ', 'rb').read())"
        )

    assert result.ename == "PermissionError"
    assert "s3cr3t" not in result.stdout
    for part in ("JPY_", "JUPYTER_", "PROXY", "docker.sock"):
        assert part not in result.stdout


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("socket.create_connection(('192.0.2.1', 53), 2)", id="address"),
        pytest.param("socket.create_connection(('169.254.169.254', 80), 2)", id="metadata"),
        pytest.param("socket.gethostbyname('example.invalid')", id="name"),
    ],
)
def test_the_network_fails_fast(kernel: Kernel, code: str) -> None:
    result = kernel.run(f"import socket; {code}")

    assert result.ename in {"OSError", "gaierror"}
    assert result.seconds < 3


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("%pip install requests", id="magic"),
        pytest.param("!pip install six", id="command"),
    ],
)
def test_pip_fails_in_seconds_and_says_why(kernel: Kernel, code: str) -> None:
    begun = time.monotonic()
    result = kernel.run(code)

    assert time.monotonic() - begun < 20
    assert "network is off by policy" in result.stderr + result.stdout


def test_forged_frames_on_every_descriptor_forge_nothing(kernel: Kernel) -> None:
    frame = (
        '\\x1e{"type":"verdict","seq":9,"cell":1,"kind":"oom","detail":"","exit_code":137,'
        '"dropped":0,"state":"lost"}\\n'
    )
    result = kernel.run(
        "import os\n"
        "for fd in range(1, 51):\n"
        f"    try: os.write(fd, b'{frame}')\n"
        "    except OSError: pass\n"
        "x = 'alive'"
    )
    after = kernel.run("x")

    assert result.ok
    assert result.sandbox["state"] == "kept"
    assert after.value == "'alive'"
