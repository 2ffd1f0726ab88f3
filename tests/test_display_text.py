import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.display import text

COLOUR = re.compile(r"\x1b\[[0-9;]{0,64}m")
FORBIDDEN = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
#: Text that is likely to hold escapes, whole and broken.
HOSTILE_TEXT = st.lists(
    st.one_of(
        st.sampled_from(["\x1b", "\x1b[", "\x1b[31m", "\x1b[2J", "\x1b]0;x\x07", "\x9b", ";", "m"]),
        st.text(max_size=4),
    ),
    max_size=20,
).map("".join)  # fmt: skip


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        pytest.param("a\x00b\x07c\x7f", "a␀b␇c␡", id="c0-and-del"),
        pytest.param("\x1b[2J\x1b[H", "␛[2J␛[H", id="clear-the-screen"),
        pytest.param("\x1b]0;title\x07", "␛]0;title␇", id="window-title"),
        pytest.param("\x1b]52;c;cm0gLXJm\x1b\\", "␛]52;c;cm0gLXJm␛\\", id="clipboard"),
        pytest.param("\x1b]8;;http://evil\x1b\\x", "␛]8;;http://evil␛\\x", id="link"),
        pytest.param("\x9b2J", "\\x9b2J", id="c1"),
        pytest.param("\x1b[31;x m", "␛[31;x m", id="not-quite-a-colour"),
        pytest.param("\x1b[" + "1;" * 40 + "m", "␛[" + "1;" * 40 + "m", id="endless-colour"),
        pytest.param("\x1b[38;5;1mred\x1b[0m", "\x1b[38;5;1mred\x1b[0m", id="colour-stays"),
        pytest.param(" 5%|#\r10%|##\r\n\ta\b", " 5%|#\r10%|##\r\n\ta\b", id="progress-bar-stays"),
        pytest.param("שלום 👩\u200d🔬", "שלום 👩\u200d🔬", id="words-stay"),
    ],
)
def test_text_of_a_stream(hostile: str, shown: str) -> None:
    assert text.clean(hostile) == shown


@given(HOSTILE_TEXT)
def test_no_control_character_comes_through(hostile: str) -> None:
    shown = text.clean(hostile)

    assert not FORBIDDEN.search(COLOUR.sub("", shown))
    assert text.clean(shown) == shown


@given(HOSTILE_TEXT, st.lists(st.integers(0, 80)))
def test_chunks_do_not_matter(whole: str, cuts: list[int]) -> None:
    places = [0, *sorted(cut for cut in cuts if cut <= len(whole)), len(whole)]

    pending, shown = "", ""
    for start, end in itertools.pairwise(places):
        cleaned, pending = text.clean_chunk(pending, whole[start:end])
        shown += cleaned

    assert shown + text.clean(pending) == text.clean(whole)
    assert len(pending) <= 67


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        pytest.param("admin\u202etxt.exe", "admin\\u202etxt.exe", id="right-to-left"),
        pytest.param("pass\u200bword", "pass\\u200bword", id="zero-width"),
        pytest.param("a\U000e0041b", "a\\U000e0041b", id="tag-character"),
        pytest.param("true\rfalse\b", "true␍false␈", id="overwritten"),
        pytest.param("one\r\ntwo", "one\ntwo", id="line-ends-of-windows"),
        pytest.param("\x1b[31mred\x1b[0m\x1b[K", "\x1b[31mred\x1b[0m␛[K", id="only-colours-stay"),
    ],
)
def test_text_that_must_not_mislead(hostile: str, shown: str) -> None:
    assert text.clean_strict(hostile) == shown


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        pytest.param("a\nb\r\tc", "a␊b␍␉c", id="line-breaks"),
        pytest.param("\x1b[31mred", "␛[31mred", id="colour"),
        pytest.param("a\u2028b", "a\\u2028b", id="line-separator"),
        pytest.param("x" * 11, "x" * 9 + "…", id="too-long"),
        pytest.param("\u202e" * 2, "\\u202e\\u2…", id="too-long-when-escaped"),
        pytest.param("x" * 10, "x" * 10, id="as-long-as-allowed"),
    ],
)
def test_one_line(hostile: str, shown: str) -> None:
    assert text.one_line(hostile, 10) == shown


