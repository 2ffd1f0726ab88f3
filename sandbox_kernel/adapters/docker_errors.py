"""What an engine said, as one sentence and the way out of it.

Invariants: pure, and free of docker-py.  The engine's own words appear only
through `quoted`: as `repr`, and cut.  Which failure it was is decided from the
status and the engine's message, because engines have no codes for it.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from sandbox_kernel.errors import SandboxUnavailableError
from sandbox_kernel.policy import DEFAULT_IMAGE

MAX_QUOTED = 200

#: Docker Engine 20.10, of December 2020: the first with `CgroupnsMode`.
LOWEST_API = "1.41"

START_ENGINE = (
    "start it (`sudo systemctl start docker`), or name another in `DOCKER_HOST` or `docker context`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked of which engine; the values that a message names."""

    url: str
    image: str = ""
    runtime: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A message of an engine, and ours for it; both sentences are formatted with the request."""

    pattern: re.Pattern[str]
    message: str
    hint: str


def _rule(pattern: str, message: str, hint: str) -> Rule:
    return Rule(re.compile(pattern, re.IGNORECASE), message, hint)


#: The first that matches counts.
RULES: tuple[Rule, ...] = (
    _rule(
        r"no such image|image not known|not found: does not exist",
        "the engine has no image `{image}`",
        "{get_image}",
    ),
    _rule(
        r"(unknown|invalid|unsupported).{0,40}runtime|runtime.{0,80}not found",
        "the engine has no runtime `{runtime}`",
        "add it to `runtimes` in the engine's `daemon.json`, or leave `runtime` empty",
    ),
    _rule(
        r"exec format error",
        "the image `{image}` is for another processor than the engine's",
        "pull it for the engine's platform: `docker pull --platform …`",
    ),
    _rule(
        r"executable file.*not found|no such file or directory.*(exec|python)|exec:.*not found",
        "the image `{image}` has no `python3`",
        "choose an image with Python 3.9 or later, such as `python:3.12-slim`",
    ),
    _rule(
        r"range of cpus",
        "the engine's host has fewer CPUs than the policy's `cpus`",
        "lower `cpus`",
    ),
    _rule(
        r"seccomp",
        "the engine cannot filter system calls",
        "use a kernel with `CONFIG_SECCOMP_FILTER`, and the engine's default seccomp profile",
    ),
    _rule(
        r"cgroup",
        "the engine cannot set up control groups, so no limit would hold",
        "mount cgroup v2 (or all v1 controllers) on the engine's host; `docker info` warns of it",
    ),
    _rule(
        r"client version .* is too (old|new)|maximum supported api version",
        "the engine and this adapter have no API version in common",
        f"use Docker Engine 20.10 (API {LOWEST_API}) or later, and the latest `docker` for Python",
    ),
)


def refused(message: str, request: Request) -> SandboxUnavailableError:
    """Return the error for an answer of the engine that was not a success."""
    for rule in RULES:
        if rule.pattern.search(message):
            values = {"image": request.image, "runtime": request.runtime or "(default)"}
            get_image = (
                "build it: `sandbox-kernel image build`"
                if request.image.partition(":")[0] == DEFAULT_IMAGE
                else f"pull it: `docker pull {request.image}`"
            )
            return SandboxUnavailableError(
                rule.message.format(**values),
                hint=rule.hint.format(get_image=get_image) + f"; the engine said {quoted(message)}",
            )
    return SandboxUnavailableError(
        f"the engine at `{request.url}` refused: {quoted(message)}",
        hint="`docker info` shows whether the engine is healthy",
    )


def unreachable(reason: int | None, request: Request) -> SandboxUnavailableError:
    """Return the error for an engine that could not be talked to.

    Args:
        reason: The `errno` of the connection, or `None` if it broke in another way.
        request: Which engine.
    """
    where = f"`{request.url}`"
    if reason in (errno.EACCES, errno.EPERM):
        return SandboxUnavailableError(
            f"this user may not use the docker engine at {where}",
            hint="use a rootless engine, or join the group `docker`, which is as good as root",
        )
    if reason == errno.ENOENT:
        return SandboxUnavailableError(
            f"there is no docker engine at {where}",
            hint=f"install Docker; if it is installed, {START_ENGINE}",
        )
    if reason == errno.ECONNREFUSED:
        return SandboxUnavailableError(
            f"no docker engine listens at {where}", hint=f"it is not running: {START_ENGINE}"
        )
    known = "" if reason is None else f": `{errno.errorcode.get(reason, reason)}`"
    return SandboxUnavailableError(
        f"the connection to the docker engine at {where} failed{known}",
        hint="check that this address is a Docker API, and that its engine runs",
    )


def silent(seconds: float, request: Request) -> SandboxUnavailableError:
    """Return the error for an engine that took the connection and said nothing."""
    return SandboxUnavailableError(
        f"the docker engine at `{request.url}` did not answer within {seconds:g} seconds",
        hint="it may be overloaded or hung; try `docker ps`, and restart it if that hangs too",
    )


def no_engine(request: Request) -> SandboxUnavailableError:
    """Return the error for an answer that no engine gives."""
    return SandboxUnavailableError(
        f"what answers at `{request.url}` is not a docker engine",
        hint="check `DOCKER_HOST` and `docker context show`",
    )


def too_old(version: str, request: Request) -> SandboxUnavailableError:
    """Return the error for an engine below `LOWEST_API`."""
    return SandboxUnavailableError(
        f"the docker engine at `{request.url}` has API {quoted(version)},"
        f" and {LOWEST_API} is needed",
        hint="use Docker Engine 20.10 or later",
    )


def posture(wrong: list[str], request: Request) -> SandboxUnavailableError:
    """Return the error for a container that is not what was asked for."""
    joined = ", ".join(wrong)
    if "`VOLUME " in joined:
        hint = "use an image without `VOLUME`"
    elif any(limit in joined for limit in ("`Memory", "`NanoCpus", "`PidsLimit")):
        hint = (
            "rootless engines on cgroup v1 ignore limits, and kernels without swap accounting"
            " ignore `MemorySwap`: use cgroup v2"
        )
    else:
        hint = "the engine's own configuration overrides the policy; `docker info` shows it"
    return SandboxUnavailableError(
        f"the engine at `{request.url}` does not keep the policy: {joined}", hint=hint
    )


def misconfigured(reason: str) -> SandboxUnavailableError:
    """Return the error for settings of docker's own that cannot be used."""
    return SandboxUnavailableError(
        f"docker's own settings cannot be used: {quoted(reason)}",
        hint="check `DOCKER_HOST`, `DOCKER_CERT_PATH` and `~/.docker/config.json`",
    )


def quoted(text: str) -> str:
    """Return a foreign text as a `repr` of at most `MAX_QUOTED` characters."""
    return repr(text.strip()[:MAX_QUOTED])[:MAX_QUOTED]
