"""Fatal cells, going back, and `%sandbox`, as a notebook's user meets them."""

from __future__ import annotations

import re
import statistics
import time
from typing import TYPE_CHECKING

import pytest

from tests.jupyter import Kernel, started

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = "import numpy as np, os\nbig = np.ones(25_000_000)\nx = 1"


@pytest.fixture(scope="module")
def kernel(image: str) -> Iterator[Kernel]:
    with started("timeout_seconds=1", "grace_seconds=0.5", "checkpoints=3") as kernel:
        yield kernel


@pytest.mark.parametrize(
    ("code", "ename", "says"),
    [
        pytest.param("max(iter(int, 1))", "SandboxTimeoutError", "had to be killed", id="deadline"),
        pytest.param("os._exit(3)", "SandboxCrashError", "status 3", id="exit"),
        pytest.param("os.kill(os.getpid(), 11)", "SandboxCrashError", "SIGSEGV", id="signal"),
        pytest.param(
            "l = []\nwhile True: l.append(np.ones(2**17))",
            "SandboxMemoryError",
            "out of memory",
            id="memory",
        ),
    ],
)
def test_fatal_cell_says_that_variables_are_back(
    kernel: Kernel, code: str, ename: str, says: str
) -> None:
    kernel.run(DATA)

    fatal = kernel.run(f"x = 2\n{code}")
    after = kernel.run("x, big.sum()")

    assert fatal.ename == ename
    assert says in fatal.error["evalue"]
    assert "variables are as they were before this cell" in fatal.error["evalue"]
    assert (fatal.sandbox["state"], fatal.sandbox["checkpoint"]) == ("restored", True)
    assert after.value == "(1, np.float64(25000000.0))"
    assert after.content["execution_count"] == fatal.content["execution_count"] + 1


def test_killed_cell_is_answered_soon_after_its_grace(kernel: Kernel) -> None:
    kernel.run(DATA)

    fatal = kernel.run("max(iter(int, 1))")
    after = kernel.run("x")

    # A second until the deadline, half a second of grace.
    assert fatal.seconds + after.seconds < 1.5 + 0.25
    assert after.value == "1"


def test_cell_with_a_thread_runs_without_a_net_and_says_so_once(kernel: Kernel) -> None:
    kernel.run(
        "import threading\nstop = threading.Event()\nthreading.Thread(target=stop.wait).start()"
    )
    time.sleep(0.2)

    first, second = kernel.run("y = 1"), kernel.run("y = 2")
    kernel.run("import time; stop.set(); time.sleep(.2)")
    third = kernel.run("y = 3")

    assert "no checkpoint: a library or the code has threads running" in first.stderr
    assert second.stderr == third.stderr == ""
    nets = [result.sandbox["checkpoint"] for result in (first, second, third)]
    assert nets == [False, False, True]


def test_variables_from_before_the_last_checkpoint_are_said_to_be_so(kernel: Kernel) -> None:
    kernel.run("import os, threading\nx = 1")
    undone = kernel.run(
        "x = 2; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    time.sleep(0.2)

    fatal = kernel.run("os._exit(1)")

    count = undone.content["execution_count"]
    assert f"variables are as they were before `In [{count}]`" in fatal.error["evalue"]
    assert kernel.run("x").value == "1"


def test_without_checkpoint_variables_are_lost(image: str) -> None:
    with started("checkpoint=false") as kernel:
        kernel.run("x = 1")
        fatal = kernel.run("import os; os._exit(1)")

        assert "all variables are lost" in fatal.error["evalue"]
        assert (fatal.sandbox["state"], fatal.sandbox["checkpoint"]) == ("lost", False)
        assert kernel.run("'x' in globals()").value == "False"


# --- %sandbox -----------------------------------------------------------------------------------


def test_rewind_goes_back(kernel: Kernel) -> None:
    kernel.run("big = None")
    results = [kernel.run(f"x = {number}") for number in range(5)]
    time.sleep(0.3)

    back = kernel.run("%sandbox rewind 2")

    count = results[3].content["execution_count"]
    assert back.ok
    assert f"variables are as they were before `In [{count}]`" in back.stderr
    assert back.sandbox["state"] == "restored"
    assert kernel.run("x").value == "2"


def test_rewind_undoes_the_last_cell(kernel: Kernel) -> None:
    kernel.run("big = None; x = 1")
    kernel.run("x = 2")
    time.sleep(0.3)

    assert kernel.run("%sandbox rewind").ok
    assert kernel.run("x").value == "1"


def test_rewind_too_far_says_what_is_kept(kernel: Kernel) -> None:
    kernel.run("big = None")
    kernel.run("x = 1")
    time.sleep(0.3)

    refused = kernel.run("%sandbox rewind 50")

    assert refused.ename == "SandboxPolicyError"
    assert "cannot go back 50 cells" in refused.error["evalue"]
    assert "1: to before `In [" in refused.error["evalue"]
    assert kernel.run("x").value == "1"


def test_sandbox_shows_what_it_is(kernel: Kernel) -> None:
    # Old copies are kept only while there is room for them.
    kernel.run("big = None")
    kernel.run("x = 1")
    time.sleep(0.3)

    shown = kernel.run("%sandbox").bundles[0]

    assert set(shown) == {"text/plain", "text/html"}
    for word in ("docker", "1 s a cell", "512 MiB used", "CPU time", "1: to before In ["):
        assert word in shown["text/plain"]
        assert word in shown["text/html"]
    assert re.match(r"<table.*</table>", shown["text/html"], re.DOTALL)


def test_sandbox_cells_do_not_reach_the_sandbox(kernel: Kernel) -> None:
    kernel.run("%sandbox")

    assert "%sandbox" not in kernel.run("In[-3:]").value.replace("In[-3:]", "")


def test_cell_can_tighten_its_timeout(kernel: Kernel) -> None:
    kernel.run("import time")

    tight = kernel.run("%%sandbox --timeout 0.2\ntime.sleep(9)")

    assert tight.ename == "SandboxTimeoutError"
    assert "longer than 0.2 s" in tight.error["evalue"]
    assert tight.seconds < 0.9


def test_magic_may_follow_in_a_tightened_cell(kernel: Kernel) -> None:
    assert kernel.run("%%sandbox --timeout 0.5\n%%sh\necho inside").stdout == "inside\n"


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("%%sandbox --timeout 1000\n1", id="loosened"),
        pytest.param("%%sandbox --timeout nan\n1", id="no-number"),
        pytest.param("%%sandbox --network\n1", id="unknown-option"),
        pytest.param("%sandbox network on", id="unknown-word"),
        pytest.param("%sandbox rewind -1", id="forward"),
    ],
)
def test_what_a_cell_may_not_ask_is_refused(kernel: Kernel, code: str) -> None:
    refused = kernel.run(code)

    assert refused.ename == "SandboxPolicyError"
    assert "hint: " in refused.error["evalue"]
    assert refused.value is None


# --- what it costs --------------------------------------------------------------------------------


def test_cost_on_the_round_trip_is_small(image: str) -> None:
    quick = {}
    for checkpoint in ("true", "false"):
        with started(f"checkpoint={checkpoint}") as kernel:
            kernel.run(DATA)
            times = []
            for _ in range(30):
                time.sleep(0.1)
                times.append(kernel.run("x += 1").seconds)
            # Other work on the machine makes some slower, and none quicker.
            quick[checkpoint] = statistics.quantiles(times)[0]

    assert quick["true"] < quick["false"] * 1.2, quick
