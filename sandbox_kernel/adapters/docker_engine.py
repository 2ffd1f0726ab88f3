"""Talks to one engine: agree on a version, make containers and remove them.

Invariants: free of docker-py, which takes half as long to import as a container to
start.  Every call has a time-out.  Whatever an engine answers, nothing but
`SandboxUnavailableError` leaves this module.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from sandbox_kernel.adapters import docker_errors
from sandbox_kernel.adapters.base import MemoryUse, SandboxInfo
from sandbox_kernel.adapters.docker_errors import LOWEST_API, Request
from sandbox_kernel.adapters.docker_http import Client
from sandbox_kernel.adapters.docker_spec import differences
from sandbox_kernel.adapters.docker_stream import AttachStream
from sandbox_kernel.errors import SandboxUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeVar

    from sandbox_kernel.adapters.docker_address import Endpoint

    T = TypeVar("T")

#: For a call that only asks.
CALL_SECONDS = 10.0

#: For `create` and `start`: podman copies the whole image under its `vfs` driver.
CREATE_SECONDS = 60.0

#: The first API that answers about a container's memory at once, and not after two samples.
ONE_SHOT_API = "1.41"

#: A Jupyter server gives a kernel 5 seconds to shut down.
KILL_SECONDS = 4.5

#: How long the log of events is followed.
WHY_SECONDS = 1.0

#: For the answer that holds them; who asks why waits 2 seconds at most.
EVENTS_SECONDS = 1.9


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


class Engine:
    """One engine, and the version that was agreed with it; nothing is asked before it has to be.

    Raises:
        SandboxUnavailableError: It did not answer, refused, or is too old; from every
            method that does not say otherwise.
    """

    def __init__(self, where: Endpoint) -> None:
        self.where = where
        self._version = ""

    def agree(self) -> str:
        """Return the version of the API to speak."""
        with self._client(Request(url=self.where.url)):
            return self._version

    def image_labels(self, image: str) -> dict[str, str]:
        """Return the labels of an image; none if the engine lacks it, which `start` will say."""
        request = Request(url=self.where.url, image=image)
        with self._client(request) as client:
            path = f"/v{self._version}/images/{quote(image, safe='/:@')}/json"
            answer = client.ask("GET", path, CALL_SECONDS)
        if not answer.succeeded:
            return {}
        return _read(answer.body, lambda found: dict(found["Config"]["Labels"] or {}), request)

    def start(self, spec: Mapping[str, Any]) -> Started:
        """Create the container, compare it with its spec, attach to it and start it."""
        request = Request(
            url=self.where.url,
            image=spec["Image"],
            runtime=spec["HostConfig"].get("Runtime", ""),
        )
        # Chosen here, so that a container can be removed whose creation was never answered.
        name = f"sandbox-kernel-{uuid.uuid4().hex}"
        with self._client(request) as client, ExitStack() as unless_started:
            unless_started.callback(self.destroy, name)
            body = self._ask(
                client, "POST", f"/containers/create?name={name}", CREATE_SECONDS, spec
            )
            container = _read(body, lambda created: str(created["Id"]), request)
            body = self._ask(client, "GET", _path(container, "json"), CREATE_SECONDS)
            at = time.monotonic()
            if wrong := _read(body, lambda inspected: differences(spec, inspected), request):
                raise docker_errors.posture(wrong, request)
            created = _read(body, lambda inspected: _seconds(inspected["Created"]), request)
            stream = self._attach(container, request)
            unless_started.callback(stream.close)
            self._ask(client, "POST", _path(container, "start"), CREATE_SECONDS)
            unless_started.pop_all()
        return Started(container=container, created=created, at=at, stream=stream)

    def containers(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """List the containers in any state that carry all of `labels`."""
        wanted = {"label": [f"{key}={value}" for key, value in labels.items()]}
        query = urlencode({"all": "1", "filters": json.dumps(wanted)})
        request = Request(url=self.where.url)
        with self._client(request) as client:
            body = self._ask(client, "GET", f"/containers/json?{query}", CALL_SECONDS)
        return _read(body, lambda listed: [_info(entry) for entry in listed], request)

    def memory(self, container: str) -> MemoryUse | None:
        """Return what a container uses, or `None` if it does not run or the engine is old."""
        request = Request(url=self.where.url)
        with self._client(request) as client:
            if _parts(self._version) < _parts(ONE_SHOT_API):
                return None
            path = f"/v{self._version}{_path(container, 'stats')}?stream=false&one-shot=true"
            answer = client.ask("GET", path, CALL_SECONDS)
        # Of one that is ending, the engine succeeds in saying nothing.
        return _read(answer.body, _memory, request) if answer.succeeded and answer.body else None

    def remove(self, container: str, seconds: float = CALL_SECONDS) -> None:
        """Kill and remove a container, by id or name; one that is gone already is no error."""
        request = Request(url=self.where.url)
        with self._client(request, seconds) as client:
            path = f"/v{self._version}{_path(container)}?v=1&force=1"
            answer = client.ask("DELETE", path, seconds)
        # Or it ended by itself, and the engine is at it.
        gone = answer.status == 404 or "already in progress" in answer.message
        if not (answer.succeeded or gone):
            raise docker_errors.refused(answer.message, request)

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
        query = urlencode(
            {
                "since": f"{started.created - 1:.6f}",
                "until": f"{now + WHY_SECONDS:.6f}",
                "filters": json.dumps({"container": [started.container], "event": ["die", "oom"]}),
            }
        )
        request = Request(url=self.where.url)
        reason = ""
        with self._client(request, EVENTS_SECONDS) as client:
            for line in client.lines(f"/v{self._version}/events?{query}", EVENTS_SECONDS):
                action, code = _read(line, _event, request)
                if action == "oom":
                    reason = ", out of memory"
                elif action == "die":
                    return f"exited {code}{reason}"
        return ""

    @contextmanager
    def _client(self, request: Request, seconds: float = CALL_SECONDS) -> Iterator[Client]:
        with closing(Client(self.where, request)) as client:
            # 0.2 ms; without it, one that hangs would be found out by the patient `create`.
            if not self._version:
                self._version = _agree(client, seconds)
            yield client

    def _ask(
        self, client: Client, method: str, path: str, seconds: float, body: Any = None
    ) -> bytes:
        answer = client.ask(method, f"/v{self._version}{path}", seconds, body)
        if not answer.succeeded:
            raise docker_errors.refused(answer.message, client.asked)
        return answer.body

    def _attach(self, container: str, request: Request) -> AttachStream:
        # Podman looks for the user's `detachKeys` in our bytes, unless they are none.
        query = "?stdin=1&stdout=1&stderr=1&stream=1&detachKeys="
        with closing(Client(self.where, request)) as client:
            path = f"/v{self._version}{_path(container, 'attach')}{query}"
            sock = client.hijack(path, CREATE_SECONDS)
        return AttachStream(sock, release=sock.close)


def _agree(client: Client, seconds: float) -> str:
    version = client.ask("GET", "/_ping", min(seconds, CALL_SECONDS)).version
    if not version:
        raise docker_errors.no_engine(client.asked)
    if not re.fullmatch(r"\d{1,3}\.\d{1,4}", version) or _parts(version) < _parts(LOWEST_API):
        raise docker_errors.too_old(version, client.asked)
    return version


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _path(container: str, action: str = "") -> str:
    # Quoted, because an id is the engine's word.
    return "/".join(filter(None, ("/containers", quote(container, safe=""), action)))


def _read(body: bytes, take: Callable[[Any], T], request: Request) -> T:
    """Take something from JSON that should have the form of an engine's."""
    try:
        return take(json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise docker_errors.no_engine(request) from None


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def _info(entry: Mapping[str, Any]) -> SandboxInfo:
    return SandboxInfo(
        sandbox_id=str(entry["Id"]),
        labels={str(key): str(value) for key, value in (entry["Labels"] or {}).items()},
        created=float(entry["Created"]),
        status=str(entry["State"]),
    )


def _memory(stats: Mapping[str, Any]) -> MemoryUse | None:
    memory = stats["memory_stats"]
    if "usage" not in memory:
        return None
    details = memory.get("stats") or {}
    # By version 1 and 2 of control groups; both count pages that the kernel can drop.
    cache = details.get("total_inactive_file", details.get("inactive_file", 0))
    return MemoryUse(used=max(memory["usage"] - cache, 0), limit=int(memory["limit"]))


def _event(event: Mapping[str, Any]) -> tuple[str, str]:
    """Return what happened, and the exit status if that was the container's end."""
    attributes = event["Actor"]["Attributes"]
    return str(event["Action"]), str(attributes.get("exitCode", ""))[:10]
