"""The walls between the modules, each as a line of data; the test walks what exists.

An import inside of a function counts, and so does one below `TYPE_CHECKING`, which still couples
what it names.  Only for circles the latter does not: it is never run.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "sandbox_kernel"
FILES = sorted((ROOT / PACKAGE).rglob("*.py"))

#: What touches the machine, the clock or the network.
IO = frozenset(
    {"asyncio", "concurrent", "ctypes", "fcntl", "getpass", "glob", "http", "logging", "mmap",
     "multiprocessing", "os", "pathlib", "platform", "pty", "requests", "resource", "select",
     "selectors", "shutil", "signal", "socket", "socketserver", "ssl", "subprocess",
     "tempfile", "termios", "threading", "time", "urllib"}
)  # fmt: skip

#: Longer than a file should be, and why it is one file all the same.
LONG = {
    "wire.py": "the protocol is one module, because it travels to the guest as one",
    "session.py": "one state machine under one lock: to split it is to share the lock",
}


@dataclass(frozen=True)
class Import:
    """One module that a file imports."""

    module: str
    typing_only: bool

    def of(self, prefix: str) -> bool:
        return self.module == prefix or self.module.startswith(prefix + ".")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


@cache
def imports(path: Path) -> frozenset[Import]:
    found = set()
    typing_only = {
        id(inner)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            base = node.module or ""
            inner = [f"{base}.{alias.name}" for alias in node.names]
            # `from package import module` imports the module, not a name of the package.
            names = [name if name in MODULES else base for name in inner]
        else:
            continue
        found |= {Import(name, id(node) in typing_only) for name in names}
    return frozenset(found)


def files(*patterns: str) -> list[Path]:
    """What the patterns match below the package; `!` takes files out again."""
    matched: set[Path] = set()
    for pattern in patterns:
        if pattern.startswith("!"):
            matched -= set((ROOT / PACKAGE).glob(pattern[1:]))
        else:
            matched |= set((ROOT / PACKAGE).glob(pattern))
    return sorted(matched)


def offences(paths: list[Path], forbidden: frozenset[str]) -> list[str]:
    return sorted(
        f"{path.relative_to(ROOT)} imports {each.module}"
        for path in paths
        for each in imports(path)
        if any(each.of(prefix) for prefix in forbidden)
    )


def ours(*names: str) -> frozenset[str]:
    return frozenset(f"{PACKAGE}.{name}" for name in names)


@pytest.mark.parametrize(
    ("patterns", "forbidden"),
    [
        pytest.param(
            [
                "errors.py", "wire.py", "policy.py", "ceiling.py", "messages.py", "labels.py",
                "posture.py", "history.py", "bootstrap.py", "display/*.py", "adapters/base.py",
                "adapters/*_spec.py", "guest/streams.py",
            ],
            IO,
            id="pure-modules-do-no-io",
        ),
        pytest.param(
            ["adapters/**/*.py"],
            ours("wire", "display", "session", "kernel", "messages", "guest"),
            id="adapters-carry-bytes",
        ),
        pytest.param(
            ["**/*.py", "!adapters/docker*.py"],
            frozenset({"docker", "requests", "urllib3"}),
            id="only-the-docker-adapter-imports-docker",
        ),
        pytest.param(
            ["adapters/*_spec.py"],
            frozenset({"docker", "requests", "urllib3", "e2b", "daytona"}),
            id="no-spec-imports-a-vendor",
        ),
        pytest.param(
            ["**/*.py", "!kernel.py", "!dispatch.py", "!application.py"],
            frozenset({"ipykernel"}),
            id="only-the-kernel-imports-ipykernel",
        ),
        pytest.param(
            ["**/*.py", "!kernel.py", "!dispatch.py", "!application.py", "!cli/**/*.py"],
            frozenset({"zmq", "jupyter_client", "jupyter_core", "traitlets", "IPython"}),
            id="only-the-kernel-and-cli-know-jupyter",
        ),
        pytest.param(
            ["kernel.py", "dispatch.py", "application.py", "launch.py", "messages.py",
             "cli/**/*.py", "__main__.py"],
            ours("wire"),
            id="kernel-and-cli-see-only-safe-events",
        ),
        pytest.param(
            ["errors.py", "wire.py", "policy.py", "labels.py", "display/*.py"],
            ours("session", "kernel", "adapters", "guest", "cli", "messages"),
            id="low-modules-know-no-high-ones",
        ),
        pytest.param(
            ["**/*.py", "!guest/*.py"], ours("guest"), id="the-host-never-runs-the-guest"
        ),
    ],
)  # fmt: skip
def test_nobody_imports_what_stands_behind_a_wall(
    patterns: list[str], forbidden: frozenset[str]
) -> None:
    paths = files(*patterns)
    # The guest's shell is IPython's, where the image has it.
    if "IPython" in forbidden:
        paths = [path for path in paths if path.parent.name != "guest"]

    assert paths
    assert offences(paths, forbidden) == []


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        pytest.param(["errors.py"], frozenset(), id="errors"),
        pytest.param(["wire.py"], ours("errors"), id="wire"),
        pytest.param(
            ["guest/*.py"],
            ours("wire", "errors", "guest")
            # Only where the image has them.
            | {"IPython", "traitlets", "matplotlib", "matplotlib_inline", "comm"},
            id="guest",
        ),
    ],
)
def test_what_travels_needs_the_standard_library_alone(
    patterns: list[str], allowed: frozenset[str]
) -> None:
    outside = [
        f"{path.relative_to(ROOT)} imports {each.module}"
        for path in files(*patterns)
        for each in imports(path)
        if each.module.partition(".")[0] not in sys.stdlib_module_names
        and not any(each.of(prefix) for prefix in allowed)
    ]

    assert outside == []


def test_messages_are_made_of_safe_events_alone() -> None:
    inside = {each.module for each in imports(ROOT / PACKAGE / "messages.py") if each.of(PACKAGE)}

    assert inside <= ours("display.safe", "display")


@pytest.mark.parametrize("path", files("wire.py", "errors.py", "guest/*.py"), ids=lambda p: p.name)
def test_what_travels_is_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), path.name, feature_version=(3, 9))


def test_no_import_circle() -> None:
    graph = {
        name: {
            each.module for each in imports(path) if each.module in MODULES and not each.typing_only
        }
        for name, path in MODULES.items()
    }

    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@cache
def safe_classes() -> frozenset[str]:
    path = ROOT / PACKAGE / "display" / "safe.py"
    return frozenset(node.name for node in tree(path).body if isinstance(node, ast.ClassDef))


@pytest.mark.parametrize("path", files("**/*.py", "!display/*.py"), ids=module_name)
def test_only_the_firewall_makes_safe_events(path: Path) -> None:
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.module == f"{PACKAGE}.display.safe"
        for alias in node.names
    }
    made = [
        ast.unparse(node.func)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id in names & safe_classes())
            or (
                isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func.value) in ("safe", "display.safe")
                and node.func.attr in safe_classes()
            )
        )
    ]

    assert made == []


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_module_says_its_duty(path: Path) -> None:
    assert ast.get_docstring(tree(path))


def test_files_are_short_or_have_a_reason() -> None:
    lengths = {
        str(path.relative_to(ROOT / PACKAGE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in FILES
    }

    assert {
        name: lines for name, lines in lengths.items() if lines > 400 and name not in LONG
    } == {}
    assert all(lengths[name] > 400 for name in LONG)
