"""Start the kernel process: the sandbox first, ipykernel while it boots.

`python -E -P -m sandbox_kernel.launch -f CONNECTION_FILE [--provider NAME] [--set KEY=VALUE]`

Invariant: nothing of the notebook's folder is read or imported; `-P` keeps it
off `sys.path`, and `-E` whatever `PYTHONPATH` says of it.
"""

from __future__ import annotations

import argparse
import sys
import time
from uuid import uuid4

from sandbox_kernel import __version__, adapters, config, host, labels
from sandbox_kernel.opening import Opener, Plan


def make_plan(arguments: dict[str, object]) -> Plan:
    """Read the trusted layers and choose the adapter; done anew for each sandbox.

    Raises:
        SandboxPolicyError: the configuration is malformed, or asks for more than it may.
    """
    configuration = config.load(arguments=arguments)
    policy = configuration.policy
    return Plan(
        provider=configuration.provider,
        adapter=adapters.get(configuration.provider)(configuration),
        policy=policy,
        labels=labels.make(
            host.owner(),
            session=str(uuid4()),
            version=__version__,
            now=time.time(),
            lifetime_seconds=policy.lifetime_seconds,
        ),
    )


def main(argv: list[str] | None = None) -> None:
    """Begin to make the sandbox, then import ipykernel and serve."""
    parser = argparse.ArgumentParser(prog="sandbox_kernel.launch", allow_abbrev=False)
    parser.add_argument("--provider")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    ours, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    # Before the thread: two threads that import take turns, and both come late.
    adapters.preload(ours.provider)
    # Read when a sandbox is made, so that a mistake in them is the cell's error, not a crash.
    opener = Opener(lambda: make_plan(config.parse_arguments(ours.provider, ours.set)))
    # What follows is imported while the engine works.
    from sandbox_kernel.application import serve  # noqa: PLC0415
    from sandbox_kernel.session import Session  # noqa: PLC0415

    session = Session(opener)
    session.start()
    serve(session, rest)


if __name__ == "__main__":
    main()
