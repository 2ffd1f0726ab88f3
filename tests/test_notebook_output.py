"""What people who use notebooks run into: output and display (the T-cases)."""

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
    with started("timeout_seconds=60") as running:
        yield running


def images(kernel: Kernel, code: str) -> int:
    return sum("image/png" in bundle for bundle in kernel.run(code).bundles)


@pytest.mark.parametrize(
    ("code", "figures"),
    [
        pytest.param("plt.plot([1, 2]); plt.show()", 1, id="with-show"),
        pytest.param("plt.plot([1, 2])", 1, id="without-show"),
        pytest.param("plt.figure(); plt.plot([1]); plt.figure(); plt.plot([2])", 2, id="two"),
        pytest.param("1", 0, id="none-left-for-the-next-cell"),
    ],
)
def test_each_figure_is_shown_once(kernel: Kernel, code: str, figures: int) -> None:
    kernel.run("import matplotlib.pyplot as plt")

    assert images(kernel, code) == figures


@pytest.mark.parametrize(("fd", "name"), [(1, "stdout"), (2, "stderr")])
def test_utf8_is_not_broken_at_a_chunk_boundary(kernel: Kernel, fd: int, name: str) -> None:
    code = (
        f"import os, sys, time; os.write({fd}, b'caf\\xc3'); time.sleep(.5); "
        f"os.write({fd}, b'\\xa9\\n'); print('é' * 100000, file=sys.{name})"
    )
    result = kernel.run(code)

    assert getattr(result, name) == "café\n" + "é" * 100000 + "\n"


def test_a_progress_bar_stays_on_its_line(kernel: Kernel) -> None:
    code = (
        "import sys, time\n"
        "for i in range(100):\n"
        "    sys.stderr.write(f'\\r{i:3}%'); sys.stderr.flush(); time.sleep(.005)"
    )
    result = kernel.run(code)

    assert result.stderr == "".join(f"\r{i:3}%" for i in range(100))


def test_a_flood_is_cut_with_one_notice(kernel: Kernel) -> None:
    with started("timeout_seconds=1") as flooded:
        result = flooded.run("while True: print('x' * 1000)")
        after = flooded.run("1 + 1")

    size = len(result.stdout)
    assert 7 << 20 <= size <= 8 << 20
    assert result.stderr.count("output truncated") == 1
    assert result.ename == "SandboxTimeoutError"
    assert result.sandbox["truncated"]
    assert after.value == "2"


def test_a_flood_can_be_interrupted(kernel: Kernel) -> None:
    begun = []

    def stop(kernel: Kernel) -> None:
        time.sleep(1)
        begun.append(time.monotonic())
        kernel.interrupt()

    result = kernel.run("while True: print('x' * 1000)", meanwhile=stop)

    assert time.monotonic() - begun[0] < 2
    assert result.ename == "KeyboardInterrupt"


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("!head -c 118000 </dev/urandom", id="by-a-command"),
        pytest.param(
            "import os, sys; n = sys.stdout.buffer.write(os.urandom(118000)); "
            "sys.stdout.buffer.flush()",
            id="by-the-buffer",
        ),
        pytest.param("import os; n = os.write(1, os.urandom(60000))", id="by-the-descriptor"),
    ],
)
def test_binary_output_is_shown_as_replacements(kernel: Kernel, code: str) -> None:
    result = kernel.run(code)

    assert result.ok
    assert "\ufffd" in result.stdout
    assert "\x00" not in result.stdout
    assert "\x1b]" not in result.stdout


def test_a_huge_repr_is_no_lockup(kernel: Kernel) -> None:
    result = kernel.run("[[[0.5] * 3 for _ in range(224)] for _ in range(224)]")

    assert result.ok
    assert len(result.value or "") <= 1 << 20


def test_output_of_c_code_and_children_stands_in_its_cell(kernel: Kernel) -> None:
    code = (
        "import os, subprocess, ctypes, sys\n"
        "os.system('echo A'); subprocess.run(['echo', 'B']); libc = ctypes.CDLL(None)\n"
        "libc.puts(b'C'); libc.fflush(None)\n"
        "subprocess.Popen(['echo', 'D'], stdout=sys.stdout).wait()"
    )
    result = kernel.run(code)
    after = kernel.run("1")

    assert sorted(result.stdout.split()) == ["A", "B", "C", "D"]
    assert after.stdout == ""


@pytest.mark.parametrize(
    ("start", "in_first"),
    [
        # As ipykernel 7 routes them: a thread has no context of its own.
        pytest.param("threading.Thread(target=tick).start()", False, id="thread"),
        pytest.param("task = asyncio.ensure_future(atick())", True, id="task"),
    ],
)
def test_late_output_goes_where_ipykernel_sends_it(
    kernel: Kernel, start: str, in_first: bool
) -> None:
    kernel.run(
        "import asyncio, threading, time\n"
        "def tick():\n"
        "    for i in range(5): time.sleep(.1); print('tick', i)\n"
        "async def atick():\n"
        "    for i in range(5): await asyncio.sleep(.1); print('tick', i)"
    )
    first = kernel.submit(start)
    kernel.wait(first)
    second = kernel.submit("print('second'); await asyncio.sleep(.8)")
    texts: dict[str, str] = {first: "", second: ""}
    while True:
        message = kernel.client.get_iopub_msg(timeout=10)
        parent = message["parent_header"]["msg_id"]
        if message["msg_type"] == "stream":
            texts[parent] += message["content"]["text"]
        if parent == second and message["content"].get("execution_state") == "idle":
            break
    kernel.reply(second)

    ticks = "".join(f"tick {i}\n" for i in range(5))
    if in_first:
        assert texts == {first: ticks, second: "second\n"}
    else:
        assert texts == {first: "", second: "second\n" + ticks}


