"""An administrator's bounds: what no configuration may pass, whoever wrote it.

Invariants: pure.  A bound only ever takes away; a setting without one is free.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from sandbox_kernel.errors import SandboxPolicyError
from sandbox_kernel.policy import Display
from sandbox_kernel.settings import KINDS, Kind, Layer, Setting, convert, show, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

#: One bound: the most of a number, flag or mode, or the patterns of allowed texts.
Limit = Setting | tuple[str, ...]

#: Bounded by a list of `fnmatch` patterns; `*` matches slashes too.
PATTERNS = ("image", "runtime", "provider")

#: Bounded from above: numbers and modes by size, a flag by not becoming true.
ORDERED: tuple[str, ...] = tuple(
    key for key, kind in KINDS.items() if kind is not Kind.TEXT and key not in {"uid", "gid"}
)

#: The keys of a `[ceiling]` table.
NAMES = (*ORDERED, *PATTERNS, "env", "image_digest")

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}\Z")
_MODES = tuple(Display)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The bounds of one file.

    Attributes:
        origin: Path of the file that set them, or `""` where there is none.
        limits: By setting; `env` holds the allowed names, `image_digest` whether
            an image must be named by its digest.
    """

    origin: str = ""
    limits: Mapping[str, Limit] = field(default_factory=dict)

    def refusal(self, key: str, value: Setting) -> str | None:
        """Say which bound a value passes, as the end of a sentence, or return `None`."""
        if key.startswith("env."):
            allowed = self.limits.get("env")
            name = key.removeprefix("env.")
            if isinstance(allowed, tuple) and name not in allowed:
                return f"not among the names {_listed(allowed)}"
            return None
        limit = self.limits.get(key)
        by_digest = key != "image" or _DIGEST.search(str(value))
        if not by_digest and self.limits.get("image_digest"):
            return "not the `@sha256:` reference that `image_digest = true` asks for"
        # The provider `none` runs nothing, which no bound can forbid.
        if limit is None or (key == "provider" and value == "none"):
            return None
        if isinstance(limit, tuple):
            if any(fnmatchcase(str(value), pattern) for pattern in limit):
                return None
            return f"not among the allowed {_listed(limit)}"
        return f"above the ceiling of `{show(key, limit)}`" if _rank(value) > _rank(limit) else None

    def lower(self, key: str, default: Setting) -> Setting:
        """Return a built-in default, lowered where it is above the ceiling.

        Raises:
            SandboxPolicyError: The default is a text that the ceiling does not allow,
                and there is nothing lower to choose.
        """
        words = self.refusal(key, default)
        if words is None:
            return default
        limit = self.limits.get(key)
        if key not in ORDERED or limit is None or isinstance(limit, tuple):
            raise SandboxPolicyError(
                f"the default `{key}`, `{show(key, default)}`, is {words} in `{self.origin}`",
                hint=f"set an allowed `{key}` in the `[policy]` table of a configuration file",
            )
        return limit


def from_layer(layer: Layer) -> Ceiling:
    """Build the ceiling of an administrator's layer.

    Raises:
        SandboxPolicyError: An unknown key, or a value of another kind.
    """
    limits: dict[str, Limit] = {}
    for key, value in layer.ceiling.items():
        where = layer.place(f"ceiling.{key}")
        if key not in NAMES:
            raise unknown(key, NAMES, f"the `[ceiling]` of {where}")
        try:
            limits[key] = _limit(key, value)
        except SandboxPolicyError as error:
            raise SandboxPolicyError(
                f"{error.message}, in the `[ceiling]` of {where}", hint=error.hint
            ) from None
    return Ceiling(origin=layer.name if limits else "", limits=limits)


def _limit(key: str, value: object) -> Limit:
    if key in ORDERED:
        return convert(key, value)
    if key == "image_digest":
        if not isinstance(value, bool):
            raise SandboxPolicyError(
                f"`{key}` is `{show(key, value)}`, which is not {Kind.FLAG.value}"
            )
        return value
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise SandboxPolicyError(
            f"`{key}` is `{show(key, value)}`, which is not a list of texts",
            hint=f'write `{key} = ["one", "two"]`',
        )
    return tuple(value)


def _rank(value: Setting | tuple[str, ...]) -> float:
    if isinstance(value, Display):
        return _MODES.index(value)
    return value if isinstance(value, int | float) else 0.0


def _listed(texts: tuple[str, ...]) -> str:
    return ", ".join(f"`{text}`" for text in texts) or "(an empty list)"
