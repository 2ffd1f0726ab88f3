"""The guest as source over stdin: what is sent, and what becomes of it in an interpreter."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from sandbox_kernel import bootstrap
from tests.guests import SETTINGS, sources

BOOT = "sandbox_kernel.guest.boot"


def unpacked(payload: bytes) -> dict[str, object]:
    """What a payload holds."""
    length, _, body = payload.partition(b"\n")
    assert int(length) == len(body)
    bundle = json.loads(zlib.decompress(base64.b64decode(body)))
    assert isinstance(bundle, dict)
    return bundle


def ran(stdin: bytes, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """The loader's own process, fed with these bytes and then with the end of the stream."""
    command = [sys.executable, *bootstrap.ARGV[1:]]
    return subprocess.run(
        command, check=False, input=stdin, capture_output=True, cwd=cwd, timeout=20
    )


def test_command_is_constant_and_bears_no_surprise() -> None:
    argv = bootstrap.ARGV

    assert argv[:4] == ("python3", "-I", "-u", "-c")
    assert len(argv) == 5
    assert all(part.isascii() for part in argv)
    assert len(argv[4]) < 1024


def test_payload_is_ascii_and_always_the_same() -> None:
    first = bootstrap.payload(SETTINGS)
    again = bootstrap.payload(dict(reversed(SETTINGS.items())))

    assert first == again
    assert first.isascii()


def test_settings_travel_with_their_types() -> None:
    settings: dict[str, bootstrap.Setting] = {"a": True, "b": 1, "c": 1.5, "d": "\u20ac\n"}

    bundle = unpacked(bootstrap.payload(settings))

    assert repr(bundle["settings"]) == repr(settings)


def test_settings_that_compare_equal_are_not_mixed_up() -> None:
    bootstrap.payload({"a": True})

    bundle = unpacked(bootstrap.payload({"a": 1}))

    assert repr(bundle["settings"]) == "{'a': 1}"


def test_all_of_the_guest_is_sent_and_nothing_of_the_host() -> None:
    names = [name for name, _ in bootstrap.modules()]

    guest = Path(bootstrap.__file__).with_name("guest")
    files = {path.stem for path in guest.glob("*.py")} - {"__init__"}
    assert names[0] == BOOT
    assert set(names) == {
        "sandbox_kernel", "sandbox_kernel.errors", "sandbox_kernel.wire", "sandbox_kernel.guest",
        *(f"sandbox_kernel.guest.{name}" for name in files),
    }  # fmt: skip
    assert dict(bootstrap.modules())["sandbox_kernel"] == ""


@pytest.mark.parametrize("count", [0, 1, 3, 6, 100, -1], ids=lambda count: f"first-{count}-bytes")
def test_host_that_leaves_early_is_no_error(count: int) -> None:
    process = ran(bootstrap.payload(SETTINGS)[:count])

    assert (process.returncode, process.stdout, process.stderr) == (0, b"", b"")


def test_not_a_byte_after_the_payload_is_read() -> None:
    boot = "import sys\ndef run(modules, settings): sys.stdout.write(sys.stdin.read())"

    process = ran(bootstrap.pack({}, ((BOOT, boot),)) + b"the rest")

    assert process.stdout == b"the rest"


def test_settings_reach_the_first_module() -> None:
    boot = "def run(modules, settings): print(settings['image'], len(modules))"

    process = ran(bootstrap.pack({"image": "x"}, ((BOOT, boot), ("b", ""))))

    assert process.stdout == b"x 2\n"


def test_files_beside_the_guest_do_not_stand_in_for_it(tmp_path: Path) -> None:
    for name in ("sandbox_kernel", "json", "wire"):
        (tmp_path / f"{name}.py").write_text("print('taken')")

    process = ran(bootstrap.payload(SETTINGS), cwd=tmp_path)

    assert b"taken" not in process.stdout


def test_errors_of_the_guest_say_where() -> None:
    broken = {**dict(sources()), "sandbox_kernel.guest.supervisor": "\n1 / 0"}

    process = ran(bootstrap.pack(SETTINGS, tuple(broken.items())))

    assert process.returncode == 1
    assert b'File "<sandbox_kernel.guest.supervisor>", line 2' in process.stderr
