import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel import wire
from sandbox_kernel.display import Firewall, html, safe
from sandbox_kernel.policy import Display


@pytest.fixture
def firewall() -> Firewall:
    """A firewall whose cell 1 is running."""
    made = Firewall(Display.STRICT)
    made.begin_cell(1)
    return made


def shown(cell: int, page: str, key: str = "") -> wire.DisplayData:
    return wire.DisplayData(cell, ["text/html", "text/plain"], [page, "plain"], [], key)


def update(cell: int, key: str) -> wire.UpdateDisplayData:
    return wire.UpdateDisplayData(cell, ["text/plain"], ["new"], [], key)


# --- bundles and notices ----------------------------------------------------------------------


def test_bundle_comes_out_clean_and_is_told_of(firewall: Firewall) -> None:
    result = firewall.sanitize(shown(1, "<b>x</b><script>1</script>"))

    data = {"text/html": "<b>x</b>", "text/plain": "plain"}
    line = '[sandbox] withheld by `display = "strict"`: text/html script\n'
    assert result == (
        safe.Bundle(1, safe.BundleKind.DISPLAY_DATA, data, {}, ""),
        safe.Stream(1, "stderr", line),
    )


def test_execute_result_is_one(firewall: Firewall) -> None:
    (result,) = firewall.sanitize(wire.ExecuteResult(1, ["text/plain"], ["2"], []))

    assert result == safe.Bundle(1, safe.BundleKind.EXECUTE_RESULT, {"text/plain": "2"}, {}, "")


def test_one_kind_is_told_of_once_a_cell(firewall: Firewall) -> None:
    firewall.sanitize(shown(1, "<script>1</script>"))

    second = firewall.sanitize(shown(1, "<script>2</script>"))
    other = firewall.sanitize(shown(1, "<iframe></iframe>"))
    firewall.begin_cell(2)
    next_cell = firewall.sanitize(shown(2, "<script>1</script>"))

    assert [len(result) for result in (second, other, next_cell)] == [1, 2, 2]


def test_notices_cannot_be_flooded(firewall: Firewall) -> None:
    events = [wire.DisplayData(1, [f"application/x{n}"], ["x"], [], "") for n in range(500)]

    notices = [item for event in events for item in firewall.sanitize(event)[1:]]

    assert len(notices) == 20


def test_notice_of_another_mode_does_not_promise_it() -> None:
    firewall = Firewall(Display.INTERACTIVE)

    _, notice = firewall.sanitize(shown(1, "<script>1</script>"))

    assert isinstance(notice, safe.Stream)
    assert "`interactive` is not available yet" in notice.text


def test_output_whose_filter_fails_is_dropped(
    firewall: Firewall, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: str) -> html.Cleaned:
        raise ZeroDivisionError("<script>")

    monkeypatch.setattr(html, "clean", broken)

    result = firewall.sanitize(shown(1, "<script>1</script>"))

    line = '[sandbox] withheld by `display = "strict"`: an output that could not be checked\n'
    assert result == (safe.Stream(1, "stderr", line),)


def test_bundle_of_nothing_shows_nothing(firewall: Firewall) -> None:
    assert firewall.sanitize(wire.DisplayData(1, [], [], [], "")) == ()


# --- display ids ------------------------------------------------------------------------------


def test_update_finds_the_display_of_its_cell(firewall: Firewall) -> None:
    (first,) = firewall.sanitize(shown(1, "<b>x</b>", "bar"))
    (second,) = firewall.sanitize(update(1, "bar"))

    assert isinstance(first, safe.Bundle)
    assert isinstance(second, safe.Bundle)
    assert second.kind is safe.BundleKind.UPDATE_DISPLAY_DATA
    assert second.data == {"text/plain": "new"}
    assert first.display_id == second.display_id
    assert str(uuid.UUID(first.display_id)) == first.display_id


@pytest.mark.parametrize(
    ("cell", "key"),
    [
        pytest.param(2, "bar", id="of-another-cell"),
        pytest.param(1, "other", id="unknown"),
        pytest.param(1, "", id="empty"),
    ],
)
def test_update_of_anything_else_is_dropped(firewall: Firewall, cell: int, key: str) -> None:
    firewall.sanitize(shown(1, "<b>x</b>", "bar"))
    firewall.begin_cell(2)

    result = firewall.sanitize(update(cell, key))

    assert [type(item) for item in result] == [safe.Stream]


def test_same_key_in_another_cell_is_another_display(firewall: Firewall) -> None:
    (first,) = firewall.sanitize(shown(1, "<b>x</b>", "bar"))
    firewall.begin_cell(2)
    (second,) = firewall.sanitize(shown(2, "<b>x</b>", "bar"))

    assert isinstance(first, safe.Bundle)
    assert isinstance(second, safe.Bundle)
    assert first.display_id != second.display_id


