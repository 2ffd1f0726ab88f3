"""A sandbox in use: the plan it was made from, its stream, and the conversation over it.

Invariants: the guest's posture is compared with the policy before anything else is sent;
bytes become events here and nowhere else on the host.  No thread, no clock, no lock: its
session has those.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox_kernel import bootstrap, wire
from sandbox_kernel.about import About
from sandbox_kernel.adapters.base import require
from sandbox_kernel.display import Firewall
from sandbox_kernel.errors import (
    SandboxDiedError,
    SandboxKernelError,
    SandboxUnavailableError,
)
from sandbox_kernel.policy import NOFILE
from sandbox_kernel.posture import mismatches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandbox_kernel.adapters.base import Adapter
    from sandbox_kernel.policy import Policy

log = logging.getLogger(__name__)

#: On a local stream the window only bounds memory; see `docs/reference/protocol.md`.
WINDOW_BYTES = 4 * 1024 * 1024
#: Seconds without a ping after which the guest ends itself.
DEADMAN_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to start: made anew for each sandbox, so that a mended configuration counts."""

    provider: str
    adapter: Adapter
    policy: Policy
    labels: Mapping[str, str]


class Box:
    """One sandbox, from its creation on.  `kill` it in any case.

    Attributes:
        broken: Why its session ended it, if it did.
    """

    def __init__(self, plan: Plan, progress: Callable[[str], None]) -> None:
        """Make the sandbox; blocks until the provider has started it.

        Raises:
            SandboxUnavailableError: The provider could not; the hint says the fix.
            SandboxPolicyError: The provider cannot enforce the policy.
        """
        require(plan.adapter, plan.policy)
        self.plan = plan
        self.policy = plan.policy
        self.sandbox = plan.adapter.create(plan.policy, bootstrap.ARGV, plan.labels, progress)
        self.connection = wire.Connection(wire.Role.HOST, wire.Role.GUEST, window=WINDOW_BYTES)
        self.firewall = Firewall(plan.policy.display)
        self.broken: SandboxKernelError | None = None

    @property
    def ready(self) -> bool:
        """Whether the guest has said hello."""
        return self.connection.phase is not wire.Phase.STARTING

    @property
    def waits_for_input(self) -> bool:
        """Whether the running cell has asked the user."""
        return self.connection.phase is wire.Phase.WAITING_INPUT

    def send_guest(self) -> None:
        """Write the guest's source; the first thing that the sandbox reads."""
        self._write(bootstrap.payload(_settings(self.policy)))

    def send(self, event: wire.Event) -> None:
        """Write an event.  If the stream is gone, its reader finds out and says so."""
        self._write(self.connection.send(event))

    def _write(self, data: bytes) -> None:
        try:
            self.sandbox.send(data)
        except SandboxDiedError as error:
            log.debug("send failed: %s", error)

    def welcome(self, hello: wire.Hello) -> About:
        """Compare the guest's posture with the policy.

        Raises:
            SandboxUnavailableError: They differ.
        """
        wrong = mismatches(self.policy, hello, wire.VERSION)
        if wrong:
            raise SandboxUnavailableError(
                f"the sandbox is not what the policy promised: {'; '.join(wrong)}",
                hint="the engine discards a limit, or the image or runtime weakens the box",
            )
        return About(
            provider=self.plan.provider,
            sandbox_id=self.sandbox.sandbox_id,
            policy=self.policy,
            python=hello.python,
            shell=hello.shell,
            protected=hello.protected,
            inner_filter=hello.seccomp_inner,
        )


def _settings(policy: Policy) -> dict[str, int | float | bool | str]:
    """What the guest is told at boot."""
    return {
        "memory_bytes": policy.memory_bytes,
        "output_bytes": policy.output_bytes,
        "window_bytes": WINDOW_BYTES,
        "replay": False,
        "deadman_seconds": DEADMAN_SECONDS,
        "lifetime_seconds": policy.lifetime_seconds,
        "idle_seconds": policy.idle_seconds,
        "network": policy.network,
        "stdin": policy.stdin,
        "image": policy.image,
        "checkpoint": policy.checkpoint,
        "checkpoints": policy.checkpoints,
        "nofile": NOFILE,
    }
