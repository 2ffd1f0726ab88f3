"""A sandbox in use: its stream, and the conversation over it.

Invariants: the guest's posture is compared with the policy before anything else is sent;
bytes become events here and nowhere else on the host.  No thread, no clock, no lock: its
session has those.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sandbox_kernel import wire
from sandbox_kernel.about import About
from sandbox_kernel.display import Firewall
from sandbox_kernel.errors import (
    SandboxDiedError,
    SandboxKernelError,
    SandboxUnavailableError,
)
from sandbox_kernel.lineage import Lineage
from sandbox_kernel.opening import WINDOW_BYTES
from sandbox_kernel.posture import mismatches

if TYPE_CHECKING:
    from sandbox_kernel.opening import Opened

log = logging.getLogger(__name__)


class Box:
    """One sandbox that was opened.

    Attributes:
        broken: Why its session ended it, if it did.
    """

    def __init__(self, opened: Opened) -> None:
        self.plan = opened.plan
        self.policy = opened.plan.policy
        self.sandbox = opened.sandbox
        self.connection = wire.Connection(wire.Role.HOST, wire.Role.GUEST, window=WINDOW_BYTES)
        self.firewall = Firewall(self.policy.display)
        self.lineage = Lineage()
        self.broken: SandboxKernelError | None = None

    @property
    def ready(self) -> bool:
        """Whether the guest has said hello."""
        return self.connection.phase is not wire.Phase.STARTING

    @property
    def waits_for_input(self) -> bool:
        """Whether the running cell has asked the user."""
        return self.connection.phase is wire.Phase.WAITING_INPUT

    def send(self, event: wire.Event) -> None:
        """Write an event.  If the stream is gone, its reader finds out and says so."""
        data = self.connection.send(event)
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
