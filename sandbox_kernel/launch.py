"""Start the kernel process: the sandbox first, ipykernel while it boots.

`python -E -P -m sandbox_kernel.launch -f CONNECTION_FILE [--provider NAME] [--set KEY=VALUE]`

Invariant: nothing of the notebook's folder is read or imported; `-P` keeps it
off `sys.path`, and `-E` whatever `PYTHONPATH` says of it.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from typing import TYPE_CHECKING
from uuid import uuid4

from sandbox_kernel import __version__, adapters, config, host, labels
from sandbox_kernel.errors import SandboxKernelError
from sandbox_kernel.opening import Opener, Plan
from sandbox_kernel.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    #: Is told, before a sandbox is made, what its adapter is made from, and its session.
    Announce = Callable[[Mapping[str, str], str], None]

#: Seconds from the start until the sweep, so that it takes nothing from the first cell.
SWEEP_AFTER_SECONDS = 3.0


def _to_nobody(settings: Mapping[str, str], session: str) -> None:
    """Announce nothing, for a sandbox that somebody else looks after."""


def make_plan(arguments: dict[str, object], announce: Announce = _to_nobody) -> Plan:
    """Read the trusted layers and choose the adapter; done anew for each sandbox.

    Raises:
        SandboxPolicyError: the configuration is malformed, or asks for more than it may.
    """
    configuration = config.load(arguments=arguments)
    policy = configuration.policy
    adapter = adapters.get(configuration.provider)(configuration)
    session = str(uuid4())
    # Not the policy: removing takes none, and its environment may hold secrets.
    settings = {"provider": configuration.provider, "docker.host": configuration.docker.host}
    announce({key: value for key, value in settings.items() if value}, session)
    return Plan(
        provider=configuration.provider,
        adapter=adapter,
        policy=policy,
        labels=labels.make(
            host.owner(),
            session=session,
            version=__version__,
            now=time.time(),
            lifetime_seconds=policy.lifetime_seconds,
        ),
    )


def sweep(arguments: Callable[[], dict[str, object]]) -> None:
    """Remove the sandboxes that kernels before this one left; the log says which."""
    import logging  # noqa: PLC0415 - all of these have time until now

    from sandbox_kernel import reaper  # noqa: PLC0415

    log = logging.getLogger(__name__)
    try:
        configuration = config.load(arguments=arguments())
        adapter = adapters.get(configuration.provider)(configuration)
        found = reaper.orphans(adapter, me=host.owner(), now=time.time())
    except SandboxKernelError as error:
        # Whoever runs a cell is told, with the hint.
        log.debug("no sweep: %s", error.message)
        return
    for removal in reaper.remove(adapter, found):
        outcome = removal.error.message if removal.error else "removed"
        orphan = removal.orphan
        log.info("%s, %s: %s", orphan.sandbox.sandbox_id[:12], orphan.reason.value, outcome)


def main(argv: list[str] | None = None) -> None:
    """Begin to make the sandbox, then import ipykernel and serve."""
    parser = argparse.ArgumentParser(prog="sandbox_kernel.launch", allow_abbrev=False)
    parser.add_argument("--provider")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    ours, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    # Before the thread: two threads that import take turns, and both come late.
    adapters.preload(ours.provider)

    def arguments() -> dict[str, object]:
        # When a sandbox is made, so that a mistake in them is the cell's error, not a crash.
        return config.parse_arguments(ours.provider, ours.set)

    watcher = Watcher()
    opener = Opener(lambda: make_plan(arguments(), watcher.watch))
    # What follows is imported while the engine works.
    from sandbox_kernel.application import serve  # noqa: PLC0415
    from sandbox_kernel.session import Session  # noqa: PLC0415

    session = Session(opener)
    session.start()
    _sweep_soon(arguments)
    serve(session, rest)
    # A sandbox that is still being made is left to the watcher.
    if opener.idle:
        watcher.dismiss()


def _sweep_soon(arguments: Callable[[], dict[str, object]]) -> None:
    timer = threading.Timer(SWEEP_AFTER_SECONDS, sweep, [arguments])
    timer.name, timer.daemon = "sandbox-sweep", True
    timer.start()


if __name__ == "__main__":
    main()
