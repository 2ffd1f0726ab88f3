"""The registry: an adapter by its provider's name.

A distribution adds a provider with an entry point in the group
`sandbox_kernel.adapters`: a callable that takes a `Configuration` and returns an
`Adapter`.

Invariants: importing this imports no vendor's package, and looking a built-in name
up loads nothing else.  A built-in name cannot be taken over by an entry point.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from sandbox_kernel.errors import SandboxPolicyError, SandboxUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox_kernel.adapters.base import Adapter
    from sandbox_kernel.config import Configuration

    Factory = Callable[[Configuration], Adapter]

GROUP = "sandbox_kernel.adapters"


def _docker(configuration: Configuration) -> Adapter:
    from sandbox_kernel.adapters.docker import DockerAdapter  # noqa: PLC0415 - only when chosen

    return DockerAdapter(configuration.docker)


def _none(_configuration: Configuration) -> Adapter:
    from sandbox_kernel.adapters.none import NoneAdapter  # noqa: PLC0415 - only when chosen
    from sandbox_kernel.config import ADMIN_PATH, default_user_path  # noqa: PLC0415 - likewise

    return NoneAdapter(default_user_path() or ADMIN_PATH)


_BUILT_IN: dict[str, Factory] = {"docker": _docker, "none": _none}


def get(name: str) -> Factory:
    """Return the maker of a provider's adapter.

    Raises:
        SandboxPolicyError: There is no provider of that name.
        SandboxUnavailableError: Its package cannot be imported.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    # Reads every installed distribution's metadata: slow, and needed by few.
    from importlib.metadata import entry_points  # noqa: PLC0415

    for entry in entry_points(group=GROUP, name=name):
        try:
            factory: Factory = entry.load()
        except (ImportError, AttributeError) as error:
            raise SandboxUnavailableError(
                f"the provider `{name}` cannot be loaded from `{entry.value}`: {error}",
                hint="install its package again, with what it depends on",
            ) from None
        return factory
    known = names()
    close = difflib.get_close_matches(name, known, n=1)
    listed = ", ".join(f"`{item}`" for item in known)
    raise SandboxPolicyError(
        f"there is no provider `{name}`",
        hint=(f"did you mean `{close[0]}`? " if close else "") + f"the providers are {listed}",
    )


def preload(name: str | None) -> None:
    """Import what a built-in provider will need to start a sandbox."""
    if name == "docker":
        from sandbox_kernel.adapters import (  # noqa: PLC0415 - for its effect
            docker_context,  # noqa: F401
            docker_engine,  # noqa: F401
        )


def names() -> list[str]:
    """Return the names of all providers, built in and installed, sorted."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - as above

    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})
