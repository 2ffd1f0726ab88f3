"""Containers that carry labels of our form, made past the package, and the waiting for them."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from docker.errors import APIError

from sandbox_kernel import __version__, host, labels
from sandbox_kernel.policy import DEFAULT_IMAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import docker

SLEEP = ["python3", "-c", "import time; time.sleep(600)"]


def made_by(session: str = "test", *, age: float = 0.0, **owner: object) -> dict[str, str]:
    """The labels of a sandbox of this process; `owner` says what is another's, `age` is seconds."""
    return labels.make(
        replace(host.owner(), **owner),  # type: ignore[arg-type]
        session=session,
        version=__version__,
        now=time.time() - age,
        lifetime_seconds=3600,
    )


class Shelf:
    """Containers of a test."""

    def __init__(self, engine: docker.DockerClient) -> None:
        self._engine = engine
        self._ids: list[str] = []

    def put(self, marks: Mapping[str, str], status: str = "created") -> str:
        """Make a container in a state, and return its id."""
        command = ["python3", "-c", ""] if status == "exited" else SLEEP
        made = self._engine.containers.create(
            DEFAULT_IMAGE, command, labels=dict(marks), network_mode="none"
        )
        self._ids.append(made.id)
        if status != "created":
            made.start()
        if status == "exited":
            made.wait()
        if status == "paused":
            made.pause()
        return made.id

    def empty(self) -> None:
        for container in self._ids:
            remove(self._engine, container)


@contextmanager
def shelf(engine: docker.DockerClient) -> Iterator[Shelf]:
    """A shelf that is empty again at the end."""
    made = Shelf(engine)
    try:
        yield made
    finally:
        made.empty()


def remove(engine: docker.DockerClient, container: str) -> None:
    # It is gone, or on its way.
    with suppress(APIError):
        engine.api.remove_container(container, force=True)


def exists(engine: docker.DockerClient, container: str) -> bool:
    return bool(engine.api.containers(all=True, filters={"id": container}))


def seconds_until_gone(
    engine: docker.DockerClient, container: str, *, at_most: float
) -> float | None:
    """How long a container still stood there; `None` if it outlived `at_most`."""
    begun = time.monotonic()
    while time.monotonic() - begun < at_most:
        if not exists(engine, container):
            return time.monotonic() - begun
        time.sleep(0.05)
    return None