def test_only_two_hundred_displays_are_live(firewall: Firewall) -> None:
    for number in range(201):
        firewall.sanitize(shown(1, "<b>x</b>", f"id {number}"))

    oldest = firewall.sanitize(update(1, "id 0"))
    newest = firewall.sanitize(update(1, "id 200"))

    assert [type(item) for item in oldest] == [safe.Stream]
    assert [type(item) for item in newest] == [safe.Bundle]


def test_showing_again_ends_no_other_display(firewall: Firewall) -> None:
    for number in range(200):
        firewall.sanitize(shown(1, "<b>x</b>", f"id {number}"))
    firewall.sanitize(shown(1, "<b>y</b>", "id 199"))

    (oldest,) = firewall.sanitize(update(1, "id 0"))

    assert isinstance(oldest, safe.Bundle)


def test_a_cell_may_update_a_thousand_times(firewall: Firewall) -> None:
    firewall.sanitize(shown(1, "<b>x</b>", "bar"))

    results = [item for _ in range(1100) for item in firewall.sanitize(update(1, "bar"))]

    assert [type(item) for item in results] == [safe.Bundle] * 1000 + [safe.Stream]


# --- streams, errors, pages -------------------------------------------------------------------


def test_colour_cut_in_two_is_put_together_for_each_stream(firewall: Firewall) -> None:
    events = [
        wire.Stream(1, "stdout", "a\x1b[3"),
        wire.Stream(1, "stderr", "b\x1b"),
        wire.Stream(1, "stdout", "1mred"),
        wire.Stream(1, "stderr", "[2J"),
    ]

    results = [firewall.sanitize(event) for event in events]

    assert results == [
        (safe.Stream(1, "stdout", "a"),),
        (safe.Stream(1, "stderr", "b"),),
        (safe.Stream(1, "stdout", "\x1b[31mred"),),
        (safe.Stream(1, "stderr", "␛[2J"),),
    ]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(wire.ExecuteReply(1, "ok", 0, 0), id="reply"),
        pytest.param(wire.Verdict(1, "killed", "SIGKILL", 137, 0, "lost"), id="verdict"),
    ],
)
def test_what_waits_is_shown_when_the_cell_ends(firewall: Firewall, end: wire.Event) -> None:
    firewall.sanitize(wire.Stream(1, "stdout", "a\x1b[3"))

    assert firewall.sanitize(end) == (safe.Stream(1, "stdout", "␛[3"),)
    assert firewall.sanitize(end) == ()


def test_notice_begins_a_line_of_its_own(firewall: Firewall) -> None:
    firewall.sanitize(wire.Stream(1, "stderr", "50%"))

    first = firewall.notice(1, "output truncated\n\x1b[2J")
    second = firewall.notice(1, "x" * 5000)

    assert first.text == "\n[sandbox] output truncated␊␛[2J\n"
    assert second.text.startswith("[sandbox] x")
    assert len(second.text) < 1100


def test_error_of_the_guest_is_never_one_of_ours(firewall: Firewall) -> None:
    event = wire.Error(1, "SandboxTimeoutError", "\x1b[2J", ["a\nb\x1b[K"])

    (error,) = firewall.sanitize(event)

    assert error == safe.Error(1, "Exception", "␛[2J", ("a", "b␛[K"))


def test_own_error_keeps_its_name(firewall: Firewall) -> None:
    error = firewall.own_error(1, "SandboxTimeoutError", "ran past 30 s\nhint: \x1b[2J")

    assert error.ename == "SandboxTimeoutError"
    assert error.evalue == "ran past 30 s\nhint: ␛[2J"
    assert error.traceback == (
        "\x1b[31mSandboxTimeoutError\x1b[0m: ran past 30 s",
        "hint: ␛[2J",
    )


def test_only_the_running_cell_is_cleared(firewall: Firewall) -> None:
    firewall.begin_cell(2)

    assert firewall.sanitize(wire.ClearOutput(1, False)) == ()
    assert firewall.sanitize(wire.ClearOutput(2, True)) == (safe.Clear(2, True),)


def test_page_is_text(firewall: Firewall) -> None:
    (page,) = firewall.sanitize(wire.Page(1, "<b>\x1b[31mx\x1b[2J" + "y" * 2_000_000))

    assert isinstance(page, safe.Page)
    assert page.text.startswith("<b>\x1b[31mx␛[2J")
    assert len(page.text) < 1024 * 1024 + 100


# --- questions --------------------------------------------------------------------------------


