"""`sandbox-kernel install`, `uninstall` and `list`: the kernelspecs on this machine.

Invariants: only kernelspecs of ours are replaced or removed.  The kernel that is
installed never imports from the notebook's folder.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_core.paths import jupyter_data_dir, prefer_environment_over_user
from rich.console import Console

from sandbox_kernel import adapters, config
from sandbox_kernel.errors import SandboxPolicyError, SandboxUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The module that a kernelspec of ours starts, which is how one is known.
MODULE = "sandbox_kernel.launch"

_User = Annotated[bool, typer.Option("--user", help="For this user.")]
_SysPrefix = Annotated[
    bool, typer.Option("--sys-prefix", help="In this Python environment (the default in one).")
]
_Prefix = Annotated[
    Path | None, typer.Option("--prefix", help="Below PREFIX/share/jupyter/kernels.")
]
_Provider = Annotated[str, typer.Option(help="Where cells run.")]
_Name = Annotated[
    str | None, typer.Option(help="The kernel's name.", show_default="aisandbox-PROVIDER")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One kernelspec of ours.

    Attributes:
        name: As Jupyter knows it.
        path: Its directory.
        argv: How it is started.
        display_name: As Jupyter shows it.
    """

    name: str
    path: Path
    argv: tuple[str, ...]
    display_name: str

    @property
    def settings(self) -> list[str]:
        """Its `--set` arguments, and its provider first."""
        options = zip(self.argv, self.argv[1:], strict=False)
        return [value for option, value in options if option in {"--provider", "--set"}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where kernelspecs go.

    Attributes:
        directory: The `kernels` directory.
        prefix: What it stands below, or `None` for the user's own.
    """

    directory: Path
    prefix: Path | None


def install(
    *,
    user: _User = False,
    sys_prefix: _SysPrefix = False,
    prefix: _Prefix = None,
    provider: _Provider = "docker",
    name: _Name = None,
    display_name: Annotated[
        str | None,
        typer.Option(help="The name that Jupyter shows.", show_default="aisandbox (PROVIDER)"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, as `timeout_seconds=60`."),
    ] = None,
) -> None:
    """Install the kernel, so that Jupyter offers it."""
    place = _place(user=user, sys_prefix=sys_prefix, prefix=prefix)
    adapters.get(provider)
    # What the kernel would refuse at each start is refused here, where it can be put right.
    config.load(arguments=config.parse_arguments(provider, settings or []))
    kernel_name = _checked_name(name or f"aisandbox-{provider}")
    target = place.directory / kernel_name
    if target.exists() and _read(target) is None:
        raise SandboxPolicyError(
            f"`{target}` is a kernel of another package", hint="choose another `--name`"
        )
    spec = kernel_spec(
        python=sys.executable,
        provider=provider,
        settings=settings or [],
        display_name=display_name or f"aisandbox ({provider})",
    )
    _check_importable(spec["argv"])
    _write(spec, kernel_name, place)
    console = _console()
    console.print(f"installed {kernel_name} in {target}")
    if place.directory not in _all_directories():
        where = place.directory.parent
        console.print(f"hint: Jupyter does not look there, unless JUPYTER_PATH={where}")


def uninstall(
    *,
    user: _User = False,
    sys_prefix: _SysPrefix = False,
    prefix: _Prefix = None,
    provider: _Provider = "docker",
    name: _Name = None,
) -> None:
    """Remove the kernel: everywhere, or only from the place that is named."""
    kernel_name = _checked_name(name or f"aisandbox-{provider}")
    if user or sys_prefix or prefix:
        directories = [_place(user=user, sys_prefix=sys_prefix, prefix=prefix).directory]
    else:
        directories = _all_directories()
    found = [item for item in _installed(directories) if item.name == kernel_name]
    if not found:
        raise SandboxUnavailableError(
            f"no kernel `{kernel_name}` of this package is installed there",
            hint="`sandbox-kernel list` shows all that Jupyter finds",
        )
    for item in found:
        try:
            if item.path.is_symlink():
                item.path.unlink()
            else:
                shutil.rmtree(item.path)
        except OSError as error:
            raise SandboxUnavailableError(
                f"`{item.path}` cannot be removed: {error.strerror}"
            ) from None
        _console().print(f"removed {item.path}")


def list_installed() -> None:
    """List the kernels of this package that Jupyter finds."""
    console = _console()
    found = list(_installed(_all_directories()))
    if not found:
        console.print("none installed; `sandbox-kernel install --provider docker` installs one")
        return
    for item in found:
        console.print(f"{item.name}: {item.display_name}")
        console.print(f"    {', '.join(item.settings)}")
        console.print(f"    {item.path}")
        if shutil.which(item.argv[0]) is None:
            console.print(f"    cannot start: {item.argv[0]} is gone; install it again")


def kernel_spec(
    *, python: str, provider: str, settings: Sequence[str], display_name: str
) -> dict[str, Any]:
    """Return the `kernel.json` of a kernel; pure but for the packaged template.

    `-P` and `-E` in its command keep the notebook's folder off `sys.path`, where Jupyter
    starts the kernel: a `docker.py` beside a hostile notebook would run on the host.
    `-P` alone would not, as an empty entry in `PYTHONPATH` names that folder too.
    """
    template = resources.files("sandbox_kernel") / "kernelspec" / "kernel.json"
    spec: dict[str, Any] = json.loads(template.read_text(encoding="utf-8"))
    chosen = [part for text in settings for part in ("--set", text)]
    argv = [python, *spec["argv"][1:], "--provider", provider, *chosen]
    return {**spec, "argv": argv, "display_name": display_name}


def _place(*, user: bool, sys_prefix: bool, prefix: Path | None) -> Place:
    """Return the place that the options name; without one, the first that Jupyter looks at."""
    if user + sys_prefix + (prefix is not None) > 1:
        raise typer.BadParameter("choose one of `--user`, `--sys-prefix` and `--prefix`")
    if prefix is None and (sys_prefix or (not user and prefer_environment_over_user())):
        prefix = Path(sys.prefix)
    if prefix is None:
        return Place(directory=Path(jupyter_data_dir()) / "kernels", prefix=None)
    root = prefix.absolute()
    return Place(directory=root / "share" / "jupyter" / "kernels", prefix=root)


def _checked_name(name: str) -> str:
    # Jupyter itself would take `..`, and then replace the directory above.
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise SandboxPolicyError(
            f"`{name}` is not a kernel's name",
            hint="small letters, digits and `.`, `_`, `-`, starting with a letter or digit",
        )
    return name


def _check_importable(argv: Sequence[str]) -> None:
    """Refuse an interpreter that, started as the kernel will be, does not find this package."""
    flags = argv[: argv.index("-m")]
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('sandbox_kernel') is None)"
    if subprocess.run([*flags, "-c", code], check=False, timeout=60).returncode != 0:  # noqa: S603
        raise SandboxUnavailableError(
            f"`{' '.join(flags)}` does not find the package `sandbox_kernel`",
            hint="install it with pip; `PYTHONPATH` and the working directory do not count",
        )


def _write(spec: dict[str, Any], name: str, place: Place) -> None:
    with tempfile.TemporaryDirectory() as private:
        # One level down: Jupyter copies the mode too, and other users have to read this one.
        source = Path(private) / name
        source.mkdir()
        for item in (resources.files("sandbox_kernel") / "kernelspec").iterdir():
            if item.name.startswith("logo-"):
                (source / item.name).write_bytes(item.read_bytes())
        (source / "kernel.json").write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
        try:
            KernelSpecManager().install_kernel_spec(
                str(source),
                kernel_name=name,
                user=place.prefix is None,
                prefix=None if place.prefix is None else str(place.prefix),
            )
        except OSError as error:
            raise SandboxUnavailableError(
                f"`{place.directory / name}` cannot be written: {error.strerror or error}",
                hint="`--user` needs no rights, `--prefix` names any other place",
            ) from None


def _all_directories() -> list[Path]:
    """Return all `kernels` directories that Jupyter looks at, each once."""
    return list(dict.fromkeys(Path(text) for text in KernelSpecManager().kernel_dirs))


def _installed(directories: Sequence[Path]) -> Iterator[Installed]:
    for directory in directories:
        if directory.is_dir():
            for path in sorted(directory.iterdir()):
                if found := _read(path):
                    yield found


def _read(path: Path) -> Installed | None:
    """Return a kernelspec if it is one of ours."""
    try:
        spec = json.loads((path / "kernel.json").read_bytes())
        argv = tuple(spec["argv"])
        shown = str(spec["display_name"])
    except (OSError, ValueError, KeyError, TypeError):
        # Absent, unreadable, broken or of another form: at least not one that we wrote.
        return None
    if MODULE not in argv:
        return None
    return Installed(name=path.name, path=path, argv=argv, display_name=shown)


def _console() -> Console:
    return Console(highlight=False, markup=False, soft_wrap=True)
