"""The magics that differ between a terminal and a notebook, as ipykernel has them.

Invariant: what a sandbox cannot do says so in one line, and does nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from IPython.core import page
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.utils import openpy


@magics_class
class KernelMagics(Magics):
    """Magics of a kernel."""

    #: The shell that they are of.
    shell: Any

    @line_magic
    def clear(self, _line: str) -> None:
        """Clear the terminal."""
        self.shell.system("clear")

    @line_magic
    def less(self, line: str) -> None:
        """Show a file through the pager; Python is highlighted."""
        if not line:
            raise UsageError("Missing filename.")
        if line.endswith(".py"):
            text = self.shell.pycolorize(openpy.read_py_file(line, skip_encoding_cookie=False))
        else:
            text = Path(line).read_text()
        page.page(text)

    @line_magic
    def more(self, line: str) -> None:
        """Do as `%less` does."""
        self.shell.run_line_magic("less", line)

    @line_magic
    def man(self, line: str) -> None:
        """Show a manual page through the pager."""
        page.page(self.shell.getoutput(f"man {line} | col -b", split=False))

    @line_magic
    def connect_info(self, _line: str) -> None:
        """Say why no other client can connect."""
        self._refuse("nothing can connect to the sandbox; a client connects to its kernel")

    @line_magic
    def qtconsole(self, _line: str) -> None:
        """Say how to open a console."""
        self._refuse("nothing starts outside of the sandbox; try `jupyter console --existing`")

    @line_magic
    def edit(self, _line: str) -> None:
        """Say why no editor opens."""
        self._refuse("the sandbox can open no editor; use `%%writefile` and `%run`")

    @line_magic
    def autosave(self, _line: str) -> None:
        """Say where this is set."""
        self._refuse("the sandbox cannot change how the notebook is saved")

    @line_magic
    def subshell(self, _line: str) -> None:
        """List subshells: there are none."""
        self._refuse("Kernel does not support subshells")

    def _refuse(self, text: str) -> None:
        self.shell.publisher.note(text)
