"""The layers of trusted configuration become one policy and its provider's settings.

Later layers win, within the administrator's ceiling: built-in defaults <
`/etc/sandbox-kernel/config.toml` < the user's file < the kernelspec's arguments <
the caller.

Invariants: nothing else is ever read: no environment variable names a setting, and
neither a notebook, its folder nor the working directory is looked at.  A setting
is taken as it was written or refused; only a built-in default is lowered.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import platformdirs

from sandbox_kernel import ceiling as ceilings
from sandbox_kernel import config_files
from sandbox_kernel.adapters.docker import DockerSettings
from sandbox_kernel.ceiling import ORDERED, Ceiling
from sandbox_kernel.errors import SandboxPolicyError
from sandbox_kernel.policy import FIELD_NAMES, Policy
from sandbox_kernel.settings import (
    KINDS,
    Layer,
    Setting,
    convert,
    from_text,
    kind_of,
    show,
    unknown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ADMIN_PATH = Path("/etc/sandbox-kernel/config.toml")

#: What `Configuration.sources` says of a value that no layer set.
DEFAULT = "default"

_NONE_YET: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Everything that trusted configuration says.

    Attributes:
        provider: Name of the adapter; `none` until somebody chose one.
        policy: The limits of a sandbox, within `ceiling`.
        ceiling: The administrator's bounds.
        docker: Settings of the docker provider.
        sources: The layer that decided each setting, by its flat name.
    """

    provider: str = "none"
    policy: Policy = field(default_factory=Policy)
    ceiling: Ceiling = field(default_factory=Ceiling)
    docker: DockerSettings = field(default_factory=DockerSettings)
    sources: Mapping[str, str] = field(default_factory=dict)


def load(
    *,
    arguments: Mapping[str, object] = _NONE_YET,
    caller: Mapping[str, object] = _NONE_YET,
    admin_path: Path = ADMIN_PATH,
    user_path: Path | None = None,
) -> Configuration:
    """Read the files and resolve all layers.

    Args:
        arguments: Settings of the kernelspec, by flat name; see `parse_arguments`.
        caller: Settings of the program that asks, by flat name.
        admin_path: The administrator's file; must belong to root.
        user_path: The user's file; `default_user_path()` where it is `None`.

    Raises:
        SandboxPolicyError: A file that others could have written, a malformed or
            unknown setting, or one above the ceiling.
    """
    user = default_user_path() if user_path is None else user_path
    files = [config_files.read(admin_path, owners=frozenset({0}), others_bits=0o022, binds=True)]
    if user is not None:
        owners = frozenset({0, os.geteuid()})
        # Group-writable is usual where each user has a group of their own.
        files.append(config_files.read(user, owners=owners, others_bits=0o002, binds=False))
    return resolve(
        [
            *(layer for layer in files if layer is not None),
            Layer(name="the kernel's arguments", values=arguments),
            Layer(name="the caller", values=caller),
        ]
    )


def default_user_path() -> Path | None:
    """Return where the user's file stands, or `None` for a user without a home."""
    try:
        path = platformdirs.user_config_path("sandbox-kernel", appauthor=False) / "config.toml"
    except RuntimeError:
        return None
    # Where there is no home, older versions answer with a path in the working directory.
    return path if path.is_absolute() else None


def parse_arguments(provider: str | None, texts: Iterable[str]) -> dict[str, object]:
    """Turn `--provider` and the `key=value` texts of `--set` into settings by flat name.

    Unknown keys and wrong values are left to `resolve`.

    Raises:
        SandboxPolicyError: No `=` in one of the texts, or the same key in two.
    """
    settings: dict[str, object] = {} if provider is None else {"provider": provider}
    for text in texts:
        name, equals, value = text.partition("=")
        key = name.strip()
        if not equals:
            raise SandboxPolicyError(
                f"`{key}` is not of the form `key=value`",
                hint="write for example `timeout_seconds=60` or `env.LANG=C.UTF-8`",
            )
        if key in settings:
            raise SandboxPolicyError(f"`{key}` is set twice on the command line")
        settings[key] = from_text(key, value)
    return settings


