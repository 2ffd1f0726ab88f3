"""The code keeps to its style and its types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check"], id="ruff-check"),
        pytest.param(["ruff", "format", "--check"], id="ruff-format"),
        pytest.param(["mypy"], id="mypy"),
    ],
)
def test_linter_has_nothing_to_say(command: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr
