"""Open a sandbox: create it under a policy and send it the guest.

Needs no more than a policy, an adapter and the guest's source, so that it is imported and
under way before the display filters and ipykernel are loaded.  Nothing runs in the sandbox
but the guest; whether its posture is right is for `box` to check before the first cell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox_kernel import bootstrap
from sandbox_kernel.adapters.base import require
from sandbox_kernel.errors import SandboxDiedError, SandboxKernelError
from sandbox_kernel.policy import NOFILE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandbox_kernel.adapters.base import Adapter, Sandbox
    from sandbox_kernel.policy import Policy

#: On a local stream the window only bounds memory; see `docs/reference/protocol.md`.
WINDOW_BYTES = 4 * 1024 * 1024
#: Seconds without a ping after which the guest ends itself.
DEADMAN_SECONDS = 60.0

#: Takes short lines for a person while something slow happens.
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to start: made anew for each sandbox, so that a mended configuration counts."""

    provider: str
    adapter: Adapter
    policy: Policy
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Opened:
    """A sandbox that runs the guest, and what it was made from."""

    plan: Plan
    sandbox: Sandbox


def open_sandbox(plan: Plan, progress: Progress) -> Opened:
    """Make the sandbox and send it the guest; blocks until the provider has started it.

    Raises:
        SandboxUnavailableError: The provider could not; the hint says the fix.
        SandboxPolicyError: The provider cannot enforce the policy.
    """
    require(plan.adapter, plan.policy)
    sandbox = plan.adapter.create(plan.policy, bootstrap.ARGV, plan.labels, progress)
    # A guest that ended already says why to who reads its stream.
    with suppress(SandboxDiedError):
        sandbox.send(bootstrap.payload(_settings(plan.policy)))
    return Opened(plan, sandbox)


class Opener:
    """Opens sandboxes; the first one at once, so that the caller can go on importing."""

    def __init__(self, make_plan: Callable[[], Plan]) -> None:
        self._make_plan = make_plan
        self._first: Opened | SandboxKernelError | None = None
        #: Whether no sandbox is being made at this moment.
        self.idle = False
        self._thread: threading.Thread | None = None
        try:
            # Not in the thread: the caller imports, and two threads that compute take turns.
            plan = make_plan()
        except SandboxKernelError as error:
            self._first, self.idle = error, True
            return
        self._thread = threading.Thread(
            target=self._open_first, args=(plan,), name="sandbox-open", daemon=True
        )
        self._thread.start()
        # Kept, and ready when the engine is.
        bootstrap.payload(_settings(plan.policy))

    def _open_first(self, plan: Plan) -> None:
        try:
            self._first = self._open(plan, _silently)
        except SandboxKernelError as error:
            self._first = error

    def __call__(self, progress: Progress) -> Opened:
        """Return the first sandbox, and at each later call a new one.

        Raises:
            SandboxKernelError: As `open_sandbox`, or the configuration is malformed.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        first, self._first = self._first, None
        if isinstance(first, SandboxKernelError):
            raise first
        return first or self._open(self._make_plan(), progress)

    def _open(self, plan: Plan, progress: Progress) -> Opened:
        self.idle = False
        try:
            return open_sandbox(plan, progress)
        finally:
            self.idle = True


def _silently(line: str) -> None:
    """There is no cell yet that could show a line."""


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
