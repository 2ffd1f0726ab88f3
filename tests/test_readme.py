"""The documentation is true: commands run, links lead somewhere, tables are the code's."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from sandbox_kernel import config, config_files
from sandbox_kernel.ceiling import NAMES
from sandbox_kernel.cli import app
from sandbox_kernel.policy import FIELD_NAMES, RANGES, Policy
from sandbox_kernel.settings import Layer, convert, from_text
from tests.jupyter import Result, started

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial" / "first-notebook.md"
TROUBLESHOOT = ROOT / "docs" / "how-to" / "troubleshoot.md"

#: Commands that need a person, a registry or minutes, and what shows instead that they exist.
STAND_INS = {"sandbox-kernel image build": "sandbox-kernel image build --help"}

#: The shell that GitHub's pages are pasted into.
SHELL = ["bash", "-euo", "pipefail", "-c"]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.text.split(maxsplit=1)[0]}"


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return tuple(Block(page, language, text) for language, text in found)


def all_blocks(language: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A clone with an empty virtual environment that finds the dependencies of this one."""
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "out", "build", "dist", "tests", "bench")
    shutil.copytree(ROOT, clone, ignore=ignored)
    subprocess.run([sys.executable, "-m", "venv", clone / ".venv"], check=True)
    (site,) = (clone / ".venv").glob("lib/python3*/site-packages")
    here = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "here.pth").write_text(here)
    return clone


def environment_of(clone: Path) -> dict[str, str]:
    paths = (clone / ".venv" / "bin", Path(sys.executable).parent)
    return os.environ | {
        "PATH": os.pathsep.join([*map(str, paths), os.environ["PATH"]]),
        "VIRTUAL_ENV": str(clone / ".venv"),
        "JUPYTER_PATH": str(clone / ".venv" / "share" / "jupyter"),
    }


def runnable(text: str) -> str:
    return "\n".join(STAND_INS.get(line, line) for line in text.splitlines())


# --- the README's commands --------------------------------------------------------------------


def test_every_command_of_the_readme_is_run_below() -> None:
    heads = [block.text.splitlines()[0] for block in blocks(README) if block.language == "bash"]

    assert heads == ["make demo", "pip install . papermill"]


@pytest.mark.usefixtures("image")
def test_thirty_second_try_runs_as_pasted() -> None:
    (block,) = (block for block in blocks(README) if block.text.startswith("make demo"))

    # `make test` runs this too, and a make below a make says more.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    run = subprocess.run(
        [*SHELL, block.text], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr
    promised = re.search(r"prints its last line: `([^`]+)`", README.read_text().replace("\n", " "))
    assert promised
    assert run.stdout.splitlines()[-1].strip() == promised[1]


