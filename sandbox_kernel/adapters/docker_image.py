"""Build the image that cells run in, on a Docker engine.

Invariants: the image gets its name only after its Python, shut in as a cell will
be, has imported everything that the image promises.  A build sees the recipe and
the given wheels, and nothing else of the host.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections import deque
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from docker.errors import APIError, ImageNotFound

from sandbox_kernel import __version__
from sandbox_kernel.adapters import docker_vendor
from sandbox_kernel.adapters.docker_context import find
from sandbox_kernel.adapters.docker_engine import Engine
from sandbox_kernel.adapters.docker_errors import Request, quoted
from sandbox_kernel.adapters.docker_spec import LOCALHOST_LABEL
from sandbox_kernel.adapters.docker_vendor import plain_errors
from sandbox_kernel.errors import SandboxUnavailableError
from sandbox_kernel.policy import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import docker

    from sandbox_kernel.adapters.docker_recipe import Recipe

#: What an image was built from; the Dockerfile's first stage carries it too.
RECIPE_LABEL = "sandbox-kernel.recipe"

#: What is in an image, as JSON.
VERSIONS_LABEL = "sandbox-kernel.versions"

#: For a step of the build that prints nothing.
ANSWER_SECONDS = 600

#: For the check below; it takes 2 seconds on an idle machine.
CHECK_SECONDS = 120

#: Characters of an instruction that stand for it.
STEP_WIDTH = 70

#: Lines of a build's output that an error shows.
TAIL_LINES = 15

#: How the engine's own lines between a command's begin.
BOOKKEEPING = ("--->", "Removing intermediate container")

#: Of a command's output.
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

#: Run in the new image: proves what the image promises, and prints
#: as JSON the versions, and whether `localhost` is known without `/etc/hosts`.
CHECK = """
import importlib.metadata, json, platform, socket, subprocess
import IPython, jinja2, matplotlib.pyplot, numpy, pandas, pip, tqdm
versions = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
versions["python"] = platform.python_version()
node = subprocess.run(["node", "--version"], stdout=subprocess.PIPE, check=True)
versions["node"] = node.stdout.decode().strip().lstrip("v")
subprocess.run(["sh", "-c", "true"], check=True)
try:
    localhost = bool(socket.getaddrinfo("localhost", 1))
except OSError:
    localhost = False
print(json.dumps([versions, localhost]))
"""


class Progress(Protocol):
    """Where a build says what it does."""

    def step(self, text: str) -> None:
        """Show a line that stays."""

    def detail(self, text: str) -> None:
        """Show what happens within the step; the next line may replace it."""


@contextmanager
def connect(host: str) -> Iterator[docker.APIClient]:
    """Open an engine, patiently enough for a build; `docker_context.find` says which.

    Raises:
        SandboxUnavailableError: There is none, or it refused a request of the block.
    """
    engine = Engine(find(host))
    version = engine.agree()
    with (
        plain_errors(Request(url=engine.where.url), ANSWER_SECONDS),
        docker_vendor.connect(engine.where, version, ANSWER_SECONDS) as client,
    ):
        yield client


def is_current(client: docker.APIClient, name: str, recipe: Recipe) -> bool:
    """Say whether the image of that name was built from this recipe."""
    try:
        labels = client.inspect_image(name)["Config"]["Labels"]
    except ImageNotFound:
        return False
    return bool((labels or {}).get(RECIPE_LABEL) == recipe.digest())


def find_base(client: docker.APIClient, base: str, progress: Progress) -> str:
    """Return the id of the base image, pulled if the engine has none of that name.

    Raises:
        SandboxUnavailableError: The engine neither has it nor could pull it, or it is of no use.
    """
    try:
        found = client.inspect_image(base)
    except ImageNotFound:
        _pull(client, base, progress)
        found = client.inspect_image(base)
    if found["Config"].get("Volumes"):
        raise SandboxUnavailableError(
            f"the base image `{base}` declares a `VOLUME`: a writable disk in every sandbox",
            hint="choose another `--base`; a `VOLUME` cannot be taken back",
        )
    return str(found["Id"])


def build(
    client: docker.APIClient, name: str, recipe: Recipe, progress: Progress
) -> dict[str, str]:
    """Build, check and name the image; return the versions in it by package.

    Raises:
        SandboxUnavailableError: A step failed, or what came out is of no use.
    """
    try:
        image_id = _install(client, recipe, progress)
        progress.step("checking what the image promises")
        versions, knows_localhost = _check(client, image_id)
        labels = _labels(name, recipe, versions)
        if knows_localhost:
            labels[LOCALHOST_LABEL] = "true"
        # Labels come last because only the check knows the versions; this adds no layer.
        naming = client.build(
            fileobj=io.BytesIO(f"FROM {image_id}\n".encode()),
            decode=True,
            rm=True,
            tag=name,
            labels=labels,
            use_config_proxy=False,
        )
        _follow(naming, progress, show_steps=False)
    finally:
        # The first stage, what a failure left, and the image that had the name before.
        client.prune_images(filters={"dangling": True, "label": RECIPE_LABEL})
    return versions


def _install(client: docker.APIClient, recipe: Recipe, progress: Progress) -> str:
    with tempfile.TemporaryFile() as context:
        recipe.write_context(context)
        events = client.build(
            fileobj=context,
            custom_context=True,
            decode=True,
            rm=True,
            forcerm=True,
            buildargs={"BASE": recipe.base_id, "RECIPE": recipe.digest()},
            network_mode="none" if recipe.wheels else None,
            # The engine would take "the same command" for "the same packages".
            nocache=not recipe.wheels,
            use_config_proxy=False,
        )
        return _follow(events, progress)


def _pull(client: docker.APIClient, base: str, progress: Progress) -> None:
    progress.step(f"pulling {base}")
    try:
        for event in client.pull(base, stream=True, decode=True):
            if "error" in event:
                raise _no_base(base, event["error"])
            progress.detail(" ".join(str(event.get(key, "")) for key in ("status", "progress")))
    except APIError as error:
        raise _no_base(base, error.explanation) from None


def _follow(
    events: Iterable[dict[str, Any]], progress: Progress, *, show_steps: bool = True
) -> str:
    """Read a build's events to the end and return the id of its image."""
    image_id, step = "", "the first step"
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    for event in events:
        if "error" in event:
            raise _stopped(step, str(event["error"]), tail, progress)
        image_id = str(event.get("aux", {}).get("ID", image_id))
        # One event may hold a whole instruction of several lines.
        text = " ".join(COLOUR.sub("", str(event.get("stream", ""))).split())
        if text.startswith("Step ") and show_steps:
            step = text if len(text) <= STEP_WIDTH else f"{text[:STEP_WIDTH]}…"
            progress.step(step)
        elif text and not text.startswith(BOOKKEEPING):
            tail.append(text[:200])
            progress.detail(tail[-1])
    return image_id


