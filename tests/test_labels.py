"""Labels tell whose a sandbox is; only what surely is ours and ownerless is an orphan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel import labels

ME = labels.Owner(
    uid=1000,
    machine="m1",
    boot_id="b1",
    pid_namespace="pid:[4026531836]",
    pid=4711,
    started=123456,
)
NOW = 1_700_000_000.5
MADE = labels.make(ME, session="s1", version="0.1.0", now=NOW, lifetime_seconds=60)


def marks(**changes: object) -> labels.Marks:
    parsed = labels.parse(MADE)
    assert parsed is not None
    return replace(parsed, owner=replace(ME, **changes))


def nobody(pid: int, started: int) -> bool:
    return False


def test_labels_read_like_this() -> None:
    assert MADE == {
        "sandbox-kernel.uid": "1000",
        "sandbox-kernel.machine": "m1",
        "sandbox-kernel.boot-id": "b1",
        "sandbox-kernel.pid-namespace": "pid:[4026531836]",
        "sandbox-kernel.pid": "4711",
        "sandbox-kernel.started": "123456",
        "sandbox-kernel.created": "1700000000",
        "sandbox-kernel.expires": "1700000061",
        "sandbox-kernel.session": "s1",
        "sandbox-kernel.version": "0.1.0",
    }


def test_parse_is_the_inverse_of_make() -> None:
    assert labels.parse(MADE) == labels.Marks(
        owner=ME, created=1_700_000_000, expires=1_700_000_061, session="s1", version="0.1.0"
    )


def test_other_labels_do_not_matter() -> None:
    assert labels.parse({**MADE, "maintainer": "x"}) == labels.parse(MADE)


def test_a_user_s_sandboxes_are_listed_by_a_label_that_each_has() -> None:
    assert labels.of_user(1000).items() <= MADE.items()


@pytest.mark.parametrize("key", MADE)
def test_incomplete_labels_are_nobody_s(key: str) -> None:
    rest = {other: value for other, value in MADE.items() if other != key}

    assert labels.parse(rest) is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("-1", id="negative"),
        pytest.param("+1", id="sign"),
        pytest.param(" 1", id="blank"),
        pytest.param("1_0", id="underscore"),
        pytest.param("1.5", id="fraction"),
        pytest.param("nan", id="nan"),
        pytest.param("٣", id="digit-of-another-script"),
        pytest.param("9" * 5000, id="endless"),
    ],
)
@pytest.mark.parametrize("key", ["uid", "pid", "started", "created", "expires"])
def test_malformed_number_is_nobody_s(key: str, text: str) -> None:
    assert labels.parse({**MADE, f"sandbox-kernel.{key}": text}) is None


@given(st.dictionaries(st.sampled_from(sorted(MADE)), st.text()))
def test_no_label_makes_parse_fail(changes: dict[str, str]) -> None:
    labels.parse({**MADE, **changes})


@pytest.mark.parametrize(
    ("changes", "orphan"),
    [
        pytest.param({}, True, id="process-gone"),
        pytest.param({"uid": 1001}, False, id="other-user"),
        pytest.param({"boot_id": "b0"}, True, id="before-reboot"),
        pytest.param({"machine": "m2", "boot_id": "b2"}, False, id="other-machine"),
        pytest.param({"pid_namespace": "pid:[1]"}, False, id="other-container"),
        pytest.param(
            {"pid_namespace": "pid:[1]", "boot_id": "b0"}, True, id="container-before-reboot"
        ),
    ],
)
def test_ownerless_sandbox_is_an_orphan_where_that_can_be_known(
    changes: dict[str, object], orphan: bool
) -> None:
    assert labels.is_orphan(marks(**changes), me=ME, now=NOW, alive=nobody) is orphan


def test_owner_s_own_start_time_is_asked_for() -> None:
    asked = []

    def alive(pid: int, started: int) -> bool:
        asked.append((pid, started))
        return True

    orphan = labels.is_orphan(marks(), me=ME, now=NOW, alive=alive)

    assert not orphan
    assert asked == [(4711, 123456)]


@pytest.mark.parametrize(
    ("changes", "orphan"),
    [
        pytest.param({}, True, id="owner-lives"),
        pytest.param({"machine": "m2"}, True, id="other-machine"),
        pytest.param({"pid_namespace": "pid:[1]"}, True, id="other-container"),
        pytest.param({"uid": 1001}, False, id="other-user"),
    ],
)
def test_expired_sandbox_is_an_orphan_whoever_lives(
    changes: dict[str, object], orphan: bool
) -> None:
    past = NOW + 61

    got = labels.is_orphan(marks(**changes), me=ME, now=past, alive=lambda *_: True)

    assert got is orphan


def test_sandbox_is_no_orphan_a_moment_before_it_expires() -> None:
    moment = NOW + 60

    assert not labels.is_orphan(marks(), me=ME, now=moment, alive=lambda *_: True)
