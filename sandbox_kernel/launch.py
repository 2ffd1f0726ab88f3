"""Start the kernel process: the sandbox first, ipykernel while it boots.

`python -E -P -m sandbox_kernel.launch -f CONNECTION_FILE [--provider NAME] [--set KEY=VALUE]`

Invariant: nothing of the notebook's folder is read or imported; `-P` keeps it
off `sys.path`, and `-E` whatever `PYTHONPATH` says of it.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib.metadata import version
from uuid import uuid4

from sandbox_kernel import adapters, config, host, labels
from sandbox_kernel.box import Plan
from sandbox_kernel.session import Session


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
            version=version("sandbox-kernel"),
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
    # Read when a sandbox is made, so that a mistake in them is the cell's error, not a crash.
    session = Session(lambda: make_plan(config.parse_arguments(ours.provider, ours.set)))
    session.start()
    from sandbox_kernel import application  # noqa: PLC0415 - imported while the sandbox boots

    application.serve(session, rest)


if __name__ == "__main__":
    main()