def test_question_is_marked_and_is_one_line(firewall: Firewall) -> None:
    event = wire.InputRequest(1, "Jupyter\npassword\u202e: " + "x" * 500, True)

    (prompt,) = firewall.sanitize(event)

    assert isinstance(prompt, safe.Prompt)
    assert prompt.prompt.startswith("[sandboxed code asks] Jupyter␊password\\u202e: x")
    assert len(prompt.prompt) == 200 + len("[sandboxed code asks] ")
    assert prompt.password


def test_only_twenty_questions_a_cell(firewall: Firewall) -> None:
    results = [firewall.sanitize(wire.InputRequest(1, "?", False)) for _ in range(22)]

    assert [type(item) for result in results for item in result] == [safe.Prompt] * 20 + [
        safe.Stream
    ]
    firewall.begin_cell(2)
    assert isinstance(firewall.sanitize(wire.InputRequest(2, "?", False))[0], safe.Prompt)


# --- replies ----------------------------------------------------------------------------------


def test_completions_are_what_they_look_like(firewall: Firewall) -> None:
    matches = ["append", "a\nb", "a\u202eb", "\x1b[31m", "x" * 201, "", "é"]
    types = ["function", "", "", "", "", "", "<unknown>\n"]

    (reply,) = firewall.sanitize(wire.CompleteReply(7, matches, types, 2, 4), code="x.ap")

    assert reply == safe.Completion(7, ("append", "é"), ("function", "<unknown>␊"), 2, 4)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        pytest.param(3, 2, id="backwards"),
        pytest.param(0, 5, id="past-the-code"),
        pytest.param(-1, 2, id="negative"),
    ],
)
def test_completion_outside_of_the_code_is_empty(firewall: Firewall, start: int, end: int) -> None:
    (reply,) = firewall.sanitize(wire.CompleteReply(7, ["x"], ["y"], start, end), code="x.ap")

    assert reply == safe.Completion(7, (), (), 0, 0)


def test_completions_are_at_most_two_hundred(firewall: Firewall) -> None:
    event = wire.CompleteReply(7, [f"m{n}" for n in range(9999)], [], 0, 0)

    (reply,) = firewall.sanitize(event)

    assert isinstance(reply, safe.Completion)
    assert len(reply.matches) == len(reply.types) == 200


def test_inspection_is_text(firewall: Firewall) -> None:
    (reply,) = firewall.sanitize(wire.InspectReply(7, True, "\x1b[31mint\x1b[0m\x1b[2J"))

    assert reply == safe.Inspection(7, True, "\x1b[31mint\x1b[0m␛[2J")


@pytest.mark.parametrize(
    ("indent", "kept"),
    [
        pytest.param("    ", "    ", id="spaces"),
        pytest.param("import os", "", id="code"),
        pytest.param(" " * 101, "", id="too-long"),
        pytest.param("\n", "", id="newline"),
    ],
)
def test_indent_is_blank(firewall: Firewall, indent: str, kept: str) -> None:
    (reply,) = firewall.sanitize(wire.IsCompleteReply(7, "incomplete", indent))

    assert reply == safe.Completeness(7, "incomplete", kept)


@pytest.mark.parametrize(
    "event", [wire.Pong(1), wire.Stats(1, 1, 1, 1, 1, 1), wire.Ready("python")]
)
def test_events_that_show_nothing(firewall: Firewall, event: wire.Event) -> None:
    assert firewall.sanitize(event) == ()


# --- property ---------------------------------------------------------------------------------

TEXT = st.text(max_size=30)
TYPES = ["text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png",
         "application/json", "text/plain", "application/pdf"]  # fmt: skip
EVENTS = st.one_of(
    st.builds(wire.Stream, st.just(1), st.sampled_from(["stdout", "stderr"]), TEXT),
    st.builds(wire.DisplayData, st.just(1), st.lists(st.sampled_from(TYPES) | TEXT, max_size=4),
              st.lists(TEXT, max_size=4), st.lists(TEXT, max_size=2), TEXT),
    st.builds(wire.UpdateDisplayData, st.just(1), st.just(["text/plain"]), st.lists(TEXT),
              st.just([]), TEXT),
    st.builds(wire.Error, st.just(1), TEXT, TEXT, st.lists(TEXT, max_size=3)),
    st.builds(wire.InputRequest, st.just(1), TEXT, st.booleans()),
    st.builds(wire.CompleteReply, st.just(1), st.lists(TEXT), st.lists(TEXT), st.integers(),
              st.integers()),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=10))
def test_whatever_comes_is_answered_with_safe_values(events: list[wire.Event]) -> None:
    firewall = Firewall(Display.STRICT)
    firewall.begin_cell(1)

    results = [item for event in events for item in firewall.sanitize(event)]

    assert not any("could not be checked" in getattr(item, "text", "") for item in results)
    for item in results:
        assert type(item).__module__ == safe.__name__
        if isinstance(item, safe.Bundle):
            assert "text/plain" in item.data
