"""The guest's first module: makes the others importable from the text that the host sent.

Invariant: nothing is read from or written to a disk, and a module is compiled only when it is
first imported: the supervisor does not wait for what only the worker needs.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType


class SourceFinder:
    """Finds and loads modules in a table of sources."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        """How to load one of our modules; `None` for all others."""
        if name not in self._sources:
            return None
        is_package = any(other.startswith(f"{name}.") for other in self._sources)
        # The protocol of loaders is open; typeshed asks for a base class that costs an import.
        loader: Any = self
        return ModuleSpec(name, loader, origin=f"<{name}>", is_package=is_package)

    def create_module(self, _spec: ModuleSpec) -> None:
        """Take Python's own way to make a module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's source."""
        name = module.__name__
        module.__file__ = f"<{name}>"
        exec(compile(self._sources[name], f"<{name}>", "exec", dont_inherit=True), module.__dict__)


def run(modules: Sequence[tuple[str, str]], settings: Mapping[str, Any]) -> NoReturn:
    """Become the supervisor of this sandbox."""
    finder: Any = SourceFinder(dict(modules))
    # First, so that no file of the image can stand in for one of ours.
    sys.meta_path.insert(0, finder)

    from sandbox_kernel.guest import start  # noqa: PLC0415 - found only from here on

    start.main(settings)
