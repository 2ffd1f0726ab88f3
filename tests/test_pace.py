"""When a copy may wait: in a tight loop of trivial cells, and nowhere else."""

from __future__ import annotations

import pytest

from sandbox_kernel.guest.pace import BURST_CELLS, BURST_SECONDS, QUICK_SECONDS, Pace

QUICK = QUICK_SECONDS / 2
SLOW = QUICK_SECONDS * 2


def after(*cells: tuple[float, bool]) -> Pace:
    pace = Pace()
    pace.copied(0.0)
    for seconds, next_waits in cells:
        pace.ended(seconds, next_waits=next_waits)
    return pace


def test_a_tight_loop_of_trivial_cells_is_in_a_hurry() -> None:
    pace = after(*[(QUICK, True)] * BURST_CELLS)

    assert pace.hurried(BURST_SECONDS / 2)


@pytest.mark.parametrize(
    "cells",
    [
        pytest.param([(QUICK, True)] * (BURST_CELLS - 1), id="few-cells"),
        pytest.param([(QUICK, True)] * BURST_CELLS + [(SLOW, True)], id="a-cell-that-computes"),
        pytest.param([(QUICK, True)] * BURST_CELLS + [(QUICK, False)], id="a-pause"),
        pytest.param([(QUICK, False)] * 3 * BURST_CELLS, id="a-person"),
        pytest.param([(SLOW, True)] * 3 * BURST_CELLS, id="a-notebook-run-as-a-whole"),
    ],
)
def test_all_else_gets_its_copy(cells: list[tuple[float, bool]]) -> None:
    pace = after(*cells)

    assert not pace.hurried(BURST_SECONDS / 2)


def test_a_loop_gets_a_copy_every_now_and_then() -> None:
    pace = after(*[(QUICK, True)] * 100)

    assert not pace.hurried(BURST_SECONDS)
    pace.copied(BURST_SECONDS)
    assert pace.hurried(BURST_SECONDS * 1.5)
