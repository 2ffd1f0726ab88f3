"""What the image that cells run in is built from, as one value.

Invariants: free of docker-py; reads the package's own files and the given wheels,
and asks no engine.  The same recipe gives the same digest, whoever builds.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass
from importlib import resources
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RECIPE_FILES = ("Dockerfile", "pip.conf", "requirements.txt")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what an image holds, when there are wheels.

    Attributes:
        base: The base image's name, as `docker run` takes it.
        base_id: What that name stood for when the recipe was made.
        wheels: Files to install from without network, or none: then the index has them.
    """

    base: str
    base_id: str
    wheels: tuple[Path, ...]

    def digest(self) -> str:
        """Return the same text for the same recipe."""
        digest = hashlib.sha256(self.base_id.encode())
        for name in RECIPE_FILES:
            digest.update(_recipe_file(name))
        for wheel in self.wheels:
            digest.update(wheel.name.encode())
        return digest.hexdigest()

    def write_context(self, file: IO[bytes]) -> None:
        """Write the build's input as a tar archive, and go back to its start."""
        with tarfile.open(fileobj=file, mode="w", dereference=True) as tar:
            for name in RECIPE_FILES:
                member, data = tarfile.TarInfo(name), _recipe_file(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
            folder = tarfile.TarInfo("wheels")
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
            for wheel in self.wheels:
                tar.add(wheel, f"wheels/{wheel.name}", filter=_nobodys)
        file.seek(0)


def _recipe_file(name: str) -> bytes:
    return (resources.files("sandbox_kernel") / "image" / name).read_bytes()


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Keep the builder's user id, name and umask out of the image."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member
