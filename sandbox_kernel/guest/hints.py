"""What a reader may want to know when the sandbox is why code failed.  Pure."""

from __future__ import annotations

import re

_PIP = re.compile(r"(^|[\s/;&|'\"])(pip3?|conda|mamba|micromamba|uv)(['\"]?\s)")

OFFLINE = (
    "pip could not reach an index: the network is off by policy; set `image` to one that has the"
    " package (a Dockerfile of two lines: docs/how-to/use-another-image.md)"
)


def missing_module(error: BaseException, image: str) -> str | None:
    """The hint for an import that failed because the image lacks the package."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or not image:
        return None
    name = error.name.partition(".")[0]
    return (
        f"hint: the image `{image}` has no `{name}`; set `image` to one that has it"
        " (a Dockerfile of two lines: docs/how-to/use-another-image.md)"
    )


def installs(command: str) -> bool:
    """Whether a shell command line calls a package installer that needs the network."""
    return _PIP.search(f"{command} ") is not None and "install" in command
