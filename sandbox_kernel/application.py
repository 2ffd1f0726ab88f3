"""The kernel's process: ipykernel's application around our kernel.

Invariants: the host process prints nothing into notebooks; SIGINT interrupts the cell and
nothing else; whatever ends the application, its session is closed.
"""

from __future__ import annotations

import signal
from typing import Any

from ipykernel.kernelapp import IPKernelApp
from traitlets import Instance

from sandbox_kernel.kernel import SandboxKernel
from sandbox_kernel.session import Session


class SandboxKernelApp(IPKernelApp):
    """ipykernel's application, without what only an in-process shell needs."""

    kernel_class = SandboxKernel
    # The host process prints nothing into notebooks.
    outstream_class = None  # type: ignore[assignment]  # the trait allows it

    sandbox = Instance(Session)

    def init_control(self, context: Any) -> None:
        """One shell channel, served by the main thread: a sandbox runs one cell at a time."""
        super().init_control(context)
        self.shell_channel_thread = None

    def init_pdb(self) -> None:
        """Nothing to debug here."""

    def init_signal(self) -> None:
        """SIGINT interrupts the cell (clients with `interrupt_mode: signal`), SIGTERM ends."""
        signal.signal(signal.SIGINT, lambda *_: self.sandbox.interrupt())
        signal.signal(signal.SIGTERM, lambda *_: self._stop())

    def _stop(self) -> None:
        loop = self.kernel.io_loop
        loop.add_callback_from_signal(loop.stop)


def serve(session: Session, argv: list[str]) -> None:
    """Run the kernel until it is shut down, then end its session."""
    app = SandboxKernelApp.instance(sandbox=session)
    app.initialize(argv)
    try:
        app.start()
    finally:
        session.close()
