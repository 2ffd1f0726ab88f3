"""The supervisor's frozen copies of the worker: which are kept, which is given up first.

Invariants: nothing here blocks.  Who a copy is, the kernel tells, not the message; whoever says
to be one is stopped at once, so that no copy runs before it is thawed.  Honest code never lacks
memory that only a copy holds: when memory runs out, a copy whose pages are its own goes before
the worker, and one whose pages the worker shares goes after it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sandbox_kernel.guest import process

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sandbox_kernel.guest.child import Child
    from sandbox_kernel.guest.posture import Cgroups

#: This share of the memory a copy may hold alone and still go last: a cell that changes no
#: data comes close to it when Python's collector visits all objects that there are.
_OWN = 1 / 16
#: Below this share of free memory the copies are watched closely, and old ones are given up.
_SCARCE = 0.25
#: Old copies are kept as long as no more of the memory than this is used.
_ROOMY = 0.5
#: Bytes a second that code fills at most, with huge pages.
_FILL_SPEED = 8 * 1024**3
#: Seconds between two looks at how much is used, and at most of the time spent on counting
#: a copy's own pages, which takes milliseconds; not worth it for a change of few bytes.
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.005, 0.2
_COUNT_SHARE = 0.2
_CHANGE_BYTES = 2 * 1024 * 1024
#: Messages of one look into the dock.
_MESSAGES = 16
#: Scores of who is taken first and last when memory runs out.
_FIRST, _LAST = 1000, 0

_MESSAGE = re.compile(rb"(copy|memory|threads|resources) ([0-9]{1,16})", re.ASCII)
_CREDENTIALS = struct.Struct("3i")
_CUT = socket.MSG_TRUNC | socket.MSG_CTRUNC
_ROOM = socket.CMSG_SPACE(4 * 4) + socket.CMSG_SPACE(_CREDENTIALS.size)


class BrokenDockError(Exception):
    """The worker said what no honest one says."""


class Copy(NamedTuple):
    """A frozen process.

    Attributes:
        cell: The last cell that it has run; 0: none.
        control: Takes what it needs to go on.
    """

    pid: int
    cell: int
    control: socket.socket


class Copies:
    """The copies of one worker, oldest first.

    Args:
        back: How many cells can be gone back.
        cgroups: Tells how much memory is used.
    """

    def __init__(self, back: int, cgroups: Cgroups) -> None:
        self._kept: list[Copy] = []
        # The newest is what the worker is now: to go back there is to go back no cell.
        self._most = back + 1
        self._cgroups = cgroups
        self._limit = max(cgroups.memory_limit(), 0)
        #: Why there is none of the last cell; "" if there is one.
        self.skipped = ""
        #: Whether `cells` or `skipped` are others than at the last `told`.
        self._news = False
        self._look_at = 0.0
        #: How much was free when the newest copy's own pages were counted; -1: they were not.
        self._counted_at = -1
        #: Copies that were told to end, and who waits until their memory is free: a worker that
        #: was stopped, and one that has a copy and would begin its next cell.
        self._ending: set[int] = set()
        self._stopped = 0
        self._waiting: list[socket.socket] = []

    @property
    def pids(self) -> frozenset[int]:
        """The processes that are to be left alone."""
        return frozenset(copy.pid for copy in self._kept)

    @property
    def cells(self) -> list[int]:
        """The cells after which there is a copy, oldest first."""
        return [copy.cell for copy in self._kept]

    def news(self) -> bool:
        """Whether something has changed since the last call."""
        news, self._news = self._news, False
        return news

    # who comes

    def receive(self, worker: Child) -> None:
        """Freeze and keep what a worker has left in its dock by now.

        Raises:
            BrokenDockError: that is no copy, and no reason why there is none.
        """
        for _ in range(_MESSAGES):
            if worker.dock is None:
                return
            try:
                flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
                data, ancillary, got, _address = worker.dock.recvmsg(64, _ROOM, flags)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                worker.leave_dock()
                return
            pid, fds = _parse(ancillary)
            self._take_in(worker, data, pid, _sockets(fds), whole=not got & _CUT)

    def _take_in(
        self, worker: Child, message: bytes, pid: int, sockets: list[socket.socket], *, whole: bool
    ) -> None:
        match = _MESSAGE.fullmatch(message)
        if match is None or not whole or int(match[2]) > worker.connection.cell:
            raise BrokenDockError
        self._news = True
        if match[1] != b"copy" and not sockets:
            self.skipped = match[1].decode()
        elif match[1] == b"copy" and len(sockets) == 2 and pid not in (0, worker.pid):
            self._keep(Copy(pid, int(match[2]), sockets[0]))
            self._waiting.append(sockets[1])
            # One that user code has collected is never reported to us.
            self._ending = {ending for ending in self._ending if _lives(ending)}
            if not self._ending or self._free() > _ROOMY * self._limit:
                self._go_on()
        else:
            raise BrokenDockError

    def _keep(self, copy: Copy) -> None:
        _signal(copy.pid, signal.SIGSTOP)
        copy.control.setblocking(False)  # noqa: FBT003 - its only argument
        self._kept.append(copy)
        self.skipped = ""
        free = self._free()
        roomy = free >= _ROOMY * self._limit
        self._give_up(self._kept[: -self._most if roomy else -1])
        for old in self._kept[:-1]:
            process.offer(old.pid, _FIRST)
        process.offer(copy.pid, self._fair_score(free))
        self._look_at, self._counted_at = 0.0, -1

    def _fair_score(self, free: int) -> int:
        """The score with which the kernel itself judges rightly, should we look too late.

        It takes the process with the most pages plus score.  If the worker fills all that is
        free it is larger than its copy by that; if it changes what they share, by less.
        """
        if self._limit == 0:
            return _LAST
        ahead = max(free - int(2 * _OWN * self._limit), 0) * 1000 // self._limit
        return min(process.WORKER_OOM_SCORE + ahead, _FIRST)

    # who goes

    def forget(self, ended: Collection[int]) -> int:
        """Strike out copies that have ended without our doing; return how many."""
        gone = [copy for copy in self._kept if copy.pid in ended]
        self._give_up(gone)
        self._ending.difference_update(ended)
        if not self._ending:
            self._go_on()
        return len(gone)

    def _go_on(self) -> None:
        """Let those go on who waited."""
        for sock in self._waiting:
            with sock, suppress(OSError):
                # The end of what the worker reads.
                sock.shutdown(socket.SHUT_RDWR)
        self._waiting.clear()
        if self._stopped:
            _signal(self._stopped, signal.SIGCONT)
            self._stopped = 0

    def give_up(self) -> None:
        """Let go of all."""
        self._give_up(self._kept)

    def _give_up(self, copies: Iterable[Copy]) -> None:
        for copy in list(copies):
            self._kept.remove(copy)
            copy.control.close()
            _signal(copy.pid, signal.SIGKILL)
            self._ending.add(copy.pid)
            self._news = True

    def discard(self, copy: Copy) -> None:
        """End a copy that was taken and does not go on."""
        _signal(copy.pid, signal.SIGKILL)

    def take(self, cell: int | None = None) -> Copy | None:
        """Hand out the newest copy, or the newest that is not after `cell`; later ones go."""
        while self._kept:
            copy = self._kept[-1]
            if cell is None or copy.cell <= cell:
                self._kept.remove(copy)
                self._news = True
                process.offer(copy.pid, process.WORKER_OOM_SCORE)
                return copy
            self._give_up([copy])
        return None

    # memory

    @property
    def look_at(self) -> float:
        """When to call `look` while a cell runs."""
        return self._look_at if self._kept and self._limit else inf

    def look(self, now: float, worker: int) -> None:
        """Give up copies that hold what the cell may need; keep one that it shares all with.

        Not later, when memory has run out: the kernel does not wait until the memory of the
        copy that it ends is free, and ends the worker as well.  We do, and stop it until then.
        """
        free, scarce = self._free(), int(_SCARCE * self._limit)
        if free > scarce:
            wait = (free - scarce) / _FILL_SPEED
            self._look_at = now + min(max(wait, _SHORTEST_SECONDS), _LONGEST_SECONDS)
            return
        self._free_up(self._kept[:-1], worker)
        if abs(free - self._counted_at) > _CHANGE_BYTES:
            self._counted_at = free
            own = _own_bytes(self._kept[-1].pid)
            # Looked at in this order: of a worker that is dying, all pages are its copy's own.
            if own > _OWN * self._limit and _has_memory(worker):
                self._free_up(self._kept, worker)
                return
            process.offer(self._kept[-1].pid, _LAST)
        wait = (time.monotonic() - now) / _COUNT_SHARE
        self._look_at = now + min(max(wait, _SHORTEST_SECONDS), _LONGEST_SECONDS)

    def _free_up(self, copies: list[Copy], worker: int) -> None:
        """Let copies go, and the worker not go on before their memory is free."""
        if copies:
            self._stopped = worker
            _signal(worker, signal.SIGSTOP)
            self._give_up(copies)

    def _free(self) -> int:
        """Bytes; all there could be where nothing limits them."""
        return (self._limit or sys.maxsize) - max(self._cgroups.memory_used(), 0)


def _parse(ancillary: Iterable[tuple[int, int, bytes]]) -> tuple[int, list[int]]:
    pid = 0
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack(data)[0]
        elif kind == socket.SCM_RIGHTS:
            fds += struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
    return pid, fds


def _sockets(fds: list[int]) -> list[socket.socket]:
    """What was received, as sockets.

    Raises:
        BrokenDockError: it is something else.
    """
    sockets = []
    while fds:
        try:
            sockets.append(socket.socket(fileno=fds[0]))
        except OSError:
            for fd in fds:
                os.close(fd)
            raise BrokenDockError from None
        del fds[0]
        if sockets[-1].family != socket.AF_UNIX:
            fds.clear()
            raise BrokenDockError
    return sockets


def _own_bytes(pid: int) -> int:
    """Bytes that would be free without this process; -1 if that is not told."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return -1
    for line in text.splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    return -1


def _has_memory(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/statm").read_text().startswith("0 ")
    except OSError:
        return False


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        # Ended already: `forget` is told when it was collected.
        return
