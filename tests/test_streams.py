"""Gathering and metering of output: order, sizes, and counts, without a clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel import wire
from sandbox_kernel.guest import streams
from sandbox_kernel.guest.streams import FULL, LATE_BYTES, PAUSE, Gatherer, Meter


def metered(limit: int, cell: int = 1) -> Meter:
    """A meter with a running cell."""
    meter = Meter(limit)
    meter.begin(cell)
    return meter


def test_first_text_after_quiet_is_due_at_once() -> None:
    gatherer = Gatherer()

    gatherer.add(1, "stdout", "a")

    assert gatherer.due_at is not None
    assert gatherer.due_at <= 0.0


def test_text_after_a_sending_waits() -> None:
    gatherer = Gatherer()
    gatherer.add(1, "stdout", "a")
    gatherer.take(now=100.0)

    gatherer.add(1, "stdout", "b")

    assert gatherer.due_at == 100.0 + PAUSE


def test_a_full_gathering_does_not_wait() -> None:
    gatherer = Gatherer()
    gatherer.add(1, "stdout", "a")
    gatherer.take(now=100.0)

    gatherer.add(1, "stdout", "b" * FULL)

    assert gatherer.due_at is not None
    assert gatherer.due_at < 100.0


def test_nothing_is_due_when_nothing_waits() -> None:
    gatherer = Gatherer()

    gatherer.add(1, "stdout", "")

    assert gatherer.due_at is None
    assert gatherer.take(now=1.0) == []


def test_order_between_names_and_cells_is_kept() -> None:
    gatherer = Gatherer()
    for cell, name, text in [
        (1, "stdout", "a"),
        (1, "stdout", "b"),
        (1, "stderr", "c"),
        (2, "stderr", "d"),
        (1, "stdout", "e"),
    ]:
        gatherer.add(cell, name, text)

    events = gatherer.take(now=0.0)

    assert events == [
        wire.Stream(1, "stdout", "ab"),
        wire.Stream(1, "stderr", "c"),
        wire.Stream(2, "stderr", "d"),
        wire.Stream(1, "stdout", "e"),
    ]


@given(st.lists(st.text(max_size=40)), st.integers(1, 4))
def test_no_text_is_lost_doubled_or_too_long(texts: list[str], factor: int) -> None:
    gatherer = Gatherer()
    for text in texts:
        gatherer.add(1, "stdout", text * factor * 400)

    events = gatherer.take(now=0.0)

    assert "".join(e.text for e in events) == "".join(t * factor * 400 for t in texts)
    assert all(0 < len(e.text) <= FULL for e in events)


def test_plain_text_fits_in_one_frame() -> None:
    gatherer = Gatherer()
    gatherer.add(1, "stdout", '"' * FULL)

    (event,) = gatherer.take(now=0.0)

    assert len(event.text) < wire.MAX_FRAME


@given(st.integers(0, 60), st.lists(st.text(max_size=12)))
def test_sent_and_dropped_bytes_are_all_bytes(limit: int, texts: list[str]) -> None:
    meter = metered(limit)

    kept = [meter.text(1, text) for text in texts]

    total = sum(len(text.encode("utf-8", "replace")) for text in texts)
    sent = sum(len(text.encode("utf-8", "replace")) for text in kept)
    assert meter.seen == total
    assert sent <= limit
    assert sent + meter.finish() == total


def test_a_character_is_not_cut_at_the_cap() -> None:
    meter = metered(4)

    kept = meter.text(1, "a€€")

    assert kept == "a€"
    assert meter.dropped == 3


def test_nothing_shorter_follows_what_was_cut() -> None:
    meter = metered(4)
    meter.text(1, "€€")

    kept = meter.text(1, "x")

    assert kept == ""
    assert meter.spent(1)


def test_a_display_is_sent_whole_or_not_at_all() -> None:
    meter = metered(100)

    fits = [meter.whole(1, 101), meter.whole(1, 100), meter.whole(1, 1)]

    assert fits == [False, True, False]
    assert meter.finish() == 102


def test_an_error_shows_beyond_the_cap() -> None:
    meter = metered(4)
    meter.text(1, "12345")

    shown = [meter.error(1, 1000), meter.error(1, streams.ERROR_BYTES)]

    assert shown == [True, False]


def test_a_finished_cell_prints_a_little_more() -> None:
    meter = metered(1 << 20)
    meter.finish()
    meter.begin(2)

    kept = meter.text(1, "x" * (LATE_BYTES + 5))

    assert len(kept) == LATE_BYTES
    assert meter.spent(1)
    assert meter.finish() == 0


def test_output_of_another_cell_does_not_count_for_the_running_one() -> None:
    meter = metered(10)
    meter.finish()
    meter.begin(2)

    meter.text(1, "12345678")

    assert meter.text(2, "1234567890") == "1234567890"
    assert meter.seen == 10


def test_only_so_many_finished_cells_are_remembered() -> None:
    meter = Meter(10)
    for cell in range(1, streams.LATE_CELLS + 3):
        meter.begin(cell)
        meter.finish()

    kept = [meter.text(cell, "x") for cell in (1, 2, 3, streams.LATE_CELLS + 2)]

    assert kept == ["", "", "x", "x"]


@pytest.mark.parametrize(
    ("event", "least"),
    [
        pytest.param(wire.ClearOutput(1, False), 1, id="empty-event-costs-something"),
        pytest.param(wire.Page(1, "x" * 100), 100, id="text"),
        pytest.param(wire.Error(1, "E", "v" * 10, ["t" * 5] * 4), 31, id="list"),
    ],
)
def test_weight_covers_what_an_event_carries(event: wire.Event, least: int) -> None:
    size = streams.weight(event)

    assert least <= size <= least + 40
