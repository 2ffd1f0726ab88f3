"""How a filter says no.

Invariant: a filter returns what is safe to show, or raises; it never returns
its input because it could not judge it.
"""

from __future__ import annotations


class RefusedError(Exception):
    """A value may not be shown.

    Args:
        reason: Why, in a few words of the host's own: it is shown to the user.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
