"""Trusted layers, a ceiling that holds, and errors that name the file, line and nearest key."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_kernel import config, config_files
from sandbox_kernel.ceiling import NAMES, ORDERED, Ceiling
from sandbox_kernel.config import Configuration, load, parse_arguments, resolve, tighten
from sandbox_kernel.errors import SandboxPolicyError
from sandbox_kernel.policy import FIELD_NAMES, RANGES, Display, Policy
from sandbox_kernel.settings import KINDS, Kind, Layer

MIB = 1024 * 1024
DIGEST = "sandbox-kernel/python@sha256:" + "0" * 64

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make root's files")


@pytest.fixture
def admin(tmp_path: Path) -> Path:
    return tmp_path / "etc" / "config.toml"


@pytest.fixture
def user(tmp_path: Path) -> Path:
    return tmp_path / "user" / "config.toml"


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def layer(text: str, *, name: str = "/u.toml", binds: bool = False) -> Layer:
    return config_files.from_toml(text, name=name, binds=binds)


def ceiling(text: str, policy: str = "") -> Layer:
    return layer(f"[policy]\n{policy}\n[ceiling]\n{text}\n", name="/a.toml", binds=True)


# --- layers -----------------------------------------------------------------------------------


def test_nothing_configured_is_provider_none_and_the_defaults(admin: Path, user: Path) -> None:
    configuration = load(admin_path=admin, user_path=user)

    assert configuration.provider == "none"
    assert configuration.policy == Policy()
    assert set(configuration.sources.values()) == {"default"}


@as_root
def test_later_layers_win_and_each_source_is_told(admin: Path, user: Path) -> None:
    number = "timeout_seconds"
    write(admin, 'provider = "a"\n[policy]\ntimeout_seconds = 1\ncpus = 1\nmemory_bytes = "65m"')
    write(user, 'provider = "u"\n[policy]\ntimeout_seconds = 2\ncpus = 2\npids_limit = 9')
    arguments = {"provider": "docker", number: 3, "cpus": 3}

    got = load(arguments=arguments, caller={number: 4}, admin_path=admin, user_path=user)

    policy = got.policy
    assert (got.provider, policy.timeout_seconds, policy.cpus) == ("docker", 4, 3)
    assert (policy.memory_bytes, policy.pids_limit) == (65 * MIB, 9)
    assert got.sources == {
        **dict.fromkeys(sorted(set(FIELD_NAMES) - {"env"}), "default"),
        "provider": "the kernel's arguments",
        number: "the caller",
        "cpus": "the kernel's arguments",
        "memory_bytes": str(admin),
        "pids_limit": str(user),
    }


def test_every_field_can_be_set_and_reaches_the_policy() -> None:
    text = """
        [policy]
        image = "other"
        runtime = "runsc"
        network = true
        timeout_seconds = 5
        grace_seconds = 1.5
        memory_bytes = "1 GiB"
        cpus = 0.5
        pids_limit = 50
        tmpfs_bytes = 1048576
        uid = 1000
        gid = 1001
        output_bytes = "1 MB"
        lifetime_seconds = 60
        idle_seconds = 30
        stdin = false
        display = "static"
        checkpoint = false
        checkpoints = 3
        env = {B = "2", A = "1"}
    """

    policy = resolve([layer(text)]).policy

    assert policy == Policy(
        image="other",
        runtime="runsc",
        network=True,
        timeout_seconds=5.0,
        grace_seconds=1.5,
        memory_bytes=1024 * MIB,
        cpus=0.5,
        pids_limit=50,
        tmpfs_bytes=MIB,
        uid=1000,
        gid=1001,
        output_bytes=1_000_000,
        lifetime_seconds=60.0,
        idle_seconds=30.0,
        stdin=False,
        display=Display.STATIC,
        checkpoint=False,
        checkpoints=3,
        env=(("A", "1"), ("B", "2")),
    )
    assert all(getattr(policy, name) != getattr(Policy(), name) for name in FIELD_NAMES)


def test_variables_of_all_layers_are_joined_by_name() -> None:
    layers = [layer('[policy.env]\nA = "1"\nB = "1"'), layer('[policy]\nenv.B = "2"\nenv.C = ""')]

    configuration = resolve(layers)

    assert configuration.policy.env == (("A", "1"), ("B", "2"), ("C", ""))


def test_engine_s_address_is_kept() -> None:
    assert resolve([layer('[docker]\nhost = "unix:///x"')]).docker.host == "unix:///x"


def test_environment_and_working_directory_set_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    folder = tmp_path / "notebooks"
    folder.mkdir()
    names = ("config.toml", "config.json", "sandbox-kernel.toml", "sandbox_kernel.toml")
    for name in (*names, "sandbox-kernel/config.toml", ".config/sandbox-kernel/config.toml"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('provider = "docker"\n[policy]\nnetwork = true\n')
    shouted = {f"SANDBOX_KERNEL_{name.upper()}": "true" for name in ("provider", *FIELD_NAMES)}
    code = (
        "from pathlib import Path; from sandbox_kernel import config; "
        "c = config.load(admin_path=Path('/nonexistent/config.toml')); "
        "print(c.provider, c.policy == type(c.policy)())"
    )
    # A relative XDG directory would be one in the working directory.
    environment = {**shouted, "HOME": str(home), "XDG_CONFIG_HOME": ".config"}
    root = str(Path(__file__).parent.parent)

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**environment, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "none True"


def test_user_s_file_stands_in_the_user_s_configuration_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    assert config.default_user_path() == tmp_path / "sandbox-kernel" / "config.toml"


# --- kinds and errors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        pytest.param("67108864", 64 * MIB, id="bytes"),
        pytest.param("512m", 512 * MIB, id="docker"),
        pytest.param("512M", 512 * MIB, id="docker-capital"),
        pytest.param("512 MiB", 512 * MIB, id="iec"),
        pytest.param("512mib", 512 * MIB, id="iec-small"),
        pytest.param("512 MB", 512 * 1000**2, id="si"),
        pytest.param("1.5 GiB", 1536 * MIB, id="fraction"),
        pytest.param(" 1g ", 1024 * MIB, id="blanks"),
        pytest.param("131072k", 128 * MIB, id="kib"),
        pytest.param("0.5t", 512 * 1024 * MIB, id="tib"),
    ],
)
def test_sizes_are_read_in_each_usual_form(text: str, size: int) -> None:
    assert resolve([Layer(name="x", values={"memory_bytes": text})]).policy.memory_bytes == size


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        pytest.param(
            "[policy]\n\ntimeout = 5",
            "`timeout` in the `[policy]` of `/u.toml` line 3 is not a setting",
            "did you mean `timeout_seconds`?",
            id="unknown-key",
        ),
        pytest.param("[policy]\npids = 5", "line 2", "`pids_limit`", id="short-key"),
        pytest.param(
            "# top\ntimeout_seconds = 5", "line 2", "`policy.timeout_seconds`", id="key-at-the-top"
        ),
        pytest.param("\n[polcy]\ncpus = 1", "`polcy` in `/u.toml` line 2", "`policy`", id="table"),
        pytest.param("[policy]\nzzz = 1", "line 2", "the settings are `image`", id="nothing-near"),
        pytest.param("[docker]\nhots = 'x'", "line 2", "`host`", id="docker-key"),
        pytest.param("policy = {cpu = 1}", "line 1", "`cpus`", id="inline-table"),
        pytest.param("policy.cpu = 1", "line 1", "`cpus`", id="dotted-key"),
        pytest.param('[policy]\n"cpu" = 1', "line 2", "`cpus`", id="quoted-key"),
        pytest.param("[docker]\n[policy]\nhost = 1", "line 3", None, id="key-of-another-table"),
        pytest.param("[policy]\nprovider = 'x'", "line 2", None, id="provider-in-policy"),
        pytest.param(
            "policy = 5", "`policy` in `/u.toml` line 1 is not a table", "[policy]", id="n"
        ),
        pytest.param("[policy]\nenv = 'A=1'", "`policy.env` in", "[policy.env]", id="env-as-text"),
        pytest.param("[policy]\ncpus =", "line 2 is not TOML: Invalid value", None, id="broken"),
        pytest.param("[policy]\na = [1,\n\n", "line 4 is not TOML", None, id="broken-at-the-end"),
        pytest.param("a = 1\na = 2", "line 2 is not TOML: Cannot overwrite", None, id="key-twice"),
        pytest.param("cpus = " + "9" * 5000, "is not TOML", None, id="endless-number"),
        pytest.param("[ceiling]\ncpus = 1", "only an administrator", "/etc/", id="user-s-ceiling"),
    ],
)
def test_malformed_file_is_named_with_line_and_nearest_key(
    text: str, message: str, hint: str | None
) -> None:
    with pytest.raises(SandboxPolicyError) as caught:
        resolve([layer(text)])

    assert "`/u.toml`" in caught.value.message
    assert message in caught.value.message
    assert hint is None or hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        pytest.param("network", "'true'", "`true` or `false`", id="flag-as-text"),
        pytest.param("network", "1", "`true` or `false`", id="flag-as-number"),
        pytest.param("memory_bytes", "'lots'", "a size", id="size-as-word"),
        pytest.param("memory_bytes", "'512 MiX'", "a size", id="size-of-unknown-unit"),
        pytest.param("memory_bytes", "'-1m'", "a size", id="negative-size"),
        pytest.param("memory_bytes", "'1e9'", "a size", id="size-with-exponent"),
        pytest.param("memory_bytes", f"'{'9' * 400}'", "a size", id="endless-size"),
        pytest.param("memory_bytes", "1e9", "a size", id="size-as-float"),
        pytest.param("memory_bytes", "true", "a size", id="size-as-flag"),
        pytest.param("memory_bytes", "1", "outside of", id="size-out-of-range"),
        pytest.param("pids_limit", "9.5", "a whole number", id="fraction"),
        pytest.param("pids_limit", "'9'", "a whole number", id="number-as-text"),
        pytest.param("timeout_seconds", "'30 s'", "a number", id="duration-as-text"),
        pytest.param("timeout_seconds", "nan", "outside of", id="nan"),
        pytest.param("timeout_seconds", "1" + "0" * 400, "a number", id="more-than-a-float"),
        pytest.param("timeout_seconds", "2020-01-01", "a number", id="date"),
        pytest.param("display", "'open'", "one of `strict`", id="unknown-mode"),
        pytest.param("display", "true", "one of `strict`", id="mode-as-flag"),
        pytest.param("image", "5", "text", id="text-as-number"),
        pytest.param("image", "'-v'", "not an image name", id="image-as-option"),
        pytest.param("env.A", "5", "text", id="variable-as-number"),
        pytest.param("env.'A B'", "'x'", "not the name", id="variable-with-blank"),
    ],
)
def test_wrong_value_is_named_with_its_place(key: str, value: str, kind: str) -> None:
    with pytest.raises(SandboxPolicyError) as caught:
        resolve([layer(f"[policy]\n\n{key} = {value}")])

    assert kind in caught.value.message
    assert caught.value.message.endswith("in `/u.toml` line 3")


def test_variable_s_value_is_in_no_message() -> None:
    refused = [
        ([layer("[policy.env]\nA = ['hunter2']")]),
        ([layer("[policy.env]\n'A B' = 'hunter2'")]),
        ([ceiling("env = ['B']"), layer("[policy.env]\nA = 'hunter2'")]),
    ]

    messages = []
    for layers in refused:
        with pytest.raises(SandboxPolicyError) as caught:
            resolve(layers)
        messages.append(str(caught.value))

    assert not any("hunter2" in message for message in messages)


# --- arguments --------------------------------------------------------------------------------


def test_arguments_become_settings_of_their_kind() -> None:
    texts = ["cpus=2", "network=true", "pids_limit=9", "memory_bytes=1g", "env.A=b=c", "image=x"]

    configuration = resolve([Layer(name="x", values=parse_arguments("docker", texts))])

    assert configuration.provider == "docker"
    assert configuration.policy == Policy(
        cpus=2.0,
        network=True,
        pids_limit=9,
        memory_bytes=1024 * MIB,
        env=(("A", "b=c"),),
        image="x",
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        pytest.param(["cpus"], "not of the form `key=value`", id="no-value"),
        pytest.param(["cpus=1", "cpus=2"], "set twice", id="twice"),
        pytest.param(["provider=x"], "set twice", id="provider-twice"),
        pytest.param(["cpu=1"], "`cpu` in the kernel's arguments is not a setting", id="unknown"),
        pytest.param(["env.=1"], "`env.` in the kernel's arguments is not", id="no-variable"),
        pytest.param(["cpus=many"], "`cpus` is `many`, which is not a number", id="wrong-kind"),
        pytest.param(["pids_limit=1_0.5"], "not a whole number", id="fraction"),
        pytest.param(["network=yes"], "not `true` or `false`", id="another-word"),
        pytest.param(["docker.host="], "`docker.host` is empty", id="empty"),
    ],
)
def test_malformed_argument_is_refused(
    texts: list[str], message: str, admin: Path, user: Path
) -> None:
    with pytest.raises(SandboxPolicyError) as caught:
        load(arguments=parse_arguments("docker", texts), admin_path=admin, user_path=user)

    assert message in caught.value.message


# --- whose file -------------------------------------------------------------------------------


@as_root
@pytest.mark.parametrize(
    ("owner", "mode", "message"),
    [
        pytest.param(65534, 0o644, "belongs to user id `65534`", id="other-owner"),
        pytest.param(0, 0o664, "written by others (mode `0664`)", id="group-writable"),
        pytest.param(0, 0o646, "written by others (mode `0646`)", id="world-writable"),
    ],
)
def test_administrator_s_file_that_others_could_write_is_refused(
    owner: int, mode: int, message: str, admin: Path, user: Path
) -> None:
    write(admin, 'provider = "docker"', mode)
    os.chown(admin, owner, -1)

    with pytest.raises(SandboxPolicyError) as caught:
        load(admin_path=admin, user_path=user)

    assert message in caught.value.message
    assert caught.value.hint is not None


def test_user_s_file_that_all_could_write_is_refused(admin: Path, user: Path) -> None:
    write(user, 'provider = "docker"', 0o666)

    with pytest.raises(SandboxPolicyError, match="can be written by others"):
        load(admin_path=admin, user_path=user)


@as_root
def test_user_s_file_of_somebody_else_is_refused(admin: Path, user: Path) -> None:
    write(user, 'provider = "docker"')
    os.chown(user, 65534, -1)

    with pytest.raises(SandboxPolicyError, match="belongs to user id `65534`"):
        load(admin_path=admin, user_path=user)


def test_user_s_group_may_write(admin: Path, user: Path) -> None:
    write(user, 'provider = "docker"', 0o664)

    assert load(admin_path=admin, user_path=user).provider == "docker"


def test_owner_of_a_link_s_target_counts(admin: Path, user: Path, tmp_path: Path) -> None:
    user.parent.mkdir()
    user.symlink_to(write(tmp_path / "other.toml", "", 0o666))

    with pytest.raises(SandboxPolicyError, match="can be written by others"):
        load(admin_path=admin, user_path=user)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.mkdir()


def make_dangling_link(path: Path) -> None:
    path.symlink_to("/nonexistent/file")


def make_huge(path: Path) -> None:
    path.write_bytes(b"#" * (MIB + 1))


def make_binary(path: Path) -> None:
    path.write_bytes(b"# one\n# \xff\n")


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(make_fifo, "not a regular file", id="fifo"),
        pytest.param(make_directory, "cannot be read", id="directory"),
        pytest.param(make_dangling_link, "cannot be read", id="dangling-link"),
        pytest.param(make_huge, "larger than", id="huge"),
        pytest.param(make_binary, "line 2 is not UTF-8", id="binary"),
    ],
)
@pytest.mark.parametrize("which", ["admin", "user"])
def test_file_that_cannot_be_read_is_never_skipped(
    make: Any, message: str, which: str, admin: Path, user: Path
) -> None:
    path = {"admin": admin, "user": user}[which]
    path.parent.mkdir()
    make(path)
    if which == "admin" and os.geteuid() != 0 and make in {make_huge, make_binary}:
        pytest.skip("only root can make root's files")

    with pytest.raises(SandboxPolicyError, match=message):
        load(admin_path=admin, user_path=user)


@as_root
def test_file_in_a_directory_that_may_not_be_entered_is_never_skipped(
    admin: Path, user: Path
) -> None:
    write(admin, "[ceiling]\nnetwork = false").parent.chmod(0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(SandboxPolicyError, match="cannot be read: Permission denied"):
            load(admin_path=admin, user_path=user)
    finally:
        os.seteuid(0)


def test_directory_that_is_none_holds_no_file(admin: Path, user: Path) -> None:
    assert load(admin_path=admin, user_path=Path("/dev/null/config.toml")).provider == "none"


# --- the camelCase form -----------------------------------------------------------------------


def test_json_form_is_read_beside_the_other(admin: Path, user: Path) -> None:
    write(
        user.with_suffix(".json"),
        """{"sandbox": {"provider": "docker", "timeout": 4350, "memoryMb": 256, "cpus": 2,
        "pidsLimit": 50, "network": false, "daytonaApiUrl": "https://x", "e2bApiKey": "hunter2"}}
        """,
    )

    configuration = load(admin_path=admin, user_path=user)

    assert configuration.provider == "docker"
    assert configuration.policy == Policy(
        timeout_seconds=4.35, memory_bytes=256 * MIB, cpus=2.0, pids_limit=50
    )
    assert "hunter2" not in repr(configuration)


def test_json_file_can_be_named_itself(admin: Path, user: Path) -> None:
    path = write(user.with_suffix(".json"), '{"sandbox": {"cpus": 2, "network": null}}')

    assert load(admin_path=admin, user_path=path).policy == Policy(cpus=2.0)


def test_two_forms_at_once_are_refused(admin: Path, user: Path) -> None:
    write(user, "")
    write(user.with_suffix(".json"), '{"sandbox": {}}')

    with pytest.raises(SandboxPolicyError, match="both exist"):
        load(admin_path=admin, user_path=user)


@as_root
def test_json_form_of_the_administrator_needs_the_same_owner(admin: Path, user: Path) -> None:
    path = write(admin.with_suffix(".json"), '{"sandbox": {}}')
    os.chown(path, 65534, -1)

    with pytest.raises(SandboxPolicyError, match="belongs to user id"):
        load(admin_path=admin, user_path=user)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('{"sandbox": {\n"cpus": 1,\n}}', "is not JSON", id="broken"),
        pytest.param("[]", "not of the form", id="list"),
        pytest.param('{"provider": "docker"}', "not of the form", id="no-sandbox"),
        pytest.param('{"sandbox": 5}', "not a table", id="sandbox-is-a-number"),
        pytest.param('{"sandbox": {\n"memoryMB": 1}}', "`memoryMB` in `/u.json` line 2", id="key"),
        pytest.param('{"sandbox": {\n"timeout": "9"}}', "`/u.json` line 2", id="text"),
        pytest.param('{"sandbox": {"timeout": true}}', "not a number", id="flag"),
        pytest.param(f'{{"sandbox": {{"timeout": 1{"0" * 400}}}}}', "not a number", id="endless"),
        pytest.param('{"sandbox": {"timeout": 1e999}}', "outside of", id="infinite"),
        pytest.param('{"sandbox": {"memoryMb": 1}}', "outside of", id="out-of-range"),
        pytest.param('{"sandbox": {"network": "none"}}', "`true` or `false`", id="word"),
    ],
)
def test_malformed_json_is_named(text: str, message: str) -> None:
    with pytest.raises(SandboxPolicyError) as caught:
        resolve([config_files.from_json(text, name="/u.json")])

    assert message in caught.value.message
    assert "`/u.json`" in caught.value.message


# --- the ceiling ------------------------------------------------------------------------------

# For each key: the bound, what is allowed under it, and what is not.
BOUNDS: dict[str, tuple[str, str, str]] = {
    "network": ("false", "false", "true"),
    "stdin": ("false", "false", "true"),
    "checkpoint": ("false", "false", "true"),
    "timeout_seconds": ("60", "60", "60.5"),
    "grace_seconds": ("5", "5", "6"),
    "memory_bytes": ('"1 GiB"', "1073741824", "1073741825"),
    "cpus": ("1.5", "1.5", "1.6"),
    "pids_limit": ("200", "200", "201"),
    "tmpfs_bytes": ('"128m"', '"128m"', '"129m"'),
    "output_bytes": ('"16m"', '"16m"', '"17m"'),
    "lifetime_seconds": ("90000", "90000", "90001"),
    "idle_seconds": ("20000", "20000", "20001"),
    "checkpoints": ("2", "2", "3"),
    "display": ('"static"', '"static"', '"interactive"'),
    "image": ('["sandbox-kernel/*", "lab:1"]', '"lab:1"', '"lab:2"'),
    "runtime": ('["", "runsc"]', '"runsc"', '"runc"'),
}


def test_every_bound_is_tested() -> None:
    assert set(NAMES) == BOUNDS.keys() | {"provider", "env", "image_digest"}
    assert set(FIELD_NAMES) - set(NAMES) == {"uid", "gid"}


@pytest.mark.parametrize("key", BOUNDS)
def test_value_at_the_ceiling_is_taken(key: str) -> None:
    limit, allowed, _ = BOUNDS[key]
    wish = layer(f"[policy]\n{key} = {allowed}")

    configuration = resolve([ceiling(f"{key} = {limit}"), wish])

    assert configuration.policy == resolve([wish]).policy
    assert configuration.sources[key] == "/u.toml"


@pytest.mark.parametrize("key", BOUNDS)
def test_value_above_the_ceiling_is_refused_by_name_value_and_file(key: str) -> None:
    limit, _, above = BOUNDS[key]

    with pytest.raises(SandboxPolicyError) as caught:
        resolve([ceiling(f"{key} = {limit}"), layer(f"[policy]\n{key} = {above}")])

    message = caught.value.message
    assert message.startswith(f"`{key}` = `")
    assert "`/u.toml` line 2" in message
    assert message.endswith("in `/a.toml`")
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    "wishes",
    [
        pytest.param([Layer(name="the kernel's arguments", values={"network": True})], id="spec"),
        pytest.param([Layer(name="the caller", values={"network": True})], id="caller"),
        pytest.param(
            [layer("[policy]\nnetwork = true"), layer("[policy]\nnetwork = false")],
            id="even-where-it-is-taken-back",
        ),
    ],
)
def test_ceiling_binds_each_layer(wishes: list[Layer]) -> None:
    with pytest.raises(SandboxPolicyError, match="`network` = `true`"):
        resolve([ceiling("network = false"), *wishes])


def test_ceiling_binds_its_own_file_too() -> None:
    with pytest.raises(SandboxPolicyError, match=r"`cpus` = `2`, in `/a\.toml` line 2"):
        resolve([ceiling("cpus = 1", policy="cpus = 2")])


@as_root
def test_ceiling_of_the_administrator_s_file_is_applied(admin: Path, user: Path) -> None:
    write(admin, "[ceiling]\nnetwork = false")
    write(user, "[policy]\nnetwork = true")

    with pytest.raises(SandboxPolicyError, match="above the ceiling of `false`"):
        load(admin_path=admin, user_path=user)


def test_defaults_are_lowered_to_the_ceiling() -> None:
    text = 'stdin = false\ncheckpoint = false\nmemory_bytes = "100m"\ntimeout_seconds = 5'

    configuration = resolve([ceiling(text)])

    assert configuration.policy == Policy(
        stdin=False, checkpoint=False, memory_bytes=100 * MIB, timeout_seconds=5.0
    )
    assert configuration.sources["stdin"] == "/a.toml [ceiling]"
    assert configuration.sources["cpus"] == "default"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param('image = ["lab:*"]', "image", id="image"),
        pytest.param("image_digest = true", "image", id="digest"),
        pytest.param('runtime = ["runsc"]', "runtime", id="runtime"),
    ],
)
def test_default_that_is_not_allowed_and_has_no_lower_is_refused(text: str, key: str) -> None:
    with pytest.raises(SandboxPolicyError, match=f"the default `{key}`") as caught:
        resolve([ceiling(text)])

    assert f"set an allowed `{key}`" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("image", "taken"),
    [
        pytest.param(DIGEST, True, id="digest"),
        pytest.param("sandbox-kernel/python:1", False, id="tag"),
        pytest.param(DIGEST[:-1], False, id="short-digest"),
        pytest.param("x@sha256:" + "0" * 64 + ":latest", False, id="tag-after-digest"),
        pytest.param("x@md5:" + "0" * 64, False, id="other-digest"),
    ],
)
def test_image_by_digest_only(image: str, taken: bool) -> None:
    layers = [ceiling("image_digest = true"), layer(f'[policy]\nimage = "{image}"')]

    if taken:
        assert resolve(layers).policy.image == image
    else:
        with pytest.raises(SandboxPolicyError, match="image_digest"):
            resolve(layers)


def test_only_named_variables_are_allowed() -> None:
    layers = [ceiling('env = ["LANG"]'), layer('[policy.env]\nLANG = "C"')]

    assert resolve(layers).policy.env == (("LANG", "C"),)

    with pytest.raises(SandboxPolicyError, match=r"`env\.X`.*not among the names `LANG`"):
        resolve([*layers, layer('[policy.env]\nX = "1"')])


def test_only_named_providers_are_allowed_and_none_always() -> None:
    bound = ceiling('provider = ["docker"]')

    assert resolve([bound]).provider == "none"
    assert resolve([bound, layer('provider = "docker"')]).provider == "docker"
    assert resolve([bound, layer('provider = "none"')]).provider == "none"
    with pytest.raises(SandboxPolicyError, match="not among the allowed `docker`"):
        resolve([bound, layer('provider = "e2b"')])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("netwrk = false", "`netwrk` in the `[ceiling]`", id="unknown-key"),
        pytest.param("uid = 5", "`uid` in the `[ceiling]`", id="no-order"),
        pytest.param("image = 'x'", "not a list of texts", id="text-for-list"),
        pytest.param("env = [1]", "not a list of texts", id="numbers-for-names"),
        pytest.param("image_digest = 1", "not `true` or `false`", id="number-for-flag"),
        pytest.param("network = 'no'", "not `true` or `false`", id="word-for-flag"),
        pytest.param("memory_bytes = 5", "outside of", id="below-the-range"),
        pytest.param("timeout_seconds = nan", "outside of", id="nan-would-allow-all"),
        pytest.param("display = 'none'", "not one of `strict`", id="unknown-mode"),
    ],
)
def test_malformed_ceiling_is_named(text: str, message: str) -> None:
    with pytest.raises(SandboxPolicyError) as caught:
        resolve([ceiling(text)])

    assert message in caught.value.message
    assert "`/a.toml` line 4" in caught.value.message


def value_of(key: str) -> st.SearchStrategy[Any]:
    kind = KINDS[key]
    if kind is Kind.FLAG:
        return st.booleans()
    if kind is Kind.DISPLAY:
        return st.sampled_from(Display)
    low, high = RANGES[key]
    if kind is Kind.NUMBER:
        return st.floats(low, high)
    return st.integers(int(low), int(high))


some_values = st.fixed_dictionaries({}, optional={key: value_of(key) for key in ORDERED})


def within(policy: Policy, limits: dict[str, Any]) -> bool:
    modes = list(Display)
    ranks = {
        key: (modes.index(getattr(policy, key)), modes.index(limit))
        if key == "display"
        else (getattr(policy, key), limit)
        for key, limit in limits.items()
    }
    return all(got <= limit for got, limit in ranks.values())


@given(limits=some_values, wishes=st.lists(some_values, max_size=3))
def test_no_configuration_is_above_its_ceiling(
    limits: dict[str, Any], wishes: list[dict[str, Any]]
) -> None:
    admin = Layer(name="/a.toml", values={}, ceiling=limits, binds=True)
    layers = [admin, *(Layer(name="x", values=wish) for wish in wishes)]
    asked = [replace(Policy(), **{key: value}) for wish in wishes for key, value in wish.items()]
    fits = all(
        within(policy, {key: limits[key] for key in wish if key in limits})
        for wish in wishes
        for policy in [replace(Policy(), **wish)]
    )

    try:
        configuration = resolve(layers)
    except SandboxPolicyError:
        assert asked
        assert not fits
    else:
        assert fits
        assert within(configuration.policy, limits)


some_keys = st.sampled_from([*KINDS, "env.A", "env"]) | st.text(max_size=20)
anything = st.text() | st.integers() | st.floats() | st.none() | st.booleans() | st.lists(st.none())


@given(st.dictionaries(some_keys, anything))
def test_whatever_a_caller_asks_is_a_policy_or_a_policy_error(values: dict[str, object]) -> None:
    with contextlib.suppress(SandboxPolicyError):
        configuration = resolve([Layer(name="the caller", values=values)])

        assert replace(configuration.policy) == configuration.policy


# --- a cell's own wishes ----------------------------------------------------------------------


def test_cell_may_lower() -> None:
    changes = {"timeout_seconds": 5, "network": False, "stdin": False, "display": "strict"}
    configuration = resolve([layer("[policy]\nnetwork = true\ndisplay = 'trusted'")])

    got = tighten(configuration, changes)

    assert got.policy == Policy(timeout_seconds=5.0, stdin=False)
    assert got.sources["timeout_seconds"] == "a cell"
    assert configuration.policy.timeout_seconds == 30.0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        pytest.param("timeout_seconds", 31, "more than the present `30`", id="longer"),
        pytest.param("network", True, "more than the present `false`", id="network"),
        pytest.param("display", "static", "more than the present `strict`", id="display"),
        pytest.param("memory_bytes", "1 GiB", "more than the present `512 MiB`", id="memory"),
        pytest.param("image", "other", "cannot change `image`", id="image"),
        pytest.param("runtime", "runc", "cannot change `runtime`", id="runtime"),
        pytest.param("uid", 1, "cannot change `uid`", id="uid"),
        pytest.param("env.A", "1", "cannot change `env.A`", id="variable"),
        pytest.param("provider", "none", "cannot change `provider`", id="provider"),
        pytest.param("docker.host", "x", "cannot change `docker.host`", id="engine"),
        pytest.param("timeout", 5, "`timeout` in a cell is not a setting", id="unknown"),
        pytest.param("timeout_seconds", "5", "not a number", id="wrong-kind"),
        pytest.param("timeout_seconds", 0, "outside of", id="out-of-range"),
    ],
)
def test_cell_may_do_nothing_else(key: str, value: object, message: str) -> None:
    with pytest.raises(SandboxPolicyError) as caught:
        tighten(Configuration(), {key: value})

    assert message in caught.value.message


@given(before=some_values, wish=some_values)
def test_no_cell_gets_more_than_it_has(before: dict[str, Any], wish: dict[str, Any]) -> None:
    configuration = Configuration(policy=replace(Policy(), **before), ceiling=Ceiling())
    present = {key: getattr(configuration.policy, key) for key in ORDERED}

    try:
        got = tighten(configuration, wish)
    except SandboxPolicyError:
        assert not within(replace(configuration.policy, **wish), present)
    else:
        assert within(got.policy, present)
