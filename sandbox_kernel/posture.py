"""Compare what the guest reports of its own box with what the policy promised.

Pure.  The report (`wire.Hello`) is written before any user code runs, so it is
worth as much as the boot that precedes it; what user code prints never gets here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox_kernel import wire
    from sandbox_kernel.policy import Policy

#: Runtimes with a kernel of their own: they report neither seccomp nor no-new-privileges,
#: since no system call of the code reaches the host's kernel.
OWN_KERNEL = ("runsc", "kata")


def mismatches(policy: Policy, hello: wire.Hello, version: int) -> list[str]:
    """Say, a short phrase each, where the sandbox is not what the policy promised."""
    found = []

    def expect(holds: bool, phrase: str) -> None:  # noqa: FBT001 - it reads as a sentence
        if not holds:
            found.append(phrase)

    own_kernel = policy.runtime.startswith(OWN_KERNEL)
    expect(hello.version == version, f"the guest speaks protocol {hello.version}, not {version}")
    expect(hello.uid == policy.uid, f"it runs as uid {hello.uid}, not {policy.uid}")
    expect(hello.gid == policy.gid, f"it runs as gid {hello.gid}, not {policy.gid}")
    expect(not hello.root_writable, "its root file system is writable")
    if not policy.network:
        extra = sorted(set(hello.interfaces) - {"lo"})
        expect(not extra, f"it has the network interfaces {', '.join(extra)}")
    if not own_kernel:
        expect(hello.no_new_privs == 1, "it may gain privileges (`no_new_privs` is off)")
        expect(hello.seccomp == 2, "no seccomp filter is on")
        expect(not hello.cap_bnd.strip("0"), f"it has the capabilities {hello.cap_bnd}")
        # With its own kernel the limits stand in the host's cgroup, which inspection compared.
        expect(
            0 < hello.memory_bytes <= policy.memory_bytes,
            f"its memory limit is {_limit(hello.memory_bytes)}, not {policy.memory_bytes}",
        )
        expect(
            0 < hello.pids_limit <= policy.pids_limit,
            f"its process limit is {_limit(hello.pids_limit)}, not {policy.pids_limit}",
        )
    return found


def _limit(value: int) -> str:
    return {0: "absent", -1: "not readable"}.get(value, str(value))
