"""The protocol's page shows the table that the code has."""

from __future__ import annotations

import runpy
from pathlib import Path

DIAGRAMS = Path(__file__).parent.parent / "docs" / "diagrams.py"


def test_committed_diagram_is_current() -> None:
    script = runpy.run_path(str(DIAGRAMS))
    page = script["PAGE"].read_text(encoding="utf-8")

    current = script["current"](page)

    # If not: run `python docs/diagrams.py`.
    assert page == current
    assert current.count("-->") > len(script["SPEAKERS"])
