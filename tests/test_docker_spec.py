"""The box as docker is asked for it, and the check that it was given."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel.adapters.docker_spec import (
    NEVER,
    container_spec,
    differences,
    environment,
)
from sandbox_kernel.policy import FIELD_NAMES, MIB, RANGES, Display, Policy

ARGV = ("python3", "-I", "-u", "-c", "pass")
LABELS = {"sandbox-kernel.owner": "1000"}


def spec(policy: Policy | None = None) -> dict[str, Any]:
    return container_spec(policy or Policy(), ARGV, LABELS)


def as_docker_inspects(asked: dict[str, Any]) -> dict[str, Any]:
    """What Docker 20.10 answers, before the start, for a container made from `asked`."""
    config = {key: value for key, value in asked.items() if key != "HostConfig"}
    host = {key: value or None for key, value in asked["HostConfig"].items()}
    host |= {"Runtime": "runc", "Privileged": False, "MaskedPaths": ["/proc/kcore"]}
    config["Env"] = ["PATH=/usr/bin", *config["Env"]]
    config["Volumes"] = None
    return copy.deepcopy(
        {"Config": config, "HostConfig": host, "Mounts": [], "AppArmorProfile": ""}
    )


def number(name: str) -> st.SearchStrategy[Any]:
    low, high = RANGES[name]
    if isinstance(getattr(Policy(), name), int):
        return st.integers(int(low), int(high))
    return st.floats(low, high)


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)

POLICIES = st.builds(
    Policy,
    image=st.sampled_from(["a", "registry:5000/b:1", "c@sha256:" + "0" * 64]),
    runtime=st.sampled_from(["", "runsc", "kata"]),
    network=st.booleans(),
    stdin=st.booleans(),
    display=st.sampled_from(Display),
    checkpoint=st.booleans(),
    env=st.dictionaries(NAMES, VALUES, max_size=3).map(lambda env: tuple(sorted(env.items()))),
    **{name: number(name) for name in RANGES},
)


# A field that changes nothing here is a promise that nobody keeps.
ELSEWHERE = {
    "timeout_seconds",
    "grace_seconds",
    "output_bytes",
    "lifetime_seconds",
    "idle_seconds",
    "stdin",
    "display",
    "checkpoint",
    "checkpoints",
}
CHANGED: dict[str, Any] = {
    "image": "other",
    "runtime": "runsc",
    "network": True,
    "memory_bytes": 100 * MIB,
    "cpus": 0.5,
    "pids_limit": 50,
    "tmpfs_bytes": 3 * MIB,
    "uid": 1234,
    "gid": 1234,
    "env": (("A", "b"),),
}


@pytest.mark.parametrize(
    ("network", "knows_localhost", "disabled"),
    [
        pytest.param(False, True, True, id="closed-and-localhost-is-known"),
        pytest.param(False, False, False, id="closed-by-the-network-none"),
        pytest.param(True, True, False, id="open"),
    ],
)
def test_networking_is_left_out_where_nothing_needs_it(
    network: bool, knows_localhost: bool, disabled: bool
) -> None:
    made = container_spec(Policy(network=network), ["python3"], {}, knows_localhost=knows_localhost)

    assert made["NetworkDisabled"] is disabled
    assert made["HostConfig"]["NetworkMode"] == ("bridge" if network else "none")


def test_every_policy_field_is_accounted_for() -> None:
    assert set(FIELD_NAMES) == ELSEWHERE | CHANGED.keys()


@pytest.mark.parametrize("field", CHANGED)
def test_every_policy_field_reaches_docker(field: str) -> None:
    changed = spec(dataclasses.replace(Policy(), **{field: CHANGED[field]}))

    assert changed != spec()


@given(POLICIES)
def test_no_policy_opens_the_box(policy: Policy) -> None:
    asked = container_spec(policy, ARGV, LABELS)

    host = asked["HostConfig"]
    assert {key: host[key] for key in NEVER} == {
        "Privileged": False,
        "CapAdd": [],
        "Binds": [],
        "Mounts": [],
        "VolumesFrom": [],
        "Devices": [],
        "DeviceRequests": [],
        "DeviceCgroupRules": [],
        "Links": [],
        "ExtraHosts": [],
        "GroupAdd": [],
        "PortBindings": {},
        "PublishAllPorts": False,
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "",
        "CgroupParent": "",
        "OomKillDisable": False,
        "Sysctls": {},
    }
    assert host["NetworkMode"] == ("bridge" if policy.network else "none")
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["CapDrop"] == ["ALL"]
    assert host["IpcMode"] == "private"
    assert host["CgroupnsMode"] == "private"
    assert host["ReadonlyRootfs"] is True
    assert host["Memory"] == host["MemorySwap"] == policy.memory_bytes
    assert 0 < host["PidsLimit"] <= policy.pids_limit
    assert 0 < host["NanoCpus"] <= round(policy.cpus * 1e9)
    assert host["LogConfig"]["Type"] == "none"
    assert "Volumes" not in asked
    assert "EnvFile" not in asked
    assert not asked["User"].startswith("0:")
    assert all(
        "nosuid,nodev" in options and "size=" in options for options in host["Tmpfs"].values()
    )
    assert [path for path, options in host["Tmpfs"].items() if "noexec" not in options] == [
        "/sandbox"
    ]


@given(POLICIES)
def test_a_kept_promise_makes_no_difference(policy: Policy) -> None:
    asked = container_spec(policy, ARGV, LABELS)
    inspected = as_docker_inspects(asked)
    if policy.runtime:
        inspected["HostConfig"]["Runtime"] = policy.runtime

    assert differences(asked, inspected) == []


@given(POLICIES, st.data())
def test_each_entry_that_the_engine_drops_is_named(policy: Policy, data: st.DataObject) -> None:
    asked = container_spec(policy, ARGV, LABELS)
    inspected = as_docker_inspects(asked)
    inspected["HostConfig"]["Runtime"] = policy.runtime or "runc"
    # Podman does not report the first; nothing at all is what the second asks for.
    droppable = {key for key, value in asked["HostConfig"].items() if value}
    key = data.draw(st.sampled_from(sorted(droppable - {"CgroupnsMode", "RestartPolicy"})))
    del inspected["HostConfig"][key]

    found = differences(asked, inspected)

    assert len(found) == 1
    assert f"`{key}`" in found[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("Memory", 0, id="memory-discarded"),
        pytest.param("MemorySwap", -1, id="swap-unlimited"),
        pytest.param("NanoCpus", 0, id="cpus-discarded"),
        pytest.param("PidsLimit", 0, id="pids-discarded"),
        pytest.param("PidsLimit", -1, id="pids-unlimited"),
        pytest.param("Ulimits", [], id="ulimits-discarded"),
        pytest.param(
            "Ulimits",
            [
                {"Name": "core", "Soft": 0, "Hard": -1},
                {"Name": "memlock", "Soft": 0, "Hard": 0},
                {"Name": "msgqueue", "Soft": 0, "Hard": 0},
                {"Name": "nofile", "Soft": 4096, "Hard": 4096},
            ],
            id="ulimit-unlimited",
        ),
        pytest.param("Tmpfs", {"/tmp": "rw,size=64m"}, id="tmpfs-executable"),
        pytest.param("Privileged", True, id="privileged"),
        pytest.param("CapAdd", ["SYS_ADMIN"], id="capability-added"),
        pytest.param("CapDrop", ["CHOWN"], id="capabilities-kept"),
        pytest.param("SecurityOpt", [], id="new-privileges"),
        pytest.param("SecurityOpt", ["no-new-privileges=false"], id="new-privileges-by-value"),
        pytest.param(
            "SecurityOpt", ["no-new-privileges", "seccomp=unconfined"], id="seccomp-unconfined"
        ),
        pytest.param(
            "SecurityOpt", ["no-new-privileges", "apparmor=unconfined"], id="apparmor-unconfined"
        ),
        pytest.param("MaskedPaths", [], id="systempaths-unconfined"),
        pytest.param("Binds", ["/:/host"], id="bind"),
        pytest.param("Devices", [{"PathOnHost": "/dev/sda"}], id="device"),
        pytest.param("VolumesFrom", ["other"], id="volumes-of-another"),
        pytest.param("NetworkMode", "host", id="network-of-host"),
        pytest.param("PidMode", "host", id="pid-namespace-of-host"),
        pytest.param("IpcMode", "shareable", id="ipc-shared"),
        pytest.param("UTSMode", "host", id="uts-namespace-of-host"),
        pytest.param("UsernsMode", "host", id="user-namespace-of-host"),
        pytest.param("CgroupnsMode", "host", id="cgroup-namespace-of-host"),
        pytest.param("ReadonlyRootfs", False, id="root-writable"),
        pytest.param("LogConfig", {"Type": "json-file"}, id="output-logged-to-disk"),
        pytest.param("RestartPolicy", {"Name": "always"}, id="restarts"),
        pytest.param("Init", True, id="foreign-pid-1"),
        pytest.param("AutoRemove", False, id="not-removed"),
    ],
)
def test_a_wrong_host_config_is_named(key: str, value: object) -> None:
    inspected = as_docker_inspects(spec())
    inspected["HostConfig"][key] = value

    found = differences(spec(), inspected)

    assert len(found) == 1
    assert f"`{key}`" in found[0]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"Config.User": "root"}, "User", id="root"),
        pytest.param({"Config.StdinOnce": False}, "StdinOnce", id="stdin-outlives-the-host"),
        pytest.param({"Config.Tty": True}, "Tty", id="terminal"),
        pytest.param({"Config.Entrypoint": ["/entry.sh"]}, "Entrypoint", id="images-entry-point"),
        pytest.param({"Config.Cmd": None}, "Cmd", id="another-command"),
        pytest.param({"Config.Labels": {}}, "sandbox-kernel.owner", id="no-labels"),
        pytest.param({"Config.Volumes": {"/data": {}}}, "VOLUME /data", id="image-with-volume"),
        pytest.param(
            {"Mounts": [{"Type": "bind", "Destination": "/x"}]}, "type `bind`", id="mounted"
        ),
        pytest.param({"AppArmorProfile": "unconfined"}, "AppArmor", id="apparmor"),
    ],
)
def test_a_wrong_container_is_named(change: dict[str, object], named: str) -> None:
    inspected = as_docker_inspects(spec())
    for path, value in change.items():
        part, _, key = path.rpartition(".")
        (inspected[part] if part else inspected)[key] = value

    found = differences(spec(), inspected)

    assert len(found) == 1
    assert named in found[0]


def test_a_volume_under_a_tmpfs_is_no_disk() -> None:
    inspected = as_docker_inspects(spec())
    inspected["Config"]["Volumes"] = {"/tmp/": {}}

    assert differences(spec(), inspected) == []


def test_podmans_words_are_understood() -> None:
    inspected = as_docker_inspects(spec())
    inspected["HostConfig"] |= {
        "CapDrop": [
            "CAP_CHOWN",
            "CAP_DAC_OVERRIDE",
            "CAP_FOWNER",
            "CAP_FSETID",
            "CAP_KILL",
            "CAP_NET_BIND_SERVICE",
            "CAP_SETFCAP",
            "CAP_SETGID",
            "CAP_SETPCAP",
            "CAP_SETUID",
            "CAP_SYS_CHROOT",
        ],
        "SecurityOpt": ["no-new-privileges:true"],
        "Ulimits": [
            {"Name": f"RLIMIT_{limit['Name'].upper()}", "Soft": 0, "Hard": limit["Hard"]}
            for limit in spec()["HostConfig"]["Ulimits"]
        ],
    }
    del inspected["HostConfig"]["CgroupnsMode"]

    assert differences(spec(), inspected) == []


def test_an_empty_answer_keeps_no_promise() -> None:
    assert len(differences(spec(), {})) > 20


@pytest.mark.parametrize(
    ("cpus", "threads"),
    [
        pytest.param(0.1, "1", id="less-than-one"),
        pytest.param(1.0, "1", id="one"),
        pytest.param(2.5, "3", id="part-of-one"),
    ],
)
def test_numeric_libraries_get_as_many_threads_as_cpus(cpus: float, threads: str) -> None:
    variables = environment(Policy(cpus=cpus))

    assert variables["OMP_NUM_THREADS"] == variables["OPENBLAS_NUM_THREADS"] == threads


def test_the_users_variables_win() -> None:
    variables = environment(Policy(env=(("HOME", "/tmp"), ("OMP_NUM_THREADS", "7"))))

    assert variables["HOME"] == "/tmp"
    assert variables["OMP_NUM_THREADS"] == "7"


def test_the_hosts_variables_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment(Policy())
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@proxy")

    assert environment(Policy()) == before
