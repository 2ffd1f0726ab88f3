"""Sandboxes as containers of a Docker engine, or of another that speaks its API.

Invariants: nothing in a container runs before the engine's own account of it has
been compared with the policy.  Whatever ends `create` early removes the container.
What talks to engines is imported by the first method that needs it (about 10 ms).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sandbox_kernel.adapters.docker_spec import ENFORCES, LOCALHOST_LABEL, container_spec
from sandbox_kernel.errors import SandboxUnavailableError

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Mapping, Sequence

    from sandbox_kernel.adapters.base import MemoryUse, SandboxInfo
    from sandbox_kernel.adapters.docker_address import Endpoint
    from sandbox_kernel.adapters.docker_engine import Engine, Started
    from sandbox_kernel.policy import Control, Policy

#: Of the guest's stderr, in characters of its `repr`.
MAX_STDERR = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSettings:
    """Which engine to use.

    Attributes:
        host: Its address (`unix:///run/user/1000/docker.sock`, `tcp://…`), or `""` for
            the one that the `docker` command would use.
    """

    host: str = ""


class DockerAdapter:
    """Makes sandboxes on the engine that the settings name."""

    name: ClassVar[str] = "docker"
    enforces: ClassVar[frozenset[Control]] = ENFORCES

    def __init__(self, settings: DockerSettings) -> None:
        self._settings = settings

    def endpoint(self) -> Endpoint:
        """Say which engine would be used, and why; nothing is connected.

        Raises:
            SandboxUnavailableError: The docker context does not exist, or names an
                address that this adapter cannot use.
        """
        from sandbox_kernel.adapters import docker_context  # noqa: PLC0415 - slow to import

        return docker_context.find(self._settings.host)

    def create(
        self,
        policy: Policy,
        argv: Sequence[str],
        labels: Mapping[str, str],
        progress: Callable[[str], None],  # noqa: ARG002 - an image is never pulled: nothing is slow
    ) -> DockerSandbox:
        """Start `argv` in a new container; see `Adapter.create`."""
        engine = self._engine()
        knows_localhost = bool(engine.image_labels(policy.image).get(LOCALHOST_LABEL))
        spec = container_spec(policy, argv, labels, knows_localhost=knows_localhost)
        return DockerSandbox(engine, engine.start(spec))

    def list(self, labels: Mapping[str, str]) -> builtins.list[SandboxInfo]:
        """List containers in any state; see `Adapter.list`.

        Raises:
            SandboxUnavailableError: The engine cannot be asked.
        """
        return self._engine().containers(labels)

    def remove(self, sandbox_id: str) -> None:
        """Destroy one container; see `Adapter.remove`.

        Raises:
            SandboxUnavailableError: The engine did not confirm it.
        """
        self._engine().remove(sandbox_id)

    def memory(self, sandbox_id: str) -> MemoryUse | None:
        """Ask for a container's memory, about 20 ms; see `Measures.memory`.

        Raises:
            SandboxUnavailableError: The engine cannot be asked.
        """
        return self._engine().memory(sandbox_id)

    def _engine(self) -> Engine:
        from sandbox_kernel.adapters import docker_engine  # noqa: PLC0415 - slow to import

        return docker_engine.Engine(self.endpoint())


class DockerSandbox:
    """A running container; see `Sandbox`."""

    def __init__(self, engine: Engine, started: Started) -> None:
        self._engine = engine
        self._started = started
        self._stream = started.stream
        self._lock = threading.Lock()
        self._killed = False
        self._why: str | None = None

    def __repr__(self) -> str:
        return f"<DockerSandbox {self.sandbox_id[:12]} at {self._engine.where.url}>"

    @property
    def sandbox_id(self) -> str:
        """The container's full id."""
        return self._started.container

    def recv(self) -> bytes:
        """Block for the guest's next stdout bytes; see `Sandbox.recv`."""
        return self._stream.recv()

    def send(self, data: bytes) -> None:
        """Write all of `data` to the guest's stdin; see `Sandbox.send`."""
        self._stream.send(data)

    def kill(self) -> None:
        """Destroy the container and end its stream; see `Sandbox.kill`."""
        with self._lock:
            if self._killed:
                return
            self._killed = True
        self._stream.close()
        self._engine.destroy(self.sandbox_id)

    def why(self) -> str:
        """Say why the guest ended; see `Sandbox.why`."""
        if self._why is None:
            self._why = self._ask()
        return self._why

    def _ask(self) -> str:
        with self._lock:
            if self._killed:
                return "killed by the host"
        try:
            status = self._engine.exit_status(self._started)
        except SandboxUnavailableError as error:
            status = error.message
        stderr = self._stream.stderr.decode(errors="replace").strip()
        if not stderr:
            return status
        wrote = f"it wrote {repr(stderr[-MAX_STDERR:])[:MAX_STDERR]} to stderr"
        return f"{status}, {wrote}" if status else wrote
