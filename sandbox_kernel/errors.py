"""Every error that this package raises on purpose.

Code that the user runs in the sandbox raises nothing here: its exceptions
arrive as `wire.Error` events, and are shown.  An exception from this module
means that the kernel, the provider or the guest failed, not the notebook.

Invariant: a message is one sentence that says what happened; advice stands in
`hint`.  Neither ever holds a vendor's traceback or a key.
"""

from __future__ import annotations


class SandboxKernelError(Exception):
    """Base class of all errors below.

    Args:
        message: What happened, in one sentence, without advice.
        hint: What the reader can do about it, if anything is known.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class SandboxPolicyError(SandboxKernelError):
    """The policy or the configuration is malformed, or asks for more than it may have."""


class SandboxUnavailableError(SandboxKernelError):
    """No sandbox could be started: provider missing, image missing, posture wrong."""


class SandboxDiedError(SandboxKernelError):
    """The sandbox itself ended, and the state in it is lost."""


class SandboxTimeoutError(SandboxKernelError):
    """A cell ran past its deadline and was interrupted or killed."""


class SandboxMemoryError(SandboxKernelError):
    """A cell used up the memory of its sandbox and was killed."""


class SandboxCrashError(SandboxKernelError):
    """The process that runs the cells ended: by a signal, or by `os._exit`."""


class SandboxProtocolError(SandboxKernelError):
    """A frame broke the protocol between host and guest."""


class LocalProtocolError(SandboxProtocolError):
    """This side tried to send what the protocol does not allow: a bug here."""


class RemoteProtocolError(SandboxProtocolError):
    """The other side sent what the protocol does not allow.

    On the host this is a hostile or broken guest, and the sandbox is killed.
    """
