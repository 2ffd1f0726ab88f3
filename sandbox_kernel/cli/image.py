"""`sandbox-kernel image`: build the image that cells run in.

Invariant: only words and progress are made here; `adapters.docker_image` builds.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotation at run time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from sandbox_kernel import config
from sandbox_kernel.errors import SandboxPolicyError
from sandbox_kernel.policy import DEFAULT_IMAGE

if TYPE_CHECKING:
    from rich.status import Status

#: Small, and kept up to date by others.
DEFAULT_BASE = "python:3.12-slim-bookworm"

image_app = typer.Typer(no_args_is_help=True, help="The image that cells run in.")


class _Shown:
    """Progress on a terminal: lines that stay, and one below that changes."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status

    def step(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        self._status.update(Text(text, no_wrap=True, overflow="ellipsis"))


@image_app.callback()
def image() -> None:
    """Build the image that cells run in."""


@image_app.command()
def build(
    *,
    base: Annotated[
        str, typer.Option(help="Image to start from: any with python3 >= 3.9.")
    ] = DEFAULT_BASE,
    wheels: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Install from the wheels in this directory, and without network.",
        ),
    ] = None,
    tag: Annotated[str, typer.Option(help="Name of the image that comes out.")] = DEFAULT_IMAGE,
    if_changed: Annotated[
        bool, typer.Option("--if-changed", help="Do nothing if the image was built from the same.")
    ] = False,
) -> None:
    """Build the image with IPython, numpy, pandas, matplotlib and node."""
    # docker-py takes 0.1 s, which no other command shall pay.
    from sandbox_kernel.adapters import docker_image, docker_recipe  # noqa: PLC0415

    files = tuple(sorted(wheels.glob("*.whl"))) if wheels else ()
    if wheels and not files:
        raise SandboxPolicyError(
            f"`--wheels` names `{wheels}`, which holds no wheel",
            hint="`scripts/wheels.sh` makes such a directory",
        )
    console = Console()
    with (
        docker_image.connect(config.load().docker.host) as client,
        console.status("asking the engine") as status,
    ):
        shown = _Shown(console, status)
        recipe = docker_recipe.Recipe(base, docker_image.find_base(client, base, shown), files)
        if if_changed and docker_image.is_current(client, tag, recipe):
            shown.step(f"{tag} is up to date")
            return
        versions = docker_image.build(client, tag, recipe, shown)
    packages = ("python", "ipython", "numpy", "pandas", "matplotlib", "node")
    shown.step(f"built {tag}: " + ", ".join(f"{name} {versions[name]}" for name in packages))
