"""Talks to one engine through docker-py: find it, agree on a version, make and remove.

Invariants: every call has a time-out.  A client serves one thread and one
errand, because docker-py's session is not safe to share.  None of the
exceptions of docker-py and what it stands on leaves this module.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import time
import uuid
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import docker
from docker.context import ContextAPI
from docker.context.config import get_current_context_name
from docker.errors import APIError, DockerException, NotFound
from docker.utils import kwargs_from_env
from requests.exceptions import RequestException, Timeout

from sandbox_kernel.adapters import docker_errors
from sandbox_kernel.adapters.base import SandboxInfo
from sandbox_kernel.adapters.docker_errors import LOWEST_API, Request
from sandbox_kernel.adapters.docker_spec import differences
from sandbox_kernel.adapters.docker_stream import AttachStream
from sandbox_kernel.errors import SandboxUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_URL = "unix:///var/run/docker.sock"

#: For a call that only asks.
CALL_SECONDS = 10.0

#: For `create` and `start`: podman copies the whole image under its `vfs` driver.
CREATE_SECONDS = 60.0

#: Once to connect and once to be answered, which together stay below 10 seconds.
KILL_SECONDS = 4.5

WHY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of an engine.

    Attributes:
        url: As `DOCKER_HOST` takes it.
        why: Who named it, for `doctor`.
        tls: docker-py's `TLSConfig`, or `None` for a plain connection.
    """

    url: str
    why: str
    tls: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A container that runs.

    Attributes:
        container: Its id.
        created: Seconds since the epoch, by the engine's clock.
        at: `time.monotonic()` of the host at that moment, or a little later.
        stream: Its stdin, stdout and stderr.
    """

    container: str
    created: float
    at: float
    stream: AttachStream


def find(host: str) -> Endpoint:
    """Find the engine as the `docker` command does; nothing is connected.

    In this order: `host`, `DOCKER_HOST`, `DOCKER_CONTEXT`, the current
    context of `~/.docker/config.json`, and the default socket.

    Raises:
        SandboxUnavailableError: The context does not exist, or its address cannot be used.
    """
    with plain_errors(Request(url=host or os.environ.get("DOCKER_HOST", "")), CALL_SECONDS):
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
    environment = kwargs_from_env()
    tls = environment.get("tls")
    if host:
        return Endpoint(url=host, why="from the configuration", tls=tls)
    if "base_url" in environment:
        return Endpoint(url=environment["base_url"], why="from `DOCKER_HOST`", tls=tls)
    if name := os.environ.get("DOCKER_CONTEXT"):
        return _of_context(name, "from `DOCKER_CONTEXT`")
    return _of_context(get_current_context_name(), "the current one")


def _of_context(name: str, why: str) -> Endpoint:
    if name in ("", "default"):
        return Endpoint(url=DEFAULT_URL, why="the default")
    try:
        context = ContextAPI.get_context(name)
    except Exception:  # noqa: BLE001 - docker-py raises a bare `Exception` for a damaged file
        context = None
    # docker-py itself would take the default engine, which is another than the user chose.
    if context is None or not context.Host:
        raise SandboxUnavailableError(
            f"the docker context `{name}` ({why}) does not exist, or cannot be read",
            hint="`docker context ls` lists them, `docker context use <name>` chooses one",
        )
    return Endpoint(url=context.Host, why=f"docker context `{name}`, {why}", tls=context.TLSConfig)


class Engine:
    """One engine that answered, and the version it speaks.

    Raises:
        SandboxUnavailableError: It did not answer, or is too old; from `__init__` and from
            every method that does not say otherwise.
    """

    def __init__(self, where: Endpoint) -> None:
        self.where = where
        # A ping costs 1 ms, docker-py's own negotiation 8 ms.
        with (
            plain_errors(self._request, CALL_SECONDS),
            closing(_client(where, LOWEST_API, CALL_SECONDS)) as client,
        ):
            answer = client.get(f"{client.base_url}/_ping")
        version = str(answer.headers.get("Api-Version", ""))
        if not re.fullmatch(r"\d{1,3}\.\d{1,4}", version) or _parts(version) < _parts(LOWEST_API):
            raise docker_errors.too_old(version, self._request)
        self.version = version

    @property
    def _request(self) -> Request:
        return Request(url=self.where.url)

    def start(self, spec: Mapping[str, Any]) -> Started:
        """Create the container, compare it with its spec, attach to it and start it."""
        request = Request(
            url=self.where.url,
            image=spec["Image"],
            runtime=spec["HostConfig"].get("Runtime", ""),
        )
        # Chosen here, so that a container can be removed whose creation was never answered.
        name = f"sandbox-kernel-{uuid.uuid4().hex}"
        with (
            plain_errors(request, CREATE_SECONDS),
            closing(_client(self.where, self.version, CREATE_SECONDS)) as client,
            ExitStack() as unless_started,
        ):
            unless_started.callback(self.destroy, name)
            container = client.create_container_from_config(spec, name)["Id"]
            inspected = client.inspect_container(container)
            at = time.monotonic()
            if wrong := differences(spec, inspected):
                raise docker_errors.posture(wrong, request)
            stream = _attach(client, container)
            unless_started.callback(stream.close)
            client.start(container)
            unless_started.pop_all()
        created = datetime.fromisoformat(inspected["Created"]).timestamp()
        return Started(container=container, created=created, at=at, stream=stream)

    def containers(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """List the containers in any state that carry all of `labels`."""
        wanted = [f"{key}={value}" for key, value in labels.items()]
        with (
            plain_errors(self._request, CALL_SECONDS),
            closing(_client(self.where, self.version, CALL_SECONDS)) as client,
        ):
            found = client.containers(all=True, filters={"label": wanted})
        return [
            SandboxInfo(
                sandbox_id=entry["Id"],
                labels=entry["Labels"] or {},
                created=float(entry["Created"]),
                status=entry["State"],
            )
            for entry in found
        ]

    def remove(self, container: str, seconds: float = CALL_SECONDS) -> None:
        """Kill and remove a container, by id or name; one that is gone already is no error."""
        with (
            plain_errors(self._request, seconds),
            closing(_client(self.where, self.version, seconds)) as client,
            suppress(NotFound),
        ):
            try:
                client.remove_container(container, v=True, force=True)
            except APIError as error:
                # It ended by itself, and the engine is at it.
                if "already in progress" not in str(error.explanation):
                    raise

    def destroy(self, container: str) -> None:
        """Remove a container within 10 seconds, or leave it to its dead-man and to `reap`."""
        with suppress(SandboxUnavailableError):
            self.remove(container, KILL_SECONDS)

    def exit_status(self, started: Started) -> str:
        """Return how a container ended (`exited 137, out of memory`), or `""` if not known.

        It comes from the engine's log of events: the container removed itself, and its
        state with it.
        """
        # Counted from the engine's own clock, which may be another than ours.
        now = started.created + time.monotonic() - started.at
        query = {
            "since": f"{started.created - 1:.6f}",
            "until": f"{now + WHY_SECONDS:.6f}",
            "filters": json.dumps({"container": [started.container], "event": ["die", "oom"]}),
        }
        reason = ""
        with (
            plain_errors(self._request, WHY_SECONDS),
            closing(_client(self.where, self.version, WHY_SECONDS)) as client,
            closing(client.get(_url(client, "/events"), params=query, stream=True)) as answer,
        ):
            for line in answer.iter_lines():
                event = json.loads(line)
                if event["Action"] == "oom":
                    reason = ", out of memory"
                elif event["Action"] == "die":
                    return f"exited {event['Actor']['Attributes']['exitCode']}{reason}"
        return ""


def _client(where: Endpoint, version: str, seconds: float) -> Any:
    if where.url.startswith("unix://"):
        # docker-py would leave its socket open when it cannot connect.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(seconds)
            probe.connect("/" + where.url.removeprefix("unix://").lstrip("/"))
    client = docker.APIClient(
        base_url=where.url, version=version, tls=where.tls or False, timeout=seconds
    )
    # Proxies and `.netrc` of the environment are for the web, not for an engine.
    client.trust_env = False
    # `attach_socket` passes no time-out, and would wait for a hung engine for ever.
    client.request = partial(client.request, timeout=seconds)
    return client


def _url(client: Any, path: str) -> str:
    return f"{client.base_url}/v{client.api_version}{path}"


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _attach(client: Any, container: str) -> AttachStream:
    # Else docker-py adds the user's `detachKeys`, which podman looks for in our bytes.
    params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "detachKeys": ""}
    attached = client.attach_socket(container, params)
    # TLS comes as the socket itself, everything else as a `SocketIO` around it.
    sock = getattr(attached, "_sock", attached)
    # The response owns the connection; docker-py leaves it there to keep it alive.
    return AttachStream(sock, release=attached._response.close)


@contextmanager
def plain_errors(request: Request, seconds: float) -> Iterator[None]:
    """Turn every exception of docker-py and what it stands on into one of ours.

    Args:
        request: What was asked, for the message.
        seconds: The time-out of the calls within, for the message.
    """
    try:
        yield
        return
    except APIError as error:
        problem = docker_errors.refused(str(error.explanation or error.response.reason), request)
    except Timeout:
        problem = docker_errors.silent(seconds, request)
    except (RequestException, OSError) as error:
        problem = docker_errors.unreachable(_errno(error), request)
    except DockerException as error:
        problem = docker_errors.misconfigured(str(error))
    raise problem from None


def _errno(error: BaseException | None) -> int | None:
    """Return the `errno` at the bottom of what requests and urllib3 wrapped."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in errno.errorcode:
            return error.errno
        error = error.__cause__ or error.__context__
    return None
