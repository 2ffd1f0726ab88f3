"""The worker's signal handlers: as a fresh Python has them, SIGINT only inside of a cell.

Invariant: while `held` is entered no Python handler runs, so none can raise in the midst of
what must be done as a whole.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Signals that honest code handles.
_HANDLED = (
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGINT,
)
#: What a fresh Python ignores.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)


def restore_defaults() -> None:
    """Undo what the supervisor ignores: the worker's children would inherit it."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not None:
            ignored = number in _IGNORED or number is signal.SIGINT
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)


def ignore_interrupts() -> None:
    """Ignore SIGINT from now on; one that came in just before is swallowed."""
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            continue
        return


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT raise `KeyboardInterrupt`, whatever handler an earlier cell left."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        ignore_interrupts()


@contextmanager
def held() -> Iterator[None]:
    """Put off all Python signal handlers until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        # Handlers run in the main thread only.
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    arrived: list[int] = []
    # A stack, because a handler that is back already may raise before the others are.
    with ExitStack() as restored:
        for number, handler in handlers.items():
            restored.callback(signal.signal, number, handler)
            signal.signal(number, lambda got, _frame: arrived.append(got))
        yield
    for late in arrived:
        signal.raise_signal(late)


@contextmanager
def cancelled_by_interrupt(future: asyncio.Future[Any]) -> Iterator[None]:
    """Let SIGINT cancel a cell that awaits, as ipykernel does: it must not raise in the loop."""
    loop = asyncio.get_running_loop()

    def cancel(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(future.cancel)

    saved = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, saved)
