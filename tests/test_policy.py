"""A policy's defaults are the promised ones, and a value nobody could keep is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sandbox_kernel.errors import SandboxPolicyError
from sandbox_kernel.policy import FIELD_NAMES, RANGES, Control, Display, Policy

MIB = 1024 * 1024

# Written out a second time on purpose: these are promises to whoever installs the package.
DEFAULTS = {
    "image": "sandbox-kernel/python",
    "runtime": "",
    "network": False,
    "timeout_seconds": 30.0,
    "grace_seconds": 2.0,
    "memory_bytes": 512 * MIB,
    "cpus": 1.0,
    "pids_limit": 100,
    "tmpfs_bytes": 64 * MIB,
    "uid": 65534,
    "gid": 65534,
    "output_bytes": 8 * MIB,
    "lifetime_seconds": 24 * 3600.0,
    "idle_seconds": 4 * 3600.0,
    "stdin": True,
    "display": Display.STRICT,
    "checkpoint": True,
    "checkpoints": 1,
    "env": (),
}


def test_defaults_are_the_promised_ones() -> None:
    policy = Policy()

    assert {name: getattr(policy, name) for name in FIELD_NAMES} == DEFAULTS


def test_policy_cannot_be_changed() -> None:
    policy: Any = Policy()

    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.network = True


def test_every_number_has_a_range_that_holds_its_default() -> None:
    numbers = {
        name: value
        for name, value in DEFAULTS.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }

    assert numbers.keys() == RANGES.keys()
    assert all(RANGES[name][0] <= value <= RANGES[name][1] for name, value in numbers.items())


@pytest.mark.parametrize("name", RANGES)
def test_range_includes_both_ends(name: str) -> None:
    kind = type(DEFAULTS[name])
    low, high = (kind(bound) for bound in RANGES[name])

    policies = [Policy(**{name: low}), Policy(**{name: high})]

    assert [getattr(policy, name) for policy in policies] == [low, high]


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("end", [pytest.param(0, id="below"), pytest.param(1, id="above")])
def test_number_out_of_range_is_refused(name: str, end: int) -> None:
    kind = type(DEFAULTS[name])
    value = kind(RANGES[name][end] + (1 if end else -1))

    with pytest.raises(SandboxPolicyError, match=f"`{name}` is `.*outside of") as caught:
        Policy(**{name: value})

    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        pytest.param("timeout_seconds", float("nan"), "outside", id="nan"),
        pytest.param("timeout_seconds", float("inf"), "outside", id="infinite"),
        pytest.param("timeout_seconds", "30", "not a number", id="number-as-text"),
        pytest.param("cpus", True, "not a number", id="flag-for-number"),
        pytest.param("memory_bytes", 1e9, "not a whole number", id="fraction-of-a-byte"),
        pytest.param("pids_limit", 100.0, "not a whole number", id="fraction-of-a-process"),
        pytest.param("uid", 0, "outside", id="root"),
        pytest.param("gid", 0, "outside", id="group-root"),
        pytest.param("network", "off", "neither true nor false", id="text-is-always-true"),
        pytest.param("network", 0, "neither true nor false", id="number-for-flag"),
        pytest.param("stdin", None, "neither true nor false", id="nothing-for-flag"),
        pytest.param("checkpoint", "off", "neither true nor false", id="word-for-flag"),
        pytest.param("display", "strict", "no display mode", id="word-for-mode"),
        pytest.param("image", "", "not an image name", id="no-image"),
        pytest.param("image", "--privileged", "not an image name", id="image-as-option"),
        pytest.param("image", "a b", "not an image name", id="image-with-blank"),
        pytest.param("image", "a\n", "not an image name", id="image-with-newline"),
        pytest.param("env", (("1A", "x"),), "not the name", id="name-starts-with-digit"),
        pytest.param("env", (("", "x"),), "not the name", id="no-name"),
        pytest.param("env", (("A=B", "x"),), "not the name", id="name-with-equals"),
        pytest.param("env", (("A\n", "x"),), "not the name", id="name-with-newline"),
        pytest.param("env", (("É", "x"),), "not the name", id="name-not-ascii"),
        pytest.param("env", (("A", "x\0y"),), "NUL", id="value-with-nul"),
    ],
)
def test_value_that_nobody_could_keep_is_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(SandboxPolicyError, match=message) as caught:
        Policy(**{name: value})

    assert name in str(caught.value) or name == "env"


def test_message_never_shows_a_variable_s_value() -> None:
    with pytest.raises(SandboxPolicyError) as caught:
        Policy(env=(("A B", "hunter2"),))

    assert "hunter2" not in str(caught.value)


def test_default_requires_everything_but_a_runtime() -> None:
    assert Policy().required == frozenset(Control) - {Control.RUNTIME}


def test_runtime_is_required_where_one_is_named() -> None:
    assert Control.RUNTIME in Policy(runtime="runsc").required


def test_open_network_requires_no_closed_one() -> None:
    assert Control.NETWORK_OFF not in Policy(network=True).required