@pytest.mark.parametrize(
    "writer",
    [
        pytest.param("print(frame)", id="print"),
        pytest.param("import os; n = os.write(1, frame.encode() + b'\\n')", id="descriptor"),
        pytest.param("import subprocess; subprocess.run(['echo', frame])", id="a-child's-stdout"),
    ],
)
def test_our_own_protocol_as_text_is_shown_and_changes_nothing(kernel: Kernel, writer: str) -> None:
    frame = '\\x1e{"type":"execute_reply","seq":9,"cell":1,"status":"ok","exit_code":0}'
    result = kernel.run(f"frame = '{frame}'\n{writer}\nx = 'still running'\nx")

    assert "execute_reply" in result.stdout
    assert "\x1e" not in result.stdout
    assert result.value == "'still running'"


def test_a_display_is_updated_in_place(kernel: Kernel) -> None:
    result = kernel.run("h = display('a', display_id=True); h.update('b')")

    kinds = [m["msg_type"] for m in result.messages if m["msg_type"] != "execute_input"]
    first, second = (m["content"]["transient"]["display_id"] for m in result.messages[1:])
    assert kinds == ["display_data", "update_display_data"]
    assert first == second
    assert result.bundles[1]["text/plain"] == "'b'"


def test_clear_output_is_passed_on(kernel: Kernel) -> None:
    code = (
        "from IPython.display import clear_output\n"
        "for i in range(3): clear_output(wait=True); print(i)"
    )
    result = kernel.run(code)

    assert result.of("clear_output") == [{"wait": True}] * 3


@pytest.mark.parametrize(
    ("code", "mime", "holds"),
    [
        pytest.param("HTML('<b>x</b>')", "text/html", "<b>x</b>", id="html"),
        pytest.param("Markdown('# x')", "text/html", "<h1>x</h1>", id="markdown"),
        pytest.param("Latex(r'$\\alpha$')", "text/latex", r"$\alpha$", id="latex"),
        pytest.param(
            "SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')",
            "text/html",
            "data:image/svg+xml;base64,",
            id="svg",
        ),
        pytest.param("JSON({'a': [1]})", "application/json", {"a": [1]}, id="json"),
        pytest.param("pd.DataFrame({'a': [1]})", "text/html", "<table", id="dataframe"),
    ],
)
def test_rich_output_arrives(kernel: Kernel, code: str, mime: str, holds: object) -> None:
    kernel.run("import pandas as pd; from IPython.display import *")
    result = kernel.run(f"display({code})")

    (bundle,) = result.bundles
    assert "text/plain" in bundle
    if isinstance(holds, str):
        assert holds in bundle[mime]
    else:
        assert bundle[mime] == holds
    assert result.stderr == ""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("Javascript('alert(1)')", id="javascript"),
        pytest.param("display({'application/pdf': 'JVBERi0='}, raw=True)", id="pdf"),
        pytest.param("display({'application/vnd.plotly.v1+json': {}}, raw=True)", id="plotly"),
        pytest.param(
            "display({'application/vnd.jupyter.widget-view+json': {}, 'text/plain': 'IntSlider()'},"
            " raw=True)",
            id="widget",
        ),
        pytest.param("HTML('<script>alert(1)</script>')", id="script"),
    ],
)
def test_active_output_is_withheld_with_a_line_that_says_so(kernel: Kernel, code: str) -> None:
    kernel.run("from IPython.display import *")
    result = kernel.run(code)

    (bundle,) = result.bundles
    assert result.ok
    assert set(bundle) <= {"text/plain", "text/html"}
    assert "script" not in bundle.get("text/html", "")
    assert "text/plain" in bundle
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("code", "ename", "shown"),
    [
        pytest.param("def f():\n    1 / 0\nf()", "ZeroDivisionError", "line 2", id="line"),
        pytest.param("1 +", "SyntaxError", "1 +", id="syntax"),
        pytest.param(
            "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e",
            "ValueError",
            "direct cause",
            id="chained",
        ),
        pytest.param("def r(): r()\nr()", "RecursionError", "recursion", id="recursion"),
    ],
)
def test_a_traceback_names_the_cell_and_line(
    kernel: Kernel, code: str, ename: str, shown: str
) -> None:
    result = kernel.run(code)

    text = "\n".join(result.error["traceback"])
    assert result.ename == ename
    assert shown in text
    assert "Cell" in text
    assert "<string>" not in text
    assert "sandbox_kernel" not in text
    assert len(result.error["traceback"]) <= 101


@pytest.mark.parametrize(
    "size",
    [pytest.param(200 << 20, id="image-of-200-MB")],
)
def test_a_huge_image_is_refused_and_the_kernel_goes_on(kernel: Kernel, size: int) -> None:
    code = f"display({{'image/png': 'A' * {size}, 'text/plain': 'x'}}, raw=True)"
    with started("memory_bytes=2 GiB", "checkpoint=false") as roomy:
        result = roomy.run(code)
        after = roomy.run("1 + 1")

    assert all("image/png" not in bundle for bundle in result.bundles)
    assert after.value == "2"
