"""The settings that a configuration may hold: their names, kinds and conversion.

Invariants: pure.  A setting has one flat name (`timeout_seconds`, `env.LANG`,
`docker.host`) whatever layer it comes from, and an unknown name or a value of
another kind is an error that says where it stands, never a no-op.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from sandbox_kernel.errors import SandboxPolicyError
from sandbox_kernel.policy import FIELD_NAMES, MIB, Display, Policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The value of one setting, of the kind that `KINDS` names.
Setting = bool | int | float | str | Display


class Kind(Enum):
    """What a setting's value must be, in words for a person."""

    FLAG = "`true` or `false`"
    SIZE = "a size: a number of bytes, or text such as `512 MiB`"
    WHOLE = "a whole number"
    NUMBER = "a number"
    TEXT = "text"
    DISPLAY = "one of `strict`, `static`, `interactive`, `trusted`"


def _kind(name: str, default: object) -> Kind:
    if isinstance(default, bool):
        return Kind.FLAG
    if isinstance(default, Display):
        return Kind.DISPLAY
    if isinstance(default, int):
        return Kind.SIZE if name.endswith("_bytes") else Kind.WHOLE
    return Kind.NUMBER if isinstance(default, float) else Kind.TEXT


#: Every setting but the `env.<NAME>` ones, whose kind is text.
KINDS: dict[str, Kind] = {
    "provider": Kind.TEXT,
    "docker.host": Kind.TEXT,
    **{item.name: _kind(item.name, item.default) for item in fields(Policy) if item.name != "env"},
}

#: Bytes of a unit, as docker (`512m`), IEC (`MiB`) and SI (`MB`) write them.
UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{letter + end: 1024**n for n, letter in enumerate("kmgt", 1) for end in ("", "ib")},
    **{letter + "b": 1000**n for n, letter in enumerate("kmgt", 1)},
}

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) *([A-Za-z]{0,3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The settings of one trusted place, not yet checked.

    Attributes:
        name: A file's path, or words such as `the caller`.
        values: By flat name, as the file or the caller wrote them.
        ceiling: The same for the bounds; only a layer that `binds` may hold some.
        lines: The line of a flat name (`ceiling.<name>` for a bound), for files only.
        binds: Whether this is the administrator's layer.
    """

    name: str
    values: Mapping[str, object]
    ceiling: Mapping[str, object] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    binds: bool = False

    def place(self, key: str) -> str:
        """Say where `key` stands, for an error message."""
        return place(self.name, self.lines.get(key), is_file=bool(self.lines))


def place(name: str, line: int | None, *, is_file: bool = True) -> str:
    """Say where something stands: a file with its line, or a layer's words."""
    shown = f"`{name}`" if is_file else name
    return shown if line is None else f"{shown} line {line}"


def unknown(key: str, known: Iterable[str], where: str) -> SandboxPolicyError:
    """Return the error for a name that no setting has; its hint holds the nearest one."""
    names = list(known)
    # The first word of a name is what people remember; difflib would make `uid` of `pids`.
    close = [name for name in names if name.startswith(key)]
    close += difflib.get_close_matches(key, names, n=1)
    listed = ", ".join(f"`{name}`" for name in names)
    return SandboxPolicyError(
        f"`{key}` in {where} is not a setting",
        hint=f"did you mean `{close[0]}`?" if close else f"the settings are {listed}",
    )


def kind_of(key: str) -> Kind | None:
    """Return the kind of a setting's value, or `None` for an unknown name."""
    if key.startswith("env.") and len(key) > len("env."):
        return Kind.TEXT
    return KINDS.get(key)


def convert(key: str, value: object) -> Setting:
    """Return a known setting's value as its own kind, within its range.

    Raises:
        SandboxPolicyError: Wrong kind, malformed or out of range.
    """
    kind = kind_of(key)
    typed = None if kind is None else _typed(kind, value)
    if kind is None or typed is None:
        # A text's value could be a secret that was pasted into the wrong place.
        shown = type(value).__name__ if kind is Kind.TEXT else show(key, value)
        wanted = "a setting" if kind is None else kind.value
        raise SandboxPolicyError(f"`{key}` is `{shown}`, which is not {wanted}")
    # The class itself knows the ranges: a policy with this one change must be possible.
    if key.startswith("env."):
        replace(Policy(), env=((key.removeprefix("env."), str(typed)),))
    elif key in FIELD_NAMES:
        change: dict[str, Any] = {key: typed}
        replace(Policy(), **change)
    elif not typed:
        raise SandboxPolicyError(f"`{key}` is empty")
    return typed


def _typed(kind: Kind, value: object) -> Setting | None:
    """Return `value` as `kind`, or `None` where it is of another one."""
    match kind, value:
        case Kind.FLAG, bool():
            return value
        case _, bool():
            return None
        case ((Kind.SIZE | Kind.WHOLE), int()):
            return value
        case Kind.SIZE, str():
            return _size(value)
        case Kind.NUMBER, int() | float():
            return _float(value)
        case Kind.TEXT, str():
            return value
        case Kind.DISPLAY, Display():
            return value
        case Kind.DISPLAY, str():
            return next((mode for mode in Display if mode.value == value), None)
    return None


def _float(number: float) -> float | None:
    try:
        return float(number)
    except OverflowError:
        # TOML and JSON have integers of any length.
        return None


def _size(text: str) -> int | None:
    found = _SIZE.fullmatch(text.strip())
    unit = UNITS.get(found[2].lower()) if found else None
    return None if found is None or unit is None else round(float(found[1]) * unit)


def from_text(key: str, text: str) -> object:
    """Return what a TOML file would hold for the `text` of a `--set key=text`.

    What does not fit the kind stays text, so that `convert` can name it.
    """
    kind = kind_of(key)
    if kind is Kind.FLAG:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (Kind.WHOLE, Kind.NUMBER):
        try:
            return int(text) if kind is Kind.WHOLE else float(text)
        except ValueError:
            return text
    return text


def show(key: str, value: object) -> str:
    """Write a setting's value as a TOML file would, for messages and tables."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Display):
        return value.value
    if isinstance(value, int) and KINDS.get(key) is Kind.SIZE and value and value % MIB == 0:
        return f"{value // MIB} MiB"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else repr(value)