@pytest.mark.usefixtures("image")
def test_installation_runs_as_pasted(scratch: Path) -> None:
    (block,) = (block for block in blocks(README) if block.text.startswith("pip install"))

    run = subprocess.run(
        [*SHELL, runnable(block.text)], cwd=scratch, env=environment_of(scratch),
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert run.returncode == 0, run.stdout + run.stderr
    assert (scratch / ".venv" / "share/jupyter/kernels/aisandbox-docker/kernel.json").exists()
    assert "network refused" in (scratch / "executed.ipynb").read_text()


@pytest.mark.usefixtures("image")
def test_cells_of_the_tutorial_show_what_the_page_says() -> None:
    page = TUTORIAL.read_text(encoding="utf-8")
    # Each cell with what follows it, up to the next fence or heading.
    cells = re.findall(r"^```python\n(.*?)^```$\n(.*?)(?=^```|^#)", page, re.MULTILINE | re.DOTALL)

    with started("timeout_seconds=5") as kernel:
        shown = [texts(kernel.run(code)) for code, _ in cells]

    for (code, told), text in zip(cells, shown, strict=True):
        promise = re.search(r"(`+)(.+?)\1", told)
        expected = promise[2].replace("30 s", "5 s") if promise else ""
        assert expected in text, code
    assert len(cells) == 7


def texts(result: Result) -> str:
    """All that a cell printed, and its error as a traceback ends."""
    errors = [f"{error['ename']}: {error['evalue']}" for error in result.of("error")]
    return "\n".join([result.stdout, result.stderr, *errors])


# --- commands, configurations -----------------------------------------------------------------

COMMANDS = sorted(
    {
        line.strip().removeprefix("/opt/sandbox-kernel/bin/")
        for block in all_blocks("bash")
        for line in block.text.splitlines()
        if re.match(r"\s*(\S*/)?sandbox-kernel ", line)
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_the_documentation_has_the_options_it_names(command: str) -> None:
    words = shlex.split(command.replace("$", ""))[1:]
    # `--wheels` must be a directory that exists.
    words = [str(ROOT) if word == "wheels" else word for word in words]

    status = typer.main.get_command(app).main([*words, "--help"], standalone_mode=False)

    assert status in {0, None}


@pytest.mark.parametrize(
    "assignment",
    sorted({word for command in COMMANDS for word in re.findall(r"--set (\S+)", command)}),
)
def test_assignment_of_the_documentation_is_taken(assignment: str) -> None:
    arguments = config.parse_arguments("docker", [assignment])
    loaded = config.resolve([Layer(name="the page", values=arguments)])

    assert loaded.provider == "docker"


@pytest.mark.parametrize("block", all_blocks("toml"), ids=str)
def test_configuration_of_the_documentation_is_loaded(block: Block) -> None:
    layer = config_files.from_toml(block.text, name="the page", binds=True)
    loaded = config.resolve([layer])

    assert layer.values
    assert {loaded.sources[name] for name in layer.values} == {"the page"}


def test_json_configuration_of_the_documentation_is_loaded() -> None:
    (block,) = (block for block in all_blocks("json") if '"sandbox": {' in block.text)
    loaded = config.resolve([config_files.from_json(block.text, name="the page")])

    assert loaded.policy.timeout_seconds == 60
    assert loaded.policy.memory_bytes == 1 << 30


# --- tables ------------------------------------------------------------------------------------


def rows() -> dict[str, list[str]]:
    page = (ROOT / "docs" / "reference" / "policy.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in found}


def meant(name: str, cell: str) -> object:
    """The value that a cell such as `86400 (a day)` names, as the policy has it."""
    text = cell.partition(" (")[0].strip("`")
    return convert(name, from_text(name, "" if text == '""' else text))


def test_policy_reference_names_every_field() -> None:
    assert tuple(rows()) == FIELD_NAMES


@pytest.mark.parametrize("name", [name for name in FIELD_NAMES if name != "env"])
def test_policy_reference_has_the_default(name: str) -> None:
    _, default, *_ = rows()[name]

    assert meant(name, default) == getattr(Policy(), name)


@pytest.mark.parametrize("name", RANGES)
def test_policy_reference_has_the_range(name: str) -> None:
    _, _, cell, _ = rows()[name]
    low, high = cell.split(" to ")

    assert (meant(name, low), meant(name, high)) == RANGES[name]


@pytest.mark.parametrize("name", FIELD_NAMES)
def test_policy_reference_says_what_a_ceiling_can_bound(name: str) -> None:
    cell = rows()[name][-1]

    assert (cell == "no ceiling") == (name not in NAMES)


def test_map_of_the_architecture_has_every_module_and_no_other() -> None:
    page = prose(ROOT / "ARCHITECTURE.md")
    on_the_map = page[page.index("## The map") : page.index("## The way of a cell")]
    named = {Path(name).name for name in re.findall(r"`([\w/]+\.py)`", on_the_map)}
    there = {path.name for path in (ROOT / "sandbox_kernel").rglob("*.py")}

    assert there - named <= {"__init__.py", "__main__.py"}
    assert named <= there


# --- links, sentences ---------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [README]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        links = (link.partition("#")[0] for link in _LINK.findall(prose(page)) if "://" not in link)
        targets = {(page.parent / link).resolve() for link in links if link.endswith(".md")}
        waiting += targets - reached

    assert set(PAGES) - reached == set()


@cache
def sentences() -> str:
    """All texts of the code, with `…` where a value is put in."""
    found = []
    for path in (ROOT / "sandbox_kernel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [n.value if isinstance(n, ast.Constant) else "…" for n in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"\{\w*\}", "…", node.value))
    return "\n".join(found)


@pytest.mark.parametrize(
    "sentence",
    [
        text
        for text in re.findall(
            r"^### (.+)$", TROUBLESHOOT.read_text(encoding="utf-8"), re.MULTILINE
        )
        if not re.search(r" (in a cell|beside the notebook)$|^Jupyter does not", text)
    ],
)
def test_error_of_the_troubleshooting_page_exists(sentence: str) -> None:
    parts = [part.strip(" `:;,()") for part in sentence.split("…")]

    assert max(map(len, parts)) > 5
    assert [part for part in parts if len(part) > 5 and part not in sentences()] == []
