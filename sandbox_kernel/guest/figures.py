"""matplotlib's backend where there is no IPython: figures are shown as PNG.

Invariant: imported by matplotlib alone, by its name in `MPLBACKEND`.
"""

from __future__ import annotations

import builtins
from typing import Any

from matplotlib._pylab_helpers import Gcf
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

__all__ = ["FigureCanvas", "show"]


def show(*_args: Any, **_options: Any) -> None:
    """Show all open figures, and close them."""
    try:
        for manager in Gcf.get_all_fig_managers():
            builtins.display(manager.canvas.figure)  # type: ignore[attr-defined]
    finally:
        Gcf.destroy_all()
