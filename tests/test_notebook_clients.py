"""papermill, nbclient, nbconvert, `jupyter run`, and what they need of a kernel."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbclient
import nbformat
import papermill
import pytest

from tests.jupyter import Kernel, started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [
    pytest.mark.usefixtures("image"),
    # papermill's and nbclient's own use of deprecated interfaces.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

QUICKSTART = Path(__file__).parent.parent / "notebooks" / "quickstart.ipynb"
KERNEL = "aisandbox-docker"


@pytest.fixture(scope="module")
def kernel(image: str) -> Iterator[Kernel]:
    with started() as running:
        yield running


def notebook(path: Path, *cells: str) -> Path:
    made = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={"kernelspec": {"name": KERNEL, "display_name": KERNEL, "language": "python"}},
    )
    nbformat.write(made, path)
    return path


def outputs(path: Path) -> list[Mapping[str, Any]]:
    made = nbformat.read(path, as_version=4)
    nbformat.validate(made)
    return [output for cell in made.cells for output in cell.get("outputs", ())]


def has_figure(path: Path) -> bool:
    return any("image/png" in output.get("data", {}) for output in outputs(path))


def test_papermill_runs_the_quickstart(tmp_path: Path) -> None:
    made = tmp_path / "out.ipynb"
    papermill.execute_notebook(
        str(QUICKSTART), str(made), kernel_name=KERNEL, parameters={"window": 6},
        progress_bar=False,
    )  # fmt: skip

    text = made.read_text()
    assert has_figure(made)
    assert "window = 6" in text
    assert "network refused, host files refused, host environment refused" in text


def test_nbclient_runs_the_quickstart(tmp_path: Path) -> None:
    made = nbformat.read(QUICKSTART, as_version=4)
    nbclient.NotebookClient(made, kernel_name=KERNEL).execute()
    nbformat.write(made, tmp_path / "out.ipynb")

    assert has_figure(tmp_path / "out.ipynb")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(
            ["nbconvert", "--to", "notebook", "--execute", "--output-dir", "{tmp}",
             "--output", "out", "{notebook}"],
            id="nbconvert",
        ),
        pytest.param(["run", "--kernel", KERNEL, "{notebook}"], id="run"),
    ],
)  # fmt: skip
def test_jupyter_commands_run_the_quickstart(arguments: list[str], tmp_path: Path) -> None:
    words = [word.format(tmp=tmp_path, notebook=QUICKSTART) for word in arguments]
    if words[0] == "run":
        script = tmp_path / "cell.py"
        script.write_text("print('verdict: it runs')")
        words[-1] = str(script)
    done = subprocess.run(
        [sys.executable, "-m", "jupyter", *words], capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    if words[0] == "run":
        assert "verdict: it runs" in done.stdout
    else:
        assert has_figure(tmp_path / "out.ipynb")


def test_papermill_parameters_with_quotes(tmp_path: Path) -> None:
    source = notebook(tmp_path / "in.ipynb", "print(a, b)")
    made = tmp_path / "out.ipynb"
    papermill.execute_notebook(
        str(source), str(made), kernel_name=KERNEL, parameters={"a": 1, "b": "x'y\"é"},
        progress_bar=False,
    )  # fmt: skip

    assert outputs(made)[-1]["text"] == "1 x'y\"é\n"


def test_papermill_keeps_every_small_write(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "for i in range(10_000):\n"
        "    sys.stdout.write(f'{i:098d}\\n'); sys.stdout.flush(); time.sleep(.0001)"
    )
    source = notebook(tmp_path / "in.ipynb", code, "print('hi')")
    made = tmp_path / "out.ipynb"
    papermill.execute_notebook(str(source), str(made), kernel_name=KERNEL, progress_bar=False)

    *first, last = outputs(made)
    assert "".join(output["text"] for output in first) == "".join(
        f"{i:098d}\n" for i in range(10_000)
    )
    assert len(first) < 500
    assert last["text"] == "hi\n"


@pytest.mark.parametrize(
    ("code", "ename"),
    [
        pytest.param("bytearray(2 << 30)", "SandboxMemoryError", id="memory"),
        pytest.param("import os; os._exit(3)", "SandboxCrashError", id="exit"),
        pytest.param("import os; os.kill(os.getpid(), 9)", "SandboxCrashError", id="killed"),
    ],
)
def test_papermill_ends_with_the_reason(tmp_path: Path, code: str, ename: str) -> None:
    source = notebook(tmp_path / "in.ipynb", code, "print('not reached')")
    made = tmp_path / "out.ipynb"
    begun = time.monotonic()
    with pytest.raises(papermill.PapermillExecutionError, match=ename):
        papermill.execute_notebook(str(source), str(made), kernel_name=KERNEL, progress_bar=False)

    assert time.monotonic() - begun < 15
    assert ename in made.read_text()
    assert "not reached\\n" not in made.read_text()


@pytest.mark.parametrize(
    ("code", "password"),
    [
        pytest.param("value = input('n? ')", False, id="input"),
        pytest.param("from getpass import getpass; value = getpass('n? ')", True, id="getpass"),
    ],
)
def test_input_asks_the_user_with_a_mark(kernel: Kernel, code: str, password: bool) -> None:
    asked = []

    def answer(content: Mapping[str, Any]) -> str:
        asked.append(content)
        return "Ada é"

    kernel.run(code, answer=answer)
    after = kernel.run("value")

    assert asked == [{"prompt": "[sandboxed code asks] n? ", "password": password}]
    assert after.value == "'Ada é'"


def test_breakpoint_takes_commands(kernel: Kernel) -> None:
    lines = iter(["p value", "c"])
    result = kernel.run("value = 6 * 7\nbreakpoint()\nprint('done')", answer=lambda _: next(lines))

    assert "42" in result.stdout
    assert "done" in result.stdout


def test_input_without_a_user_fails_at_once(kernel: Kernel) -> None:
    result = kernel.run("input('n? ')", allow_stdin=False)

    assert result.ename == "StdinNotImplementedError"
    assert result.seconds < 2


def test_a_file_beside_the_notebook_is_not_there_but_the_folder_is_writable(
    kernel: Kernel,
) -> None:
    missing = kernel.run("import pandas as pd; pd.read_csv('data.csv')")
    written = kernel.run("open('data.csv', 'w').write('a\\n1\\n'); pd.read_csv('data.csv').a[0]")

    assert missing.ename == "FileNotFoundError"
    assert written.ok


@pytest.mark.parametrize(
    ("code", "value"),
    [
        pytest.param("Out[1]", "2", id="out"),
        pytest.param("_", "2", id="underscore"),
        pytest.param("3;", None, id="semicolon"),
        pytest.param("import asyncio; await asyncio.sleep(0, 'x')", "'x'", id="await"),
    ],
)
def test_what_ipython_users_type(code: str, value: str | None) -> None:
    with started() as kernel:
        kernel.run("1 + 1")
        result = kernel.run(code)

    assert result.ok
    assert result.value == value


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        pytest.param("!echo $HOME; ls /", "sandbox", id="command"),
        pytest.param("%%bash\nx=5; echo a$x", "a5", id="bash"),
        pytest.param("%timeit -n1 -r1 1", "loop", id="timeit"),
        pytest.param("%matplotlib inline\nprint('ok')", "ok", id="matplotlib"),
        pytest.param("lines = !printf 'p\\nq\\n'\nprint(lines.l)", "['p', 'q']", id="capture"),
        pytest.param("x = 5\n%who", "x", id="who"),
    ],
)
def test_magics(kernel: Kernel, code: str, shown: str) -> None:
    result = kernel.run(code)

    assert result.ok, result.messages
    assert shown in result.stdout


def test_help_is_a_page_of_text(kernel: Kernel) -> None:
    result = kernel.run("str?")

    (payload,) = result.content["payload"]
    assert payload["source"] == "page"
    assert set(payload["data"]) == {"text/plain"}
    assert "Docstring" in payload["data"]["text/plain"]


def test_a_background_task_goes_on_between_cells(kernel: Kernel) -> None:
    kernel.run(
        "import asyncio\nticks = []\nasync def tick():\n"
        "    for i in range(3): ticks.append(i); await asyncio.sleep(.05)\n"
        "task = asyncio.ensure_future(tick())"
    )
    time.sleep(0.5)
    result = kernel.run("ticks")

    assert result.value == "[0, 1, 2]"


def test_requests_are_answered_while_a_cell_runs(kernel: Kernel) -> None:
    answers = {}

    def ask(kernel: Kernel) -> None:
        begun = time.monotonic()
        client = kernel.client
        for request in (client.complete("zi"), client.inspect("zip"), client.kernel_info()):
            reply = kernel.reply(request, timeout=5)
            answers[reply["msg_type"]] = reply["content"]
        answers["seconds"] = time.monotonic() - begun
        kernel.interrupt()

    result = kernel.run("import time; time.sleep(20)", meanwhile=ask)

    assert answers["seconds"] < 1
    assert answers["complete_reply"]["matches"] == []
    assert answers["inspect_reply"]["found"] is False
    assert answers["kernel_info_reply"]["language_info"]["version"].startswith("3.")
    assert result.ename == "KeyboardInterrupt"


def test_an_error_stops_what_was_queued(kernel: Kernel) -> None:
    requests = [kernel.submit(code) for code in ("1 / 0", "print('a')", "print('b')")]
    statuses = [kernel.reply(request)["content"]["status"] for request in requests]
    after = kernel.run("'later'")

    assert statuses == ["error", "aborted", "aborted"]
    assert after.value == "'later'"


def test_stop_on_error_false_goes_on(kernel: Kernel) -> None:
    first = kernel.submit("1 / 0", stop_on_error=False)
    second = kernel.submit("print('a')")
    statuses = [kernel.reply(request)["content"]["status"] for request in (first, second)]

    assert statuses == ["error", "ok"]


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        pytest.param({}, True, id="ordinary"),
        pytest.param({"store_history": False}, False, id="not-stored"),
        pytest.param({"silent": True}, False, id="silent"),
    ],
)
def test_execution_counts(kernel: Kernel, options: dict[str, bool], counts: bool) -> None:
    before = kernel.run("0").content["execution_count"]
    kernel.run("0", **options)
    after = kernel.run("0").content["execution_count"]

    assert after - before == (2 if counts else 1)


def test_restart_forgets_and_counts_from_one() -> None:
    with started() as kernel:
        kernel.run("x = 5")
        kernel.manager.restart_kernel()
        kernel.client.wait_for_ready(timeout=60)
        result = kernel.run("x")

    assert result.ename == "NameError"
    assert result.content["execution_count"] == 1


def test_usage_is_the_own_one_of_the_sandbox(kernel: Kernel) -> None:
    message = kernel.client.session.msg("usage_request", {})
    kernel.client.control_channel.send(message)
    reply = kernel.client.get_control_msg(timeout=10)

    assert reply["content"]["host_virtual_memory"]["total"] == 512 << 20
    assert 0 < reply["content"]["kernel_memory"] < 512 << 20


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        pytest.param("x = 'a" + "b" * 10_000_000 + "'; len(x)", "10000001", id="10-MB"),
        pytest.param("x = 1\0", None, id="nul"),
        pytest.param("x = '\ud800'", None, id="lone-surrogate"),
        pytest.param("x = 1 #" + "b" * 17_000_000, None, id="17-MB"),
    ],
)
def test_odd_code_loses_nothing(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, code: str, shown: str | None
) -> None:
    # As JupyterLab does: jupyter_client's own packer refuses half a surrogate pair.
    monkeypatch.setattr(
        kernel.client.session, "pack", lambda obj: json.dumps(obj, default=str).encode()
    )
    kernel.run("kept = 1")
    result = kernel.run(code)
    after = kernel.run("kept")

    assert result.value == shown
    assert after.value == "1"
    if shown is None:
        assert not result.ok
