"""Finds the engine that the `docker` command would use; nothing is connected.

Invariant: docker-py is imported only for a named context, whose files it knows best.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from sandbox_kernel.adapters.docker_address import DEFAULT_SOCKET, Endpoint, Tls
from sandbox_kernel.errors import SandboxUnavailableError

CONFIG_FILE = "config.json"


def find(host: str) -> Endpoint:
    """Find the engine as the `docker` command does.

    In this order: `host`, `DOCKER_HOST`, `DOCKER_CONTEXT`, the current
    context of `~/.docker/config.json`, and the default socket.

    Raises:
        SandboxUnavailableError: The context does not exist, or names an engine that this
            adapter cannot talk to.
    """
    found = _find(host)
    if found.url.startswith(("ssh://", "npipe://")):
        raise SandboxUnavailableError(
            f"the engine at `{found.url}` ({found.why}) is behind a protocol that this"
            " adapter does not speak",
            hint="forward its socket: `ssh -NL /tmp/docker.sock:/var/run/docker.sock HOST`"
            " and `DOCKER_HOST=unix:///tmp/docker.sock`",
        )
    return found


def _find(host: str) -> Endpoint:
    if host:
        return Endpoint(url=host, why="from the configuration", tls=_tls())
    if url := os.environ.get("DOCKER_HOST"):
        return Endpoint(url=url, why="from `DOCKER_HOST`", tls=_tls())
    if name := os.environ.get("DOCKER_CONTEXT"):
        return _of_context(name, "from `DOCKER_CONTEXT`")
    return _of_context(_current_context(), "the current one")


def _tls() -> Tls | None:
    """Return what `DOCKER_TLS_VERIFY` and `DOCKER_CERT_PATH` ask for; empty counts as unset."""
    verify = bool(os.environ.get("DOCKER_TLS_VERIFY"))
    folder = os.environ.get("DOCKER_CERT_PATH")
    if not (verify or folder):
        return None
    files = Path(folder) if folder else _home() / ".docker"
    return Tls(
        ca=str(files / "ca.pem"),
        cert=str(files / "cert.pem"),
        key=str(files / "key.pem"),
        verify=verify,
    )


def _current_context() -> str:
    folders = [_home() / ".docker"]
    if folder := os.environ.get("DOCKER_CONFIG"):
        folders.insert(0, Path(folder))
    path = next((each / CONFIG_FILE for each in folders if (each / CONFIG_FILE).exists()), None)
    if path is None:
        return ""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    # The `docker` command too goes on without a file that it cannot read.
    except (OSError, ValueError, RecursionError):
        return ""
    return str(settings.get("currentContext") or "") if isinstance(settings, dict) else ""


def _home() -> Path:
    # `Path.home` raises for a user without an entry, as they are in containers.
    return Path(os.path.expanduser("~"))  # noqa: PTH111


def _of_context(name: str, why: str) -> Endpoint:
    if name in ("", "default"):
        return Endpoint(url=f"unix://{DEFAULT_SOCKET}", why="the default")
    from sandbox_kernel.adapters import docker_vendor  # noqa: PLC0415 - slow, and needed by few

    found = docker_vendor.read_context(name, why)
    # docker-py itself would take the default engine, which is another than the user chose.
    if found is None:
        raise SandboxUnavailableError(
            f"the docker context `{name}` ({why}) does not exist, or cannot be read",
            hint="`docker context ls` lists them, `docker context use <name>` chooses one",
        )
    return found
