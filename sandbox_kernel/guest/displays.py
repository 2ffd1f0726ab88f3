"""`display` and `clear_output` as builtins, where there is no IPython.

Invariant: the same calls as IPython's, so that a notebook runs with and without it.
"""

from __future__ import annotations

import builtins
import uuid
from typing import TYPE_CHECKING, Any

from sandbox_kernel.guest.formats import bundle_of

if TYPE_CHECKING:
    from sandbox_kernel.guest.publish import Publisher


class Displays:
    """What user code displays with."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def install(self) -> None:
        """Make `display`, `update_display` and `clear_output` builtins."""
        for function in (self.display, self.update_display, self.clear_output):
            setattr(builtins, function.__name__, function)

    def display(
        self,
        *objects: object,
        display_id: bool | str | None = None,
        metadata: dict[str, Any] | None = None,
        raw: bool = False,
        clear: bool = False,
    ) -> DisplayHandle | None:
        """Show objects; with `display_id`, return a handle that can update them."""
        if clear:
            self.clear_output(wait=True)
        name = uuid.uuid4().hex if display_id is True else str(display_id or "")
        for obj in objects:
            self._show(obj, metadata, name, raw=raw, update=False)
        return DisplayHandle(self, name) if name else None

    def update_display(
        self,
        obj: object,
        *,
        display_id: str,
        metadata: dict[str, Any] | None = None,
        raw: bool = False,
    ) -> None:
        """Show `obj` in the place of what was displayed under this id."""
        self._show(obj, metadata, display_id, raw=raw, update=True)

    def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's
        """Clear the cell's output, now or when more of it comes."""
        self._publisher.clear(wait=wait)

    def _show(
        self, obj: Any, metadata: dict[str, Any] | None, name: str, *, raw: bool, update: bool
    ) -> None:
        data, about = (obj, {}) if raw else bundle_of(obj)
        about = {**about, **(metadata or {})}
        self._publisher.display(data, about, display_id=name, update=update)


class DisplayHandle:
    """Something displayed that can be updated; named as IPython's."""

    def __init__(self, displays: Displays, display_id: str) -> None:
        self.display_id = display_id
        self._displays = displays

    def __repr__(self) -> str:
        return f"<DisplayHandle display_id={self.display_id}>"

    def display(self, obj: object, *, raw: bool = False) -> None:
        """Display once more under the same id."""
        self._displays.display(obj, display_id=self.display_id, raw=raw)

    def update(self, obj: object, *, raw: bool = False) -> None:
        """Show `obj` in its place."""
        self._displays.update_display(obj, display_id=self.display_id, raw=raw)
