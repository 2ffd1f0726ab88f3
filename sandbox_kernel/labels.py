"""Whose a sandbox is, as labels on it, and which ones nobody owns any more.

Invariants: pure: time, process table and identities are passed in.  Anyone who may
use the engine can write labels, so they are parsed like any other input, and what
is incomplete or malformed is nobody's to reap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "sandbox-kernel."

UID = PREFIX + "uid"
MACHINE = PREFIX + "machine"
BOOT_ID = PREFIX + "boot-id"
PID_NAMESPACE = PREFIX + "pid-namespace"
PID = PREFIX + "pid"
STARTED = PREFIX + "started"
CREATED = PREFIX + "created"
EXPIRES = PREFIX + "expires"
SESSION = PREFIX + "session"
VERSION = PREFIX + "version"

# As many digits as 64 bits have; `int` alone would also take signs, blanks and `_`.
_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The kernel process that a sandbox belongs to.

    A process id means something only within one boot and one pid namespace.  An engine
    can serve many of both: kernels in containers, or on other machines over the network.

    Attributes:
        uid: User id of the process.
        machine: The same over reboots, other for each machine or container (for
            example a hash of the machine id and the host name); opaque here.
        boot_id: A name made at each boot of the machine.
        pid_namespace: As `/proc/self/ns/pid` names it.
        pid: Process id, within `pid_namespace`.
        started: When the process started, in clock ticks since boot.
    """

    uid: int
    machine: str
    boot_id: str
    pid_namespace: str
    pid: int
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What the labels of one sandbox say.

    Attributes:
        owner: The process that made it.
        created: Seconds since the epoch.
        expires: Likewise; its guest ends by itself before that.
        session: Unique name of the session that made it.
        version: Of this package, at that time.
    """

    owner: Owner
    created: int
    expires: int
    session: str
    version: str


def make(
    owner: Owner, *, session: str, version: str, now: float, lifetime_seconds: float
) -> dict[str, str]:
    """Return the labels of a new sandbox; `now` is in seconds since the epoch."""
    return {
        UID: str(owner.uid),
        MACHINE: owner.machine,
        BOOT_ID: owner.boot_id,
        PID_NAMESPACE: owner.pid_namespace,
        PID: str(owner.pid),
        STARTED: str(owner.started),
        CREATED: str(int(now)),
        # One more, so that rounding never makes it earlier than the guest's own alarm.
        EXPIRES: str(int(now + lifetime_seconds) + 1),
        SESSION: session,
        VERSION: version,
    }


def of_user(uid: int) -> dict[str, str]:
    """Return the labels that all sandboxes of a user carry, to list them by."""
    return {UID: str(uid)}


def parse(labels: Mapping[str, str]) -> Marks | None:
    """Return what the labels say, or `None` where one is missing or malformed."""
    numbers: list[int] = []
    for key in (UID, PID, STARTED, CREATED, EXPIRES):
        text = labels.get(key, "")
        if not _NUMBER.fullmatch(text):
            return None
        numbers.append(int(text))
    uid, pid, started, created, expires = numbers
    texts = [labels.get(key, "") for key in (MACHINE, BOOT_ID, PID_NAMESPACE, SESSION, VERSION)]
    if not all(texts):
        return None
    machine, boot_id, pid_namespace, session, version = texts
    owner = Owner(
        uid=uid,
        machine=machine,
        boot_id=boot_id,
        pid_namespace=pid_namespace,
        pid=pid,
        started=started,
    )
    return Marks(owner=owner, created=created, expires=expires, session=session, version=version)


def lives(owner: Owner, *, me: Owner, alive: Callable[[int, int], bool]) -> bool | None:
    """Whether a sandbox's owner still runs; `None` where that cannot be known from here.

    Args:
        owner: As its labels say.
        me: The process that asks.
        alive: Whether the process of that id still runs that started at that time.
    """
    # Of another machine's processes nothing is known from here.
    if owner.machine != me.machine:
        return None
    if owner.boot_id != me.boot_id:
        return False
    # Nor of processes in another container, whose numbers mean other processes here.
    if owner.pid_namespace != me.pid_namespace:
        return None
    return alive(owner.pid, owner.started)


def is_orphan(marks: Marks, *, me: Owner, now: float, alive: Callable[[int, int], bool]) -> bool:
    """Whether a sandbox is ours to remove: this user's, and expired or without its owner.

    Args:
        marks: What its labels say.
        me: The process that asks.
        now: Seconds since the epoch.
        alive: As for `lives`.
    """
    if marks.owner.uid != me.uid:
        return False
    # Where nothing is known of the owner, the sandbox's expiry will come.
    return now >= marks.expires or lives(marks.owner, me=me, alive=alive) is False
