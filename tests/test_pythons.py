"""The guest on the oldest and the newest Python, with IPython and without.

The bases are Debian's, made by `scripts/base.sh` as the project's own image is.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.jupyter import Kernel, started

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent

#: Debian release, and the Python it has.
RELEASES = {"bullseye": "3.9.", "sid": "3.14."}


def output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module", params=list(RELEASES))
def release(request: pytest.FixtureRequest, engine: object) -> str:
    return request.param


@pytest.fixture(scope="module")
def base(release: str) -> str:
    return output("scripts/base.sh", release)


@pytest.fixture(scope="module")
def plain(base: str) -> Iterator[Kernel]:
    with started(f"image={base}") as kernel:
        yield kernel


@pytest.fixture(scope="module")
def full(release: str, base: str) -> Iterator[Kernel]:
    tag = f"sandbox-kernel/python:{release}"
    wheels = output("scripts/wheels.sh", base)
    options = ("--base", base, "--wheels", wheels, "--tag", tag, "--if-changed")
    output(sys.executable, "-m", "sandbox_kernel", "image", "build", *options)
    with started(f"image={tag}") as kernel:
        yield kernel


@pytest.mark.timeout(900)
def test_the_version_is_what_the_release_has(plain: Kernel, release: str) -> None:
    result = plain.run("import sys; sys.version")

    assert (result.value or "").startswith(f"'{RELEASES[release]}")
    assert plain.client.kernel_info(reply=True, timeout=10)["content"]["language_info"][
        "version"
    ].startswith(RELEASES[release])


@pytest.mark.parametrize(
    ("code", "value"),
    [
        pytest.param("1 + 1", "2", id="expression"),
        pytest.param("_ + 1", "3", id="underscore"),
        pytest.param("import asyncio; await asyncio.sleep(0, 5)", "5", id="await"),
        pytest.param("import os; os.system('echo hi'); 7", "7", id="subprocess"),
        pytest.param("x = 3; x;", None, id="semicolon"),
    ],
)
def test_plain_python_runs_cells(plain: Kernel, code: str, value: str | None) -> None:
    result = plain.run(code)

    assert result.ok
    assert result.value == value


def test_plain_python_names_the_line_of_an_error(plain: Kernel) -> None:
    result = plain.run("def f():\n    return 1 / 0\nf()")

    text = "\n".join(result.error["traceback"])
    assert result.ename == "ZeroDivisionError"
    assert "line 2" in text
    assert "return 1 / 0" in text
    assert "sandbox_kernel" not in text


def test_plain_python_says_what_a_magic_needs(plain: Kernel) -> None:
    result = plain.run("%timeit 1")

    assert not result.ok
    assert "IPython" in result.error["evalue"] + result.stderr


def test_plain_python_completes_and_asks(plain: Kernel) -> None:
    plain.run("number = input('? ')", answer=lambda _: "41")
    reply = plain.client.complete("numb", reply=True, timeout=10)
    result = plain.run("int(number) + 1")

    assert "number" in reply["content"]["matches"]
    assert result.value == "42"


def test_plain_python_is_interrupted(plain: Kernel) -> None:
    plain.run("kept = 1")
    result = plain.run("while True: pass", meanwhile=lambda kernel: kernel.interrupt())

    assert result.ename == "KeyboardInterrupt"
    assert plain.run("kept").value == "1"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("code", "shown"),
    [
        pytest.param("%timeit -n1 -r1 1", "loop", id="magic"),
        pytest.param("!echo hi", "hi", id="command"),
        pytest.param("print(_ if False else 'hi')", "hi", id="print"),
    ],
)
def test_ipython_of_that_age_runs_cells(full: Kernel, code: str, shown: str) -> None:
    result = full.run(code)

    assert result.ok
    assert shown in result.stdout


def test_ipython_of_that_age_shows_figures_and_tables(full: Kernel) -> None:
    result = full.run(
        "import matplotlib.pyplot as plt, pandas as pd\nplt.plot([1, 2])\npd.DataFrame({'a': [1]})"
    )

    assert result.ok, result.messages
    assert any("image/png" in bundle for bundle in result.bundles)
    assert any("<table" in bundle.get("text/html", "") for bundle in result.bundles)


def test_ipython_of_that_age_crashes_and_goes_on(full: Kernel) -> None:
    result = full.run("import os; os._exit(3)")
    after = full.run("1 + 1")

    assert result.ename == "SandboxCrashError"
    assert after.value == "2"
