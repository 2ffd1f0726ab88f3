from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import docker
import pytest

from sandbox_kernel import config, labels
from sandbox_kernel.adapters import docker_context, docker_engine, docker_vendor
from sandbox_kernel.errors import SandboxUnavailableError
from sandbox_kernel.policy import DEFAULT_IMAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A container that was told to go is listed until the engine has cleaned up.
GONE_SECONDS = 10


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """The Docker engine that the tests run on; at the end none of our sandboxes is left on it."""
    try:
        where = docker_context.find(config.load().docker.host)
        version = docker_engine.Engine(where).agree()
    except SandboxUnavailableError as error:
        _missing(str(error))
    tls = docker_vendor.tls_config(where.tls)
    with closing(docker.DockerClient(base_url=where.url, version=version, tls=tls)) as client:
        yield client

        deadline = time.monotonic() + GONE_SECONDS
        while (left := _ownerless(client)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not left


@pytest.fixture(scope="session")
def image(engine: docker.DockerClient) -> str:
    """The name of the image that cells run in; built here if the engine has none."""
    if not engine.images.list(DEFAULT_IMAGE):
        command = [sys.executable, "-m", "sandbox_kernel", "image", "build"]
        built = subprocess.run(
            command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if built.returncode != 0:
            _missing(f"{built.stderr}`make image` builds it where no registry can be reached")
    return DEFAULT_IMAGE


def _missing(reason: str) -> NoReturn:
    # A CI without an engine would be green and have tested nothing.
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def _ownerless(client: docker.DockerClient) -> list[str]:
    """List the sandboxes of this process and of processes that ended; others may be at work."""
    left = []
    for container in client.api.containers(all=True, filters={"label": labels.PID}):
        pid = container["Labels"][labels.PID]
        if pid == str(os.getpid()) or not Path("/proc", pid).exists():
            left.append(f"{container['Names']} {container['Status']}")
    return left