def resolve(layers: Sequence[Layer]) -> Configuration:
    """Combine the layers, lowest first.  Pure.

    Raises:
        SandboxPolicyError: Says which setting, where it stands, and what is wrong.
    """
    ceiling = _ceiling(layers)
    chosen: dict[str, Setting] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        for key in layer.values:
            chosen[key] = _setting(layer, key, ceiling)
            sources[key] = layer.name
    for key in FIELD_NAMES:
        if key != "env" and key not in chosen:
            default = getattr(Policy(), key)
            chosen[key] = ceiling.lower(key, default)
            lowered = chosen[key] != default
            sources[key] = f"{ceiling.origin} [ceiling]" if lowered else DEFAULT
    return _configuration(chosen, sources, ceiling)


def _ceiling(layers: Sequence[Layer]) -> Ceiling:
    ceiling = Ceiling()
    for layer in layers:
        if layer.ceiling and not layer.binds:
            raise SandboxPolicyError(
                f"{layer.place('')} has a `[ceiling]` table, which only an administrator can set",
                hint=f"it belongs into `{ADMIN_PATH}`",
            )
        if layer.binds:
            ceiling = ceilings.from_layer(layer)
    return ceiling


def _setting(layer: Layer, key: str, ceiling: Ceiling) -> Setting:
    """Return one checked value of a layer."""
    where = layer.place(key)
    if kind_of(key) is None:
        raise unknown(key, [*KINDS, "env.<NAME>"], where)
    try:
        value = convert(key, layer.values[key])
    except SandboxPolicyError as error:
        raise SandboxPolicyError(f"{error.message}, in {where}", hint=error.hint) from None
    refusal = ceiling.refusal(key, value)
    if refusal is not None:
        # A variable's value is nobody's business in an error message.
        asked = f"`{key}`" if key.startswith("env.") else f"`{key}` = `{show(key, value)}`"
        raise SandboxPolicyError(
            f"{asked}, in {where}, is {refusal} in `{ceiling.origin}`",
            hint="stay within it, or ask the administrator to raise it",
        )
    return value


def _configuration(
    chosen: Mapping[str, Setting], sources: Mapping[str, str], ceiling: Ceiling
) -> Configuration:
    env = {
        key.removeprefix("env."): str(value)
        for key, value in chosen.items()
        if key.startswith("env.")
    }
    fields: dict[str, Any] = {key: chosen[key] for key in FIELD_NAMES if key != "env"}
    fields["env"] = tuple(sorted(env.items()))
    return Configuration(
        provider=str(chosen.get("provider", "none")),
        policy=Policy(**fields),
        ceiling=ceiling,
        docker=DockerSettings(host=str(chosen.get("docker.host", ""))),
        sources=MappingProxyType({"provider": DEFAULT, **sources}),
    )


def tighten(configuration: Configuration, changes: Mapping[str, object]) -> Configuration:
    """Return the configuration with a cell's own wishes, which may only lower it.

    Which of the lowered settings a running sandbox can still apply is the caller's matter.

    Raises:
        SandboxPolicyError: A wish for more, for what has no order (`image`, `env`), or malformed.
    """
    policy = configuration.policy
    present = Ceiling(limits={key: getattr(policy, key) for key in ORDERED})
    wishes: dict[str, Any] = {}
    for key, wish in changes.items():
        if kind_of(key) is None:
            raise unknown(key, ORDERED, "a cell")
        if key not in ORDERED:
            raise SandboxPolicyError(
                f"a cell cannot change `{key}`", hint="set it in a configuration file"
            )
        wishes[key] = convert(key, wish)
        if present.refusal(key, wishes[key]):
            asked, now = show(key, wishes[key]), show(key, getattr(policy, key))
            raise SandboxPolicyError(
                f"a cell asks for `{key}` = `{asked}`, which is more than the present `{now}`",
                hint=f"a cell may only tighten; set `{key}` in a configuration file",
            )
    return replace(
        configuration,
        policy=replace(policy, **wishes),
        sources=MappingProxyType({**configuration.sources, **dict.fromkeys(wishes, "a cell")}),
    )
