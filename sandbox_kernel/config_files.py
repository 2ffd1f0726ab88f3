"""A configuration file as a `Layer`: whose file it is, its syntax, its lines.

Invariants: a file that others could have written is refused, not skipped, and so
is one that exists but cannot be read.  What is checked is the open file, never a
path a second time.  Values are not judged here, but by `config.resolve`.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from typing import TYPE_CHECKING

from sandbox_kernel.errors import SandboxPolicyError
from sandbox_kernel.policy import FIELD_NAMES, MIB
from sandbox_kernel.settings import Layer, place, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: A key with the tables around it.
Keys = tuple[str, ...]

#: The tables of a file and their keys; `[ceiling]` has its own list.
TABLES: dict[str, tuple[str, ...]] = {"policy": FIELD_NAMES, "docker": ("host",)}

#: The camelCase form of a configuration: its keys and the setting each one is.
#: The keys of remote providers are allowed but not kept: they are their adapters' matter.
JSON_KEYS: dict[str, str | None] = {
    "provider": "provider",
    # In milliseconds, as `memoryMb` is in MiB.
    "timeout": "timeout_seconds",
    "memoryMb": "memory_bytes",
    "cpus": "cpus",
    "pidsLimit": "pids_limit",
    "network": "network",
    "daytonaApiUrl": None,
    "e2bApiKey": None,
}

#: More than any sensible configuration; a bound on what is read.
MAX_FILE_BYTES = MIB

_TOML_LINE = re.compile(r"""\s*(\[?)\s*([\w"'. -]+?)\s*[\]=]""")
_JSON_LINE = re.compile(r'"(\w+)"\s*:')


def read(path: Path, *, owners: frozenset[int], others_bits: int, binds: bool) -> Layer | None:
    """Read a TOML file, or the `.json` file of the same name beside it.

    Args:
        path: The TOML file; or a JSON file itself, by its suffix.
        owners: The user ids that may own the file.
        others_bits: The permission bits that nobody may have (`0o022`).
        binds: Whether this is the administrator's file.

    Returns:
        `None` where there is no file.

    Raises:
        SandboxPolicyError: Not a safe file, not readable, or not well-formed.
    """
    candidates = dict.fromkeys((path, path.with_suffix(".json")))
    found = [item for item in candidates if _exists(item)]
    if not found:
        return None
    if len(found) > 1:
        raise SandboxPolicyError(
            f"`{found[0]}` and `{found[1]}` both exist", hint="keep one of the two files"
        )
    text = _read_text(found[0], owners=owners, others_bits=others_bits)
    parse = from_json if found[0].suffix == ".json" else from_toml
    return parse(text, name=str(found[0]), binds=binds)


def _read_text(path: Path, *, owners: frozenset[int], others_bits: int) -> str:
    try:
        # Non-blocking, or a FIFO of that name would hold the kernel up.
        with open(path, "rb", opener=_open_nonblocking) as file:
            _check_owner(path, os.fstat(file.fileno()), owners=owners, others_bits=others_bits)
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(data) > MAX_FILE_BYTES:
        raise SandboxPolicyError(f"`{path}` is larger than {MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SandboxPolicyError(f"{place(str(path), line)} is not UTF-8 text") from None


def _exists(path: Path) -> bool:
    """Whether there is something of that name, be it a link to nothing.

    Not `os.path.lexists`, which calls what it may not look at absent.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from None
    return True


def _unreadable(path: Path, error: OSError) -> SandboxPolicyError:
    return SandboxPolicyError(
        f"`{path}` cannot be read: {error.strerror}",
        hint="make it readable, or remove it; it is never skipped silently",
    )


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _check_owner(
    path: Path, status: os.stat_result, *, owners: frozenset[int], others_bits: int
) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SandboxPolicyError(f"`{path}` is not a regular file")
    if status.st_uid not in owners:
        allowed = " or ".join(f"`{uid}`" for uid in sorted(owners))
        raise SandboxPolicyError(
            f"`{path}` belongs to user id `{status.st_uid}`, not {allowed}",
            hint=f"`chown {min(owners)} {path}`, once its content is known to be right",
        )
    if status.st_mode & others_bits:
        raise SandboxPolicyError(
            f"`{path}` can be written by others (mode `{stat.S_IMODE(status.st_mode):04o}`)",
            hint=f"`chmod go-w {path}`, once its content is known to be right",
        )


def from_toml(text: str, *, name: str, binds: bool = False) -> Layer:
    """Parse a TOML configuration; `name` is its path, for messages.

    Raises:
        SandboxPolicyError: Broken TOML, an unknown key or table; names the line.
    """
    try:
        tree = tomllib.loads(text)
    except ValueError as error:
        # Also what `int` says of a number with thousands of digits, which has no line.
        said = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error))
        line = int(said[2] or text.count("\n") + 1) if said else None
        reason = said[1] if said else str(error)
        raise SandboxPolicyError(f"{place(name, line)} is not TOML: {reason}") from None
    where = _toml_lines(text)
    values: dict[str, object] = {}
    ceiling: dict[str, object] = {}
    lines: dict[str, int] = {}
    for path, value in _leaves(tree, name, where):
        key = ".".join(path[1:] if path[0] in {"policy", "ceiling"} else path)
        target = ceiling if path[0] == "ceiling" else values
        target[key] = value
        lines[f"ceiling.{key}" if path[0] == "ceiling" else key] = _line(where, path) or 1
    return Layer(name=name, values=values, ceiling=ceiling, lines=lines, binds=binds)


def _leaves(
    tree: dict[str, object], name: str, where: dict[Keys, int]
) -> Iterator[tuple[Keys, object]]:
    """Yield every setting with its full path; the keys of `[ceiling]` are not judged here."""
    # With their tables, so that a key that stands outside of its table is found.
    known = ["provider", "ceiling", *TABLES]
    nested = [f"{table}.{key}" for table, keys in TABLES.items() for key in keys]
    for top, entry in tree.items():
        if top == "provider":
            yield (top,), entry
            continue
        if top not in known:
            raise unknown(top, [*known, *nested], place(name, _line(where, (top,))))
        for key, value in _table(entry, (top,), name, where).items():
            path = (top, key)
            if top in TABLES and key not in TABLES[top]:
                raise unknown(
                    key, TABLES[top], f"the `[{top}]` of {place(name, _line(where, path))}"
                )
            if path == ("policy", "env"):
                for variable, content in _table(value, path, name, where).items():
                    yield (*path, variable), content
            else:
                yield path, value


def _table(entry: object, path: Keys, name: str, where: dict[Keys, int]) -> dict[str, object]:
    if isinstance(entry, dict):
        return entry
    dotted = ".".join(path)
    raise SandboxPolicyError(
        f"`{dotted}` in {place(name, _line(where, path))} is not a table",
        hint=f"write `[{dotted}]` on a line of its own, and its keys below it",
    )


def _toml_lines(text: str) -> dict[Keys, int]:
    """Find where each key and table begins, which `tomllib` does not tell.

    A scan for error messages only: a key in a string of many lines could mislead it.
    """
    found: dict[Keys, int] = {}
    table: Keys = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _TOML_LINE.match(line):
            path = tuple(part.strip(" \"'") for part in match[2].split("."))
            if match[1]:
                table = path
            else:
                path = (*table, *path)
            found.setdefault(path, number)
    return found


def _line(where: dict[Keys, int], path: Keys) -> int | None:
    """Return the line of a path, or else of the nearest table or inline table around it."""
    exact = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in where), None)
    if exact:
        return where[exact]
    return next((line for other, line in where.items() if other[: len(path)] == path), None)


def from_json(text: str, *, name: str, binds: bool = False) -> Layer:
    """Parse the camelCase form `{"sandbox": {"provider": ..., "timeout": <ms>, ...}}`.

    Raises:
        SandboxPolicyError: Broken JSON, an unknown key, or not a number where one is due.
    """
    try:
        tree = json.loads(text)
    except ValueError as error:
        line, reason = getattr(error, "lineno", None), getattr(error, "msg", str(error))
        raise SandboxPolicyError(f"{place(name, line)} is not JSON: {reason}") from None
    if not isinstance(tree, dict) or tree.keys() != {"sandbox"}:
        raise SandboxPolicyError(f'`{name}` is not of the form `{{"sandbox": {{...}}}}`')
    where: dict[Keys, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for match in _JSON_LINE.finditer(line):
            where.setdefault((match[1],), number)
    values: dict[str, object] = {}
    lines: dict[str, int] = {}
    for key, value in _table(tree["sandbox"], ("sandbox",), name, where).items():
        if key not in JSON_KEYS:
            raise unknown(key, JSON_KEYS, place(name, where.get((key,))))
        setting = JSON_KEYS[key]
        if setting is None or value is None:
            continue
        values[setting] = _scaled(key, value)
        lines[setting] = where.get((key,), 1)
    return Layer(name=name, values=values, lines=lines, binds=binds)


def _scaled(key: str, value: object) -> object:
    """Return a JSON number in the setting's own unit; what is no number stays as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    # Beyond this, any unit is out of range, and an integer may not fit a float.
    if abs(value) > 1e15:
        return value
    if key == "timeout":
        return value / 1000
    return value * MIB if key == "memoryMb" else value
