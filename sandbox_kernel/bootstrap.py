"""The guest as source over stdin: what the host starts, and what it writes first.

Invariants: `ARGV` is constant, so no code and no setting ever stands in an argument.  Nothing
is installed or written in the sandbox.  All bytes are ASCII, because some providers carry stdin
as text.  This module only packs; it starts nothing.
"""

from __future__ import annotations

import base64
import json
import zlib
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: One setting of the guest; the keys are those that `guest.supervisor` names.
Setting = int | float | bool | str

# Reads exactly the bundle and not a byte more: what follows it belongs to the supervisor.
_LOADER = """\
import binascii, json, os, sys, zlib
def read(count):
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data
length = b""
while not length.endswith(b"\\n"):
    length += read(1)
bundle = json.loads(zlib.decompress(binascii.a2b_base64(read(int(length)))))
name, source = bundle["modules"][0]
boot = {"__name__": name}
exec(compile(source, "<%s>" % name, "exec"), boot)
boot["run"](bundle["modules"], bundle["settings"])
"""

#: What the sandbox runs, whatever the policy or the code.
ARGV: tuple[str, ...] = ("python3", "-I", "-u", "-c", _LOADER)

_BOOT = "sandbox_kernel.guest.boot"


def payload(settings: Mapping[str, Setting]) -> bytes:
    """What the host writes to stdin before its first frame: the guest and its settings."""
    return pack(settings, modules())


def pack(settings: Mapping[str, Setting], sources: tuple[tuple[str, str], ...]) -> bytes:
    """The same with other sources: pairs of a module's name and text, `guest.boot` first."""
    return _pack(json.dumps(dict(settings), sort_keys=True), sources)


@lru_cache(maxsize=1)
def modules() -> tuple[tuple[str, str], ...]:
    """The modules of the guest, by name and source; `guest.boot` is first.

    The package itself travels empty: its `__init__` is the host's public API.
    """
    package = resources.files("sandbox_kernel")
    sources = {
        "sandbox_kernel": "",
        "sandbox_kernel.errors": (package / "errors.py").read_text("utf-8"),
        "sandbox_kernel.wire": (package / "wire.py").read_text("utf-8"),
    }
    for entry in (package / "guest").iterdir():
        if entry.name.endswith(".py"):
            name = f"sandbox_kernel.guest.{entry.name[:-3]}".removesuffix(".__init__")
            sources[name] = entry.read_text("utf-8")
    return ((_BOOT, sources.pop(_BOOT)), *sorted(sources.items()))


# Keyed by text, for which `1` and `True` differ.
@lru_cache(maxsize=8)
def _pack(settings: str, sources: tuple[tuple[str, str], ...]) -> bytes:
    bundle = json.dumps({"settings": json.loads(settings), "modules": sources})
    # Level 1: what the others save of a local stream costs more time to compress.
    body = base64.b64encode(zlib.compress(bundle.encode(), 1))
    return b"%d\n%b" % (len(body), body)
