"""A `Policy` as the body of the engine's `POST /containers/create`, and the proof that it held.

Invariants: pure, and free of docker-py; read this file to know what a container
may do.  Every policy field that an engine can enforce is read here.  What no
container may ever have stands in `NEVER`: it is asked for by name, as its empty
value, and compared with what the engine really set, like everything else.

What `inspect` does not show (the seccomp profile of the engine, the bounding
set) is reported from the inside by the guest's `hello`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sandbox_kernel.policy import MIB, Control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sandbox_kernel.policy import Policy

ENFORCES = frozenset(Control)

#: Home and working directory of the code.
SCRATCH = "/sandbox"

#: Files and directories in one tmpfs: kernel memory that `size` does not count.
MAX_INODES = 4096

SHM_BYTES = 16 * MIB

#: Label of an image in which `localhost` is known although `/etc/hosts` is empty.
LOCALHOST_LABEL = "sandbox-kernel.localhost"

#: `HostConfig` entries that would open the box, with the only value each may have.
NEVER: dict[str, Any] = {
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
    # Empty means the container's own; the other values join a namespace of the host.
    "PidMode": "",
    "UTSMode": "",
    "UsernsMode": "",
    "CgroupParent": "",
    "OomKillDisable": False,
    "Sysctls": {},
}

#: Variables of the image that would change how Python or the loader starts.
#: Set to nothing, not left out: podman fills a name without a value from its own environment.
BLANKED = (
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONHOME",
    "PYTHONINSPECT",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONWARNINGS",
)

#: Numeric libraries count the host's CPUs, and would start that many threads each.
THREAD_CAPS = (
    "BLIS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
)

#: What podman drops for `ALL`: it lists names where docker repeats the word.
DEFAULT_CAPABILITIES = frozenset(
    {
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)


def container_spec(
    policy: Policy,
    argv: Sequence[str],
    labels: Mapping[str, str],
    *,
    knows_localhost: bool = False,
) -> dict[str, Any]:
    """Return the container that `policy` describes, in the engine's own words.

    `knows_localhost` says that the image carries `LOCALHOST_LABEL`.
    """
    return {
        "Image": policy.image,
        # The whole of it: the image's own entry point never runs.
        "Entrypoint": [argv[0]],
        "Cmd": list(argv[1:]),
        "Labels": dict(labels),
        "User": f"{policy.uid}:{policy.gid}",
        "Hostname": "sandbox",
        "WorkingDir": SCRATCH,
        "Env": [f"{name}={value}" for name, value in environment(policy).items()],
        # One duplex stream, never a terminal: a TTY would rewrite our bytes.
        "Tty": False,
        "OpenStdin": True,
        # The guest's stdin ends with the host's connection, and the guest with it.
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        # Without networking at all the engine starts 60 to 90 ms sooner, and leaves `/etc/hosts`
        # empty.  An image that does not know `localhost` by itself gets the network `none`, which
        # is as closed. (podman knows no such setting, and ignores it.)
        "NetworkDisabled": knows_localhost and not policy.network,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(policy),
    }


def _host_config(policy: Policy) -> dict[str, Any]:
    config = {
        **NEVER,
        "NetworkMode": "bridge" if policy.network else "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "Tmpfs": _tmpfs(policy),
        "ShmSize": SHM_BYTES,
        "Memory": policy.memory_bytes,
        # Of memory and swap together: equal means no swap.
        "MemorySwap": policy.memory_bytes,
        "NanoCpus": round(policy.cpus * 1e9),
        "PidsLimit": policy.pids_limit,
        # No `nproc`: it counts per user id over the whole host.
        "Ulimits": [
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "memlock", "Soft": 0, "Hard": 0},
            {"Name": "msgqueue", "Soft": 0, "Hard": 0},
            {"Name": "nofile", "Soft": 4096, "Hard": 4096},
        ],
        # The default driver writes every byte of output to the host's disk.
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        # An init would be PID 1 in place of the supervisor, which signals from inside cannot reach.
        "Init": False,
        "AutoRemove": True,
    }
    if not policy.network:
        # Else the engine copies the host's resolvers and search domains.
        config |= {"Dns": ["127.0.0.1"], "DnsSearch": ["."], "DnsOptions": ["attempts:1"]}
    if policy.runtime:
        config["Runtime"] = policy.runtime
    return config


def _tmpfs(policy: Policy) -> dict[str, str]:
    size = f"size={policy.tmpfs_bytes},nr_inodes={MAX_INODES}"
    small = f"size={MIB},nr_inodes=64"
    return {
        "/tmp": f"rw,noexec,nosuid,nodev,{size},mode=1777",  # noqa: S108 - a mount, not a file
        SCRATCH: f"rw,exec,nosuid,nodev,{size},mode=0700,uid={policy.uid},gid={policy.gid}",
        # Podman would otherwise mount these two writable, executable and without a size.
        "/run": f"rw,noexec,nosuid,nodev,{small},mode=0755",
        "/var/tmp": f"rw,noexec,nosuid,nodev,{small},mode=1777",  # noqa: S108 - as above
    }


def environment(policy: Policy) -> dict[str, str]:
    """Return all variables that are set for the code; `policy.env` wins over the rest.

    `PATH` stays the image's: its `python3` may be in a place of its own.  An image
    without one gets the engine's default.
    """
    threads = str(max(1, math.ceil(policy.cpus)))
    variables = dict.fromkeys(BLANKED, "") | {
        "LANG": "C.UTF-8",
        "HOME": SCRATCH,
        # `getpass.getuser` fails without it where the user id has no name.
        "USER": "sandbox",
        # Caches go to `/tmp`, so that `/sandbox` shows the user's files alone.
        "IPYTHONDIR": "/tmp/.ipython",  # noqa: S108 - the sandbox's own tmpfs
        "MPLCONFIGDIR": "/tmp/.matplotlib",  # noqa: S108
        "XDG_CACHE_HOME": "/tmp/.cache",  # noqa: S108
        "XDG_CONFIG_HOME": "/tmp/.config",  # noqa: S108
        "XDG_DATA_HOME": "/tmp/.local/share",  # noqa: S108
        "XDG_STATE_HOME": "/tmp/.local/state",  # noqa: S108
        "PYTHONDONTWRITEBYTECODE": "1",
        # As ipykernel sets them: colours, and no pager that waits for a key.
        "TERM": "xterm-color",
        "CLICOLOR": "1",
        "CLICOLOR_FORCE": "1",
        "FORCE_COLOR": "1",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
    }
    variables |= dict.fromkeys(THREAD_CAPS, threads)
    if not policy.network:
        # `pip install` then says at once that there is no network.
        variables |= {"PIP_NO_INPUT": "1", "PIP_RETRIES": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return variables | dict(policy.env)


def differences(spec: Mapping[str, Any], inspected: Mapping[str, Any]) -> list[str]:
    """Compare a container as its engine inspects it, before it starts, with its spec.

    Returns:
        One phrase for each promise that the engine did not keep; `[]` means that all held.
    """
    return [*_config_differences(spec, inspected), *_host_differences(spec, inspected)]


def _config_differences(spec: Mapping[str, Any], inspected: Mapping[str, Any]) -> Iterator[str]:
    config = inspected.get("Config") or {}
    for key in ("User", "WorkingDir", "Tty", "OpenStdin", "StdinOnce", "Entrypoint", "Cmd"):
        if not _same(spec[key], config.get(key)):
            yield f"`{key}` is `{config.get(key)!r}` and not `{spec[key]!r}`"
    for pair in spec["Env"]:
        if pair not in (config.get("Env") or ()):
            yield f"`{pair.partition('=')[0]}` is missing in `Env`"
    labels = config.get("Labels") or {}
    for name, value in spec["Labels"].items():
        if labels.get(name) != value:
            yield f"label `{name}` is missing"
    covered = spec["HostConfig"]["Tmpfs"]
    for path in config.get("Volumes") or ():
        if path.rstrip("/") not in covered:
            yield f"the image declares `VOLUME {path}`, a writable directory on the host's disk"
    for mount in inspected.get("Mounts") or ():
        if mount.get("Type") != "tmpfs":
            yield f"`{mount.get('Destination')}` is a mount of type `{mount.get('Type')}`"
    if inspected.get("AppArmorProfile") == "unconfined":
        yield "`AppArmorProfile` is `unconfined`"


def _host_differences(spec: Mapping[str, Any], inspected: Mapping[str, Any]) -> Iterator[str]:
    asked, real = spec["HostConfig"], inspected.get("HostConfig") or {}
    for key, value in asked.items():
        held = HELD.get(key, _same)
        if not held(value, real.get(key)):
            yield f"`{key}` is `{real.get(key)!r}` and not `{value!r}`"
    for key in ("MaskedPaths", "ReadonlyPaths"):
        # Absent is an engine that does not say; empty is `systempaths=unconfined`.
        if real.get(key, True) == []:
            yield f"`{key}` is empty"


def _same(asked: Any, real: Any) -> bool:
    # Engines write nothing as `null`, `""`, `[]`, `{}`, `0` or `false`.
    return bool(asked == real) if asked or real else True


def _capabilities_dropped(asked: Any, real: Any) -> bool:
    names = {str(name).removeprefix("CAP_") for name in real or ()}
    return "ALL" in names or names >= DEFAULT_CAPABILITIES or not asked


def _security_options_held(asked: Any, real: Any) -> bool:
    # An entry that nobody asked for is most likely `unconfined` or `disable`.
    plain = {str(option).replace("=", ":").removesuffix(":true") for option in real or ()}
    return plain == set(asked)


def _tmpfs_held(asked: Any, real: Any) -> bool:
    mounts = real or {}
    return all(
        path in mounts and set(options.split(",")) - {"rw"} <= set(mounts[path].split(","))
        for path, options in asked.items()
    )


def _ulimits_held(asked: Any, real: Any) -> bool:
    hard = {
        str(limit["Name"]).lower().removeprefix("rlimit_"): limit["Hard"] for limit in real or ()
    }
    # -1 is no limit.
    return all(0 <= hard.get(limit["Name"], -1) <= limit["Hard"] for limit in asked)


def _log_held(asked: Any, real: Any) -> bool:
    return bool((real or {}).get("Type") == asked["Type"])


def _restart_held(asked: Any, real: Any) -> bool:
    return (real or {}).get("Name") in ("", None, asked["Name"])


def _cgroup_namespace_held(asked: Any, real: Any) -> bool:
    # Podman does not report it.
    return real in (asked, None)


#: How each entry that engines write in a form of their own is compared.
HELD: dict[str, Callable[[Any, Any], bool]] = {
    "CapDrop": _capabilities_dropped,
    "SecurityOpt": _security_options_held,
    "Tmpfs": _tmpfs_held,
    "Ulimits": _ulimits_held,
    "LogConfig": _log_held,
    "RestartPolicy": _restart_held,
    "CgroupnsMode": _cgroup_namespace_held,
}
