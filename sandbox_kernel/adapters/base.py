"""What a provider must offer: start one process in a box, and carry its bytes.

Invariants: an adapter knows nothing of cells, events or Jupyter.  It never
builds code, parses output, or decides what is allowed: it starts `argv` under a
`Policy` and moves bytes.  What it cannot enforce it refuses, in `require`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from sandbox_kernel.errors import SandboxPolicyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sandbox_kernel.policy import Control, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """One sandbox as its provider lists it.

    Attributes:
        sandbox_id: The provider's own id; `Adapter.remove` takes it.
        labels: All labels it carries, ours and others'.
        created: Seconds since the epoch, by the provider's clock.
        status: The provider's word (`running`, `created`, `exited`).
    """

    sandbox_id: str
    labels: Mapping[str, str]
    created: float
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """How much memory a sandbox has.

    Attributes:
        used: Bytes, without what is only a cache of files.
        limit: Bytes that it may use.
    """

    used: int
    limit: int


class Sandbox(Protocol):
    """A running sandbox, as one duplex stream of bytes.

    `recv` is called from one thread, `send` from one at a time; `kill` and the
    rest are safe from any thread.
    """

    @property
    def sandbox_id(self) -> str:
        """The provider's id, as `ps` shows it."""

    def recv(self) -> bytes:
        """Block for the guest's next stdout bytes; `b""` means that the stream ended."""

    def send(self, data: bytes) -> None:
        """Write all of `data` to the guest's stdin.

        Raises:
            SandboxDiedError: The stream is gone, or took no byte for 10 seconds.
        """

    def kill(self) -> None:
        """Destroy the sandbox and end its stream; a second call does nothing.

        Returns within 10 seconds and raises nothing: what the provider did not
        confirm is left to the guest's own dead-man and to `reap`.
        """

    def why(self) -> str:
        """Say why the guest ended (`exited 137, out of memory`), or `""` if not known.

        Asks the provider at most once and for at most 2 seconds; call it after `recv`
        returned `b""`.  May append what the guest wrote to stderr (<= 500 characters, as `repr`).
        """


class Adapter(Protocol):
    """One provider, configured: it makes sandboxes and lists them."""

    name: ClassVar[str]
    enforces: ClassVar[frozenset[Control]]

    def create(
        self,
        policy: Policy,
        argv: Sequence[str],
        labels: Mapping[str, str],
        progress: Callable[[str], None],
    ) -> Sandbox:
        """Start `argv` in a new sandbox that carries `labels`.

        The real posture has been compared with `policy` before `argv` runs.  `progress`
        gets short lines for a person while something slow happens.

        Raises:
            SandboxUnavailableError: No engine, no image, wrong posture; the hint says the fix.
            SandboxPolicyError: The provider cannot enforce the policy.
        """

    def list(self, labels: Mapping[str, str]) -> Iterable[SandboxInfo]:
        """List the sandboxes, running or not, that carry all of `labels`."""

    def remove(self, sandbox_id: str) -> None:
        """Destroy one sandbox; one that is gone already is no error."""


@runtime_checkable
class Measures(Protocol):
    """What an adapter may offer besides: the memory of its sandboxes, for `ps`."""

    def memory(self, sandbox_id: str) -> MemoryUse | None:
        """Return what a sandbox uses, or `None` if it does not run or the provider cannot say.

        Raises:
            SandboxUnavailableError: The provider cannot be asked.
        """


def require(adapter: Adapter, policy: Policy) -> None:
    """Refuse a policy that the provider cannot keep.  There is no fallback.

    Raises:
        SandboxPolicyError: names every control that is missing.
    """
    missing = policy.required - adapter.enforces
    if missing:
        names = ", ".join(sorted(f"`{control.value}`" for control in missing))
        raise SandboxPolicyError(
            f"the {adapter.name} provider cannot enforce {names}",
            hint="choose another provider, or give the promise up in the policy",
        )
