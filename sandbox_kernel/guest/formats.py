"""An object as a MIME bundle, where there is no IPython to format it.

Invariant: an object whose rich form raises is still shown, by its `repr`.
"""

from __future__ import annotations

import io
import sys
from typing import Any

_METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/json": "_repr_json_",
}


def bundle_of(obj: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the data and the metadata of a bundle; `repr`'s exception is the caller's."""
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    # A class has its instances' methods, unbound.
    if not isinstance(obj, type):
        for mime, name in _METHODS.items():
            value, about = _pair(_call(obj, name))
            if value is not None:
                data[mime] = value
                metadata.update({mime: about} if about else {})
        own, about = _pair(_call(obj, "_repr_mimebundle_"))
        if isinstance(own, dict):
            data.update(own)
            metadata.update(about if isinstance(about, dict) else {})
        if _is_figure(obj):
            data["image/png"] = png_of(obj)
    data.setdefault("text/plain", repr(obj))
    return data, metadata


def _call(obj: object, name: str) -> Any:
    method = getattr(obj, name, None)
    if not callable(method):
        return None
    try:
        return method()
    # The object's own code may raise anything; its `repr` is shown instead.
    except Exception:  # noqa: BLE001
        return None


def _pair(value: Any) -> tuple[Any, Any]:
    """A representation may come alone, or with its metadata."""
    if isinstance(value, tuple) and len(value) == 2:
        return value
    return value, None


def _is_figure(obj: object) -> bool:
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(obj, module.Figure)


def png_of(figure: Any) -> bytes:
    """Draw a matplotlib figure as IPython's inline backend does."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()
