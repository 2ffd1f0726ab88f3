"""Become PID 1 of the sandbox: close it to the code that it will run, then supervise.

Invariant: no user code runs before this process is hardened and filtered; whatever fails, the
sandbox ends.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from sandbox_kernel.guest import posture, process, seccomp
from sandbox_kernel.guest.supervisor import Supervisor
from sandbox_kernel.guest.uplink import HostGoneError, Uplink

if TYPE_CHECKING:
    from sandbox_kernel.guest.supervisor import Settings


def main(settings: Settings) -> NoReturn:
    """Run this sandbox until its host, its lifetime or its worker ends it."""
    facts = posture.outer()
    process.ignore_signals()
    process.harden(int(settings["nofile"]))
    reader, writer = process.take_stream()
    wake = process.watch_children()
    filtered = seccomp.install()
    host = Uplink(
        reader, writer, window=int(settings["window_bytes"]), replay=bool(settings["replay"])
    )
    try:
        supervisor = Supervisor(settings, host, wake)
        _arm_lifetime(float(settings["lifetime_seconds"]))
        supervisor.start_worker()
        host.send(posture.hello(facts, seccomp_inner=filtered, protected=posture.protected()))
        supervisor.run()
    except HostGoneError:
        process.end(0)
    except Exception:  # noqa: BLE001 - the outermost frame: the reason to stderr, then all ends
        sys.excepthook(*sys.exc_info())
        process.end(1)


def _arm_lifetime(seconds: float) -> None:
    """End with the lifetime, by a timer of the kernel's: no state of the loop matters."""
    end = time.monotonic() + seconds

    def check(_signal: int, _frame: object) -> None:
        # Anyone in the sandbox may send the signal; only the clock counts.
        if time.monotonic() >= end:
            process.end(0)

    signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
