"""The provider `none`: what a machine has until somebody chooses another one.

Invariant: it runs nothing.  Nothing falls back to it, and it falls back to nothing.
"""

# ruff: noqa: ARG002 - the signatures are the interface's

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn

from sandbox_kernel.errors import SandboxPolicyError
from sandbox_kernel.policy import Control

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sandbox_kernel.adapters.base import SandboxInfo
    from sandbox_kernel.policy import Policy


class NoneAdapter:
    """An adapter that refuses every use.

    Args:
        config_path: The file where the user can choose a provider, for the hint.
    """

    name: ClassVar[str] = "none"
    # What runs nothing breaks no promise; so it is `create` that refuses, and says why.
    enforces: ClassVar[frozenset[Control]] = frozenset(Control)

    def __init__(self, config_path: Path) -> None:
        self._config_path = config_path

    def create(
        self,
        policy: Policy,
        argv: Sequence[str],
        labels: Mapping[str, str],
        progress: Callable[[str], None],
    ) -> NoReturn:
        """Refuse.

        Raises:
            SandboxPolicyError: Always.
        """
        raise SandboxPolicyError(
            "the provider `none` runs nothing",
            hint="install a kernel with `sandbox-kernel install --provider docker`, "
            f'or set `provider = "docker"` in `{self._config_path}`',
        )

    def list(self, labels: Mapping[str, str]) -> tuple[SandboxInfo, ...]:
        """List nothing: there never was a sandbox."""
        return ()

    def remove(self, sandbox_id: str) -> None:
        """Do nothing: a sandbox that is gone already is no error."""
