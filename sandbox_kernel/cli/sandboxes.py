"""`sandbox-kernel ps` and `reap`: the sandboxes that a provider has, and the ones nobody owns.

Invariants: only words are made here; `reaper` chooses and removes.  Nothing is printed of a
label or an answer but numbers, ids and words of known forms.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from sandbox_kernel import adapters, config, host, labels, reaper
from sandbox_kernel.adapters.base import Measures
from sandbox_kernel.errors import SandboxUnavailableError

if TYPE_CHECKING:
    from sandbox_kernel.adapters.base import Adapter, MemoryUse, SandboxInfo
    from sandbox_kernel.labels import Marks

_Provider = Annotated[
    str | None, typer.Option(help="Whose sandboxes.", show_default="as configured, else docker")
]
_Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting, as `docker.host=unix:///…`."),
]

#: Characters of an id, as docker shows it.
ID_LENGTH = 12

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sandbox, as `ps` shows it.

    Attributes:
        sandbox: As its provider lists it.
        marks: What its labels say.
        alive: Whether its owner runs, or `None` if that cannot be known from here.
        memory: What it uses, if its provider says so.
    """

    sandbox: SandboxInfo
    marks: Marks
    alive: bool | None
    memory: MemoryUse | None


def ps(
    *,
    provider: _Provider = None,
    settings: _Settings = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON list instead of a table.")
    ] = False,
) -> None:
    """List the sandboxes: whose they are, how old, what they use."""
    adapter = _adapter(provider, settings)
    rows = _rows(adapter)
    now = time.time()
    if as_json:
        _console().print(json.dumps([_as_json(adapter, row) for row in rows], indent=1))
        return
    if not rows:
        _console().print(f"no sandboxes on {adapter.name}")
        return
    columns = ("ID", "PROVIDER", "OWNER", "AGE", "EXPIRES", "MEMORY", "STATE")
    # Without colours or frames, so that `awk` and `grep` can read it too.
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        marks = row.marks
        table.add_row(
            row.sandbox.sandbox_id[:ID_LENGTH],
            adapter.name,
            _owner(row),
            _duration(now - marks.created),
            f"in {_duration(marks.expires - now)}" if marks.expires > now else "expired",
            _memory(row.memory),
            _word(row.sandbox.status),
        )
    _console().print(table)


def reap(
    *,
    provider: _Provider = None,
    settings: _Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
) -> None:
    """Remove your sandboxes that are expired, or whose kernel has ended."""
    adapter = _adapter(provider, settings)
    console = _console()
    found = reaper.orphans(adapter, me=host.owner(), now=time.time())
    if not found:
        console.print(f"nothing to remove on {adapter.name}")
    if dry_run:
        for orphan in found:
            console.print(f"would remove {_name(orphan)}")
        return
    failed = 0
    for removal in reaper.remove(adapter, found):
        if removal.error is None:
            console.print(f"removed {_name(removal.orphan)}")
        else:
            failed += 1
            console.print(f"not removed {_name(removal.orphan)}; {removal.error.message}")
    if failed:
        raise SandboxUnavailableError(
            f"{failed} of {len(found)} sandboxes could not be removed",
            hint="they end by themselves when they expire, and the next `reap` tries again",
        )


def _adapter(provider: str | None, settings: list[str] | None) -> Adapter:
    configuration = config.load(arguments=config.parse_arguments(provider, settings or []))
    # Where nobody chose one, the one that `install` takes.
    name = configuration.provider if "provider" in _chosen(configuration) else "docker"
    return adapters.get(name)(configuration)


def _chosen(configuration: config.Configuration) -> set[str]:
    return {key for key, layer in configuration.sources.items() if layer != config.DEFAULT}


def _rows(adapter: Adapter) -> list[Row]:
    """Return all sandboxes of this package that the provider lists, the oldest first."""
    me = host.owner()
    rows = []
    for sandbox in adapter.list({}):
        marks = labels.parse(sandbox.labels)
        # Others' containers, or labels that nobody of ours has written.
        if marks is None:
            continue
        # Another user's processes may be hidden from this one.
        mine = marks.owner.uid == me.uid
        alive = labels.lives(marks.owner, me=me, alive=host.alive) if mine else None
        memory = adapter.memory(sandbox.sandbox_id) if isinstance(adapter, Measures) else None
        rows.append(Row(sandbox=sandbox, marks=marks, alive=alive, memory=memory))
    return sorted(rows, key=lambda row: row.marks.created)


def _as_json(adapter: Adapter, row: Row) -> dict[str, object]:
    marks, memory = row.marks, row.memory
    return {
        "sandbox_id": row.sandbox.sandbox_id,
        "provider": adapter.name,
        "uid": marks.owner.uid,
        "pid": marks.owner.pid,
        "owner_alive": row.alive,
        "created": marks.created,
        "expires": marks.expires,
        "memory_used_bytes": memory.used if memory else None,
        "memory_limit_bytes": memory.limit if memory else None,
        "state": row.sandbox.status,
    }


def _owner(row: Row) -> str:
    owner = row.marks.owner
    if owner.uid != os.getuid():
        return f"uid {owner.uid}, pid {owner.pid}"
    # Of another machine or container, where that number is another process's or none.
    told = {True: "alive", False: "ended", None: "elsewhere"}[row.alive]
    return f"pid {owner.pid}, {told}"


def _name(orphan: reaper.Orphan) -> str:
    owner = orphan.marks.owner
    return f"{orphan.sandbox.sandbox_id[:ID_LENGTH]} (pid {owner.pid}): {orphan.reason.value}"


def _duration(seconds: float) -> str:
    """Return a duration in its largest unit (`3 min`)."""
    whole = max(int(seconds), 0)
    size, unit = next((each for each in _UNITS if whole >= each[0]), _UNITS[-1])
    return f"{whole // size} {unit}"


def _memory(memory: MemoryUse | None) -> str:
    if memory is None:
        return "-"
    return f"{memory.used >> 20} of {memory.limit >> 20} MiB"


def _word(status: str) -> str:
    """Return the provider's word for a state, if it is one."""
    return status if re.fullmatch(r"[a-z]{1,20}", status) else "?"


def _console() -> Console:
    return Console(highlight=False, markup=False, soft_wrap=True)
