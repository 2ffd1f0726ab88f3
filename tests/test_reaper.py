"""What is reaped, and what is not: among forged labels, whoever wrote them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from sandbox_kernel import host, labels, launch, reaper
from sandbox_kernel.adapters.base import SandboxInfo
from sandbox_kernel.errors import SandboxUnavailableError
from tests.orphans import made_by

if TYPE_CHECKING:
    from collections.abc import Mapping

#: No process has it: the highest that Linux gives is 2**22.
NOBODY = 2**22 + 1


class ListAdapter:
    """A provider that lists what it is given, and keeps what it is told to."""

    def __init__(self, *sandboxes: Mapping[str, str], kept: str = "") -> None:
        self._sandboxes = [
            SandboxInfo(sandbox_id=str(number), labels=marks, created=0.0, status="running")
            for number, marks in enumerate(sandboxes)
        ]
        self._kept = kept
        self.removed: list[str] = []

    def list(self, wanted: Mapping[str, str]) -> list[SandboxInfo]:
        return [each for each in self._sandboxes if wanted.items() <= each.labels.items()]

    def remove(self, sandbox_id: str) -> None:
        if sandbox_id == self._kept:
            raise SandboxUnavailableError("the engine is busy")
        self.removed.append(sandbox_id)


def reasons(*sandboxes: Mapping[str, str]) -> list[reaper.Reason]:
    found = reaper.orphans(ListAdapter(*sandboxes), me=host.owner(), now=time.time())
    return [orphan.reason for orphan in found]


@pytest.mark.parametrize(
    ("marks", "reason"),
    [
        pytest.param(made_by(pid=NOBODY), reaper.Reason.OWNERLESS, id="owner-gone"),
        pytest.param(made_by(started=1), reaper.Reason.OWNERLESS, id="pid-given-again"),
        pytest.param(made_by(boot_id="b"), reaper.Reason.OWNERLESS, id="before-reboot"),
        pytest.param(made_by(age=4000), reaper.Reason.EXPIRED, id="expired"),
        pytest.param(made_by(age=4000, machine="m"), reaper.Reason.EXPIRED, id="expired-elsewhere"),
    ],
)
def test_orphan_is_found_with_its_reason(marks: Mapping[str, str], reason: reaper.Reason) -> None:
    assert reasons(marks) == [reason]


FOREIGN = [
    pytest.param(made_by(), id="owner-alive"),
    pytest.param(made_by(uid=os.getuid() + 1, pid=NOBODY), id="other-user"),
    pytest.param(made_by(uid=os.getuid() + 1, age=4000), id="other-user-expired"),
    pytest.param(made_by(machine="m", pid=NOBODY), id="other-machine"),
    pytest.param(made_by(pid_namespace="pid:[1]", pid=NOBODY), id="other-container"),
    pytest.param({**made_by(pid=NOBODY), labels.EXPIRES: "-1"}, id="malformed-expiry"),
    pytest.param({**made_by(age=4000), labels.PID: "all"}, id="malformed-pid"),
    pytest.param({**made_by(age=4000), labels.UID: "*"}, id="malformed-uid"),
    pytest.param({labels.UID: str(os.getuid()), labels.EXPIRES: "1"}, id="incomplete"),
    pytest.param({"com.example.uid": "0", "com.example.expires": "1"}, id="another-project"),
    pytest.param({}, id="no-labels"),
]


@pytest.mark.parametrize("marks", FOREIGN)
def test_nobody_else_s_is_an_orphan(marks: Mapping[str, str]) -> None:
    assert reasons(marks) == []


def test_owner_that_ended_and_was_not_waited_for_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    marks = made_by(pid=child.pid, started=host.start_time(child.pid))
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    found = reasons(marks)

    child.wait()
    assert found == [reaper.Reason.OWNERLESS]


def test_one_that_stays_does_not_keep_the_others() -> None:
    adapter = ListAdapter(made_by(pid=NOBODY), made_by(pid=NOBODY), made_by(pid=NOBODY), kept="1")
    found = reaper.orphans(adapter, me=host.owner(), now=time.time())

    removals = list(reaper.remove(adapter, found))

    assert adapter.removed == ["0", "2"]
    assert [removal.error and removal.error.message for removal in removals] == [
        None,
        "the engine is busy",
        None,
    ]


def test_a_sweep_that_cannot_be_made_is_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "sandbox_kernel.launch"):
        launch.sweep(lambda: {"provider": "dokcer"})

    assert caplog.messages == ["no sweep: there is no provider `dokcer`"]
