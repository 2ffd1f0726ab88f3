"""Start the kernel process: the sandbox first, ipykernel while it boots.

`python -P -m sandbox_kernel.launch -f CONNECTION_FILE [--provider NAME] [--set KEY=VALUE]`

Invariant: nothing of the notebook's folder is read or imported; `-P` keeps it off `sys.path`.
"""

from __future__ import annotations

import argparse
import os
import sys

from sandbox_kernel import adapters, config, host, labels
from sandbox_kernel.session import Plan, Session


def make_plan(arguments: dict[str, object]) -> Plan:
    """Read the trusted layers and choose the adapter; done anew for each sandbox.

    Raises:
        SandboxPolicyError: the configuration is malformed, or asks for more than it may.
    """
    configuration = config.load(arguments=arguments)
    pid = os.getpid()
    owner = labels.Owner(
        uid=host.user(), boot_id=host.boot_id(), pid=pid, started=host.start_time(pid) or 0
    )
    return Plan(
        provider=configuration.provider,
        adapter=adapters.get(configuration.provider)(configuration),
        policy=configuration.policy,
        labels=labels.make(owner, lifetime_seconds=configuration.policy.lifetime_seconds),
    )


def main(argv: list[str] | None = None) -> None:
    """Begin to make the sandbox, then import ipykernel and serve."""
    parser = argparse.ArgumentParser(prog="sandbox_kernel.launch", allow_abbrev=False)
    parser.add_argument("--provider")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    ours, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    arguments = config.parse_arguments(ours.provider, ours.set)
    session = Session(lambda: make_plan(arguments))
    session.start()
    from sandbox_kernel import kernel  # noqa: PLC0415 - imported while the sandbox boots

    kernel.serve(session, rest)


if __name__ == "__main__":
    main()
