"""The worker's side of a checkpoint: fork a copy that waits, and go on as that copy.

Invariants: a copy never touches the worker's socket, and does nothing before it is thawed.  It
is no child of the worker's, so that user code which waits for its children does not meet it.
A process with more than one thread is not copied: locks that the others hold would stay locked.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
from contextlib import suppress
from pathlib import Path

from sandbox_kernel.guest import sibling
from sandbox_kernel.guest.link import move_up

#: A larger process leaves no room for what a copy needs at the least.
_SHARE = 0.75
#: A copy is frozen in milliseconds, unless something is wrong with it.
_SETTLE_SECONDS = 1.0
_PAGE = resource.getpagesize()


class Dock:
    """Where this process leaves copies of itself.

    Args:
        sock: Connected to the supervisor, one message a packet.
        memory_bytes: Of the sandbox.
    """

    def __init__(self, sock: socket.socket, memory_bytes: int) -> None:
        self._sock = move_up(sock)
        self._most = memory_bytes * _SHARE
        #: Ends when the supervisor has frozen the last copy.
        self._freezing: socket.socket | None = None
        self._copy = 0

    def leave(self, cell: int) -> socket.socket | None:
        """Leave a copy, or say why not, and return `None`.

        In the copy it returns when that is thawed: a new socket to the supervisor.

        Args:
            cell: The last cell that has run.
        """
        try:
            hindrance = self._hindrance()
            channel = None if hindrance else self._fork(cell)
        except OSError:
            # No more processes or open files.
            hindrance, channel = "resources", None
        if hindrance:
            _say(self._sock, hindrance, cell)
        return channel

    def _hindrance(self) -> str:
        if len(list(Path("/proc/self/task").iterdir())) > 1:
            return "threads"
        _, resident, shared = Path("/proc/self/statm").read_text().split()[:3]
        return "memory" if (int(resident) - int(shared)) * _PAGE > self._most else ""

    def _fork(self, cell: int) -> socket.socket | None:
        # Python draws new numbers after a fork, and forgets the loop's wake-up.
        state, wakeup = random.getstate(), signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup)
        frozen, freezes = socket.socketpair()
        with freezes:
            try:
                pid = _fork_aside()
            except OSError:
                frozen.close()
                raise
            if pid == 0:
                frozen.close()
                channel = self._freeze(cell, freezes)
                random.setstate(state)
                signal.set_wakeup_fd(wakeup)
                return channel
        self._freezing, self._copy = frozen, pid
        return None

    def settle(self) -> None:
        """Wait until the supervisor has the last copy, or nobody has; then a cell may begin."""
        if self._freezing is None:
            return
        with self._freezing as frozen:
            self._freezing = None
            frozen.settimeout(_SETTLE_SECONDS)
            try:
                frozen.recv(1)
            except socket.timeout:
                # Held up, as by a hook of the user's that runs after each fork: no net, then.
                if self._copy > 0:
                    with suppress(OSError):
                        os.kill(self._copy, signal.SIGKILL)

    def _freeze(self, cell: int, freezes: socket.socket) -> socket.socket:
        """In the forked process: become the copy, wait, and take what is given."""
        try:
            # Out of reach of what the worker sends to its own group.
            os.setpgid(0, 0)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with ours, theirs, freezes, self._sock as dock:
                _say(dock, "copy", cell, theirs, freezes)
                for sock in (theirs, freezes, dock):
                    sock.close()
                fds = socket.recv_fds(ours, 16, 2)[1]
            channel, dock = (socket.socket(fileno=fd) for fd in fds)
            self._sock = move_up(dock)
        # Whatever it is: two processes must not go on as the worker.
        except BaseException:  # noqa: BLE001
            os._exit(1)
        return channel


def _fork_aside() -> int:
    """Fork a process that is no child of this one; return 0 in it, here its id or -1.

    Raises:
        OSError: No room for a process.
    """
    try:
        return sibling.fork()
    except OSError:
        # Such as gVisor: with one in between, for twice the time.
        between = os.fork()
    if between:
        if os.waitpid(between, 0)[1]:
            raise BlockingIOError("no process for the copy")
        return -1
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    return 0


def _say(dock: socket.socket, word: str, cell: int, *sockets: socket.socket) -> None:
    try:
        socket.send_fds(dock, [f"{word} {cell}".encode()], [sock.fileno() for sock in sockets])
    except OSError:
        # User code has closed it, or the supervisor has ended.
        return
