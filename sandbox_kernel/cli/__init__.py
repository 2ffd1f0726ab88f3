"""The command `sandbox-kernel`.

Invariants: an error of ours is one sentence and its hint on stderr, never a
traceback.  Exit status 2 is misuse, 1 a failure, 0 the rest.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from sandbox_kernel.cli import install, sandboxes
from sandbox_kernel.cli.image import image_app
from sandbox_kernel.errors import SandboxKernelError, SandboxPolicyError

app = typer.Typer(
    help="A Jupyter kernel whose cells run in a sandbox.",
    no_args_is_help=True,
    add_completion=False,
    # Help texts write commands and values in backticks.
    rich_markup_mode="markdown",
    # A bug's traceback with the values of its variables could show a secret.
    pretty_exceptions_enable=False,
)
app.command("install")(install.install)
app.command("uninstall")(install.uninstall)
app.command("list")(install.list_installed)
app.command("ps")(sandboxes.ps)
app.command("reap")(sandboxes.reap)
app.add_typer(image_app, name="image")


def main() -> None:
    """Run the command line and exit."""
    try:
        app()
    except SandboxKernelError as error:
        errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        errors.print(str(error))
        sys.exit(2 if isinstance(error, SandboxPolicyError) else 1)