def _stopped(
    step: str, error: str, tail: Sequence[str], progress: Progress
) -> SandboxUnavailableError:
    for line in tail:
        progress.step(f"  {line}")
    # The engine only repeats the command; why it failed is what the command wrote last.
    reason = tail[-1] if tail and error.startswith("The command") else error
    return SandboxUnavailableError(
        f"the build stopped at `{step}`: {quoted(reason)}",
        hint="without network in a build, give `--wheels`; without registry, `--base`",
    )


def _check(client: docker.APIClient, image_id: str) -> tuple[dict[str, str], bool]:
    container = client.create_container(
        image_id,
        ["python3", "-I", "-c", CHECK],
        user=f"{NOBODY}:{NOBODY}",
        network_disabled=True,
        environment={"HOME": "/tmp", "MPLCONFIGDIR": "/tmp"},  # noqa: S108 - the sandbox's
        use_config_proxy=False,
        host_config=client.create_host_config(
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            tmpfs={"/tmp": "size=64m"},  # noqa: S108 - the sandbox's
        ),
    )["Id"]
    try:
        client.start(container)
        status = client.wait(container, timeout=CHECK_SECONDS)["StatusCode"]
        output = client.logs(container, stdout=True, stderr=status != 0).decode(errors="replace")
    finally:
        client.remove_container(container, force=True)
    last = output.rstrip().rsplit("\n", 1)[-1]
    if status != 0:
        raise SandboxUnavailableError(
            f"the new image cannot do what it promises: {quoted(last)}",
            hint="choose another `--base`, or wheels that fit its Python",
        )
    versions, knows_localhost = json.loads(last)
    return versions, knows_localhost


def _labels(name: str, recipe: Recipe, versions: dict[str, str]) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": name,
        "org.opencontainers.image.description": "Where the cells of sandbox-kernel run.",
        "org.opencontainers.image.version": __version__,
        "org.opencontainers.image.created": datetime.now(UTC).isoformat(timespec="seconds"),
        "org.opencontainers.image.base.name": recipe.base,
        VERSIONS_LABEL: json.dumps(versions, sort_keys=True),
    }


def _no_base(base: str, reason: object) -> SandboxUnavailableError:
    return SandboxUnavailableError(
        f"the base image `{base}` could not be pulled: {quoted(str(reason))}",
        hint="`--base` takes any local image with `python3`; `scripts/base.sh` makes one",
    )
