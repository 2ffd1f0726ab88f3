"""What a sandbox may do: one frozen value, decided before anything starts.

Invariants: every default stands here and nowhere else.  An adapter reads every
field, or declares through `Control` that it cannot enforce it, and then refuses
to run.  Nothing in this module reads a file, a variable or a clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING

from sandbox_kernel.errors import SandboxPolicyError

if TYPE_CHECKING:
    from collections.abc import Iterable

MIB = 1024 * 1024

#: The image that `sandbox-kernel image build` makes.
DEFAULT_IMAGE = "sandbox-kernel/python"

#: `nobody` and `nogroup` on Debian and most others; owns no file anywhere.
NOBODY = 65534

#: Open files of each process in a sandbox.
NOFILE = 1024

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Control(Enum):
    """One promise that a policy makes and that a provider must keep."""

    IMAGE = "image"
    RUNTIME = "runtime"
    NETWORK_OFF = "network = false"
    MEMORY = "memory_bytes"
    CPUS = "cpus"
    PIDS = "pids_limit"
    READ_ONLY_ROOT = "read_only root"
    TMPFS_SIZE = "tmpfs_bytes"
    USER = "uid, gid"
    NO_NEW_PRIVILEGES = "no new privileges"
    NO_CAPABILITIES = "capabilities dropped"
    SYSCALL_FILTER = "syscall filter"
    ENV = "env"


class Display(Enum):
    """How much of a cell's rich output reaches the page, from least to most."""

    STRICT = "strict"
    STATIC = "static"
    INTERACTIVE = "interactive"
    TRUSTED = "trusted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits of one sandbox; the same defaults for every provider.

    Attributes:
        image: Image reference, as `docker run` takes it; anything with `python3` >= 3.9.
        runtime: OCI runtime name (`runsc`, `kata`), or `""` for the engine's default.
        network: False leaves only the loopback interface.
        timeout_seconds: Wall-clock time of one cell, after which it is interrupted.
        grace_seconds: From the interrupt until the worker is killed.
        memory_bytes: Of the whole sandbox, tmpfs included; swap adds nothing.
        cpus: Whole and part CPUs of run time a second, as docker's `--cpus`.
        pids_limit: Processes and threads of the whole sandbox.
        tmpfs_bytes: Size of `/tmp`, and again of `/sandbox`.
        uid: User id in the sandbox; 0 is refused.
        gid: Group id in the sandbox; 0 is refused.
        output_bytes: What one cell may print and show; the rest is counted and dropped.
        lifetime_seconds: Of the sandbox, however busy; then it ends itself.
        idle_seconds: Without a request, after which the sandbox ends itself.
        stdin: Whether `input()` may ask the user.
        display: The output firewall's mode.
        checkpoint: Whether a worker that had to be killed gets its variables back.
        checkpoints: How many cells `%sandbox rewind` can go back.
        env: Variables for the code, as pairs sorted by name; nothing else of the host.
    """

    image: str = DEFAULT_IMAGE
    runtime: str = ""
    network: bool = False
    timeout_seconds: float = 30.0
    grace_seconds: float = 2.0
    memory_bytes: int = 512 * MIB
    cpus: float = 1.0
    pids_limit: int = 100
    tmpfs_bytes: int = 64 * MIB
    uid: int = NOBODY
    gid: int = NOBODY
    output_bytes: int = 8 * MIB
    lifetime_seconds: float = 24 * 3600.0
    idle_seconds: float = 4 * 3600.0
    stdin: bool = True
    display: Display = Display.STRICT
    checkpoint: bool = True
    checkpoints: int = 1
    env: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Refuse a value that no provider could keep; the message names the field."""
        for name in RANGES:
            _check_number(name, getattr(self, name))
        # Any other value would be taken for true: `network="off"` would be on.
        for name in ("network", "stdin", "checkpoint"):
            if not isinstance(getattr(self, name), bool):
                raise SandboxPolicyError(
                    f"`{name}` is `{getattr(self, name)!r}`, which is neither true nor false"
                )
        if not isinstance(self.display, Display):
            raise SandboxPolicyError(f"`display` is `{self.display!r}`, which is no display mode")
        if not self.image or self.image.startswith("-") or any(c.isspace() for c in self.image):
            raise SandboxPolicyError(f"`image` is `{self.image!r}`, which is not an image name")
        _check_env(self.env)

    @property
    def required(self) -> frozenset[Control]:
        """The controls that a provider must enforce to run this policy."""
        wanted = set(Control) - {Control.RUNTIME, Control.NETWORK_OFF}
        if self.runtime:
            wanted.add(Control.RUNTIME)
        if not self.network:
            wanted.add(Control.NETWORK_OFF)
        return frozenset(wanted)


#: Smallest and largest sensible value of each number, both included.
RANGES: dict[str, tuple[float, float]] = {
    "timeout_seconds": (0.1, 7 * 24 * 3600),
    "grace_seconds": (0.1, 60),
    # Python and IPython alone take about 60 MiB.
    "memory_bytes": (64 * MIB, 1024 * 1024 * MIB),
    "cpus": (0.1, 1024),
    # The supervisor, the worker, its checkpoint and one child are the least that works.
    "pids_limit": (8, 65536),
    "tmpfs_bytes": (1 * MIB, 1024 * 1024 * MIB),
    "uid": (1, 2**31 - 1),
    "gid": (1, 2**31 - 1),
    "output_bytes": (1024, 1024 * MIB),
    "lifetime_seconds": (1, 30 * 24 * 3600),
    "idle_seconds": (1, 30 * 24 * 3600),
    "checkpoints": (1, 100),
}

#: The numbers that have no part after the point.
WHOLE = frozenset(field.name for field in fields(Policy) if type(field.default) is int)

#: The names that a policy has, in the order of the class.
FIELD_NAMES: tuple[str, ...] = tuple(field.name for field in fields(Policy))


def _check_number(name: str, value: object) -> None:
    low, high = RANGES[name]
    # A float would pass for a whole number until the provider's own call refuses it.
    kind = "a whole number" if name in WHOLE else "a number"
    if isinstance(value, bool) or not isinstance(value, int if name in WHOLE else int | float):
        raise SandboxPolicyError(f"`{name}` is `{value!r}`, which is not {kind}")
    if not low <= value <= high:
        raise SandboxPolicyError(
            f"`{name}` is `{value}`, outside of `{low:.15g}` to `{high:.15g}`",
            hint=f"choose a value from {low:.15g} to {high:.15g}",
        )


def _check_env(env: Iterable[tuple[str, str]]) -> None:
    for name, value in env:
        if not ENV_NAME.match(name):
            raise SandboxPolicyError(
                f"`{name!r}` is not the name of an environment variable",
                hint="letters, digits and `_`, not starting with a digit",
            )
        if "\0" in value:
            raise SandboxPolicyError(f"the value of `env.{name}` holds a NUL character")