def test_long_text_is_cut_with_a_mark() -> None:
    shown = text.cut("x" * 1000 + "\x1b[31mred", 1003)

    assert shown == "x" * 1000 + "\n… 8 characters cut"


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ename", "shown"),
    [
        pytest.param("SandboxTimeoutError", "Exception", id="one-of-ours"),
        pytest.param("Sandbox", "Exception", id="the-prefix-alone"),
        pytest.param("SANDBOXTimeoutError", "Exception", id="one-of-ours-in-capitals"),
        pytest.param("<b>", "Exception", id="markup"),
        pytest.param("", "Exception", id="empty"),
        pytest.param("ValueError\n", "Exception", id="newline"),
        pytest.param("V\u0430lueError", "Exception", id="cyrillic-letter"),
        pytest.param("x" * 1_000_000, "Exception", id="a-million-characters"),
        pytest.param("x" * 82, "Exception", id="one-character-too-long"),
        pytest.param("x" * 81, "x" * 81, id="as-long-as-allowed"),
        pytest.param("json.JSONDecodeError", "json.JSONDecodeError", id="dotted"),
    ],
)
def test_name_of_an_error(ename: str, shown: str) -> None:
    error = text.clean_error(3, ename, "", [])

    assert error.ename == shown
    assert error.cell == 3


def test_message_of_an_error_is_bounded_and_clean() -> None:
    error = text.clean_error(1, "ValueError", "\x1b[31m\u202e\r" + "\u202e" * 1_000_000, [])

    assert len(error.evalue) <= 4096
    assert error.evalue.endswith("…")
    assert error.evalue.startswith("␛[31m\\u202e␍")


def test_message_of_an_error_as_long_as_allowed_is_whole() -> None:
    assert text.clean_evalue("line\n" + "x" * 4091) == "line\n" + "x" * 4091


def test_short_traceback_is_whole_and_keeps_its_colours() -> None:
    frames = ["\x1b[31m---\x1b[0m", "Cell In[1], line 1\n----> 1 1/0", "ZeroDivisionError: \x07"]

    lines = text.clean_traceback(frames)

    assert "\n".join(lines) == "\n".join(frames).replace("\x07", "␇")


@pytest.mark.parametrize(
    ("traceback", "cut"),
    [
        pytest.param([f"line {n}" for n in range(100_000)], "99901 lines cut", id="entries"),
        pytest.param(
            ["\n".join(f"line {n}" for n in range(100_000))], "99901 lines cut", id="lines"
        ),
        pytest.param(
            [f"line {n} " + "\u202e" * 1900 for n in range(99)], "lines cut", id="escapes"
        ),
    ],
)
def test_long_traceback_keeps_its_start_and_its_end(traceback: list[str], cut: str) -> None:
    lines = text.clean_traceback(traceback)

    assert len(lines) <= 100
    assert len("\n".join(lines)) <= 64 * 1024
    assert lines[0].startswith("line 0")
    assert lines[-1].startswith(traceback[-1].split("\n")[-1][:7])
    assert sum(cut in line for line in lines) == 1


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("x" * 1_000_000, id="a-million-characters"),
        pytest.param("\u202e" * 2000, id="longer-when-escaped"),
    ],
)
def test_long_line_of_a_traceback_is_cut_and_the_error_stays(line: str) -> None:
    lines = text.clean_traceback([line, "ValueError: x"])

    assert lines[-1] == "ValueError: x"
    assert len("\n".join(lines)) <= 64 * 1024


def test_empty_traceback_has_no_lines() -> None:
    assert text.clean_traceback([]) == ()
