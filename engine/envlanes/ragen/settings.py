"""The settings of an environment manager, and their only reader: tags, groups and seeds of ``es_manager``."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from envlanes.episode.game import Game
from envlanes.episode.spec import EnvSpec
from envlanes.errors import ConfigError, did_you_mean, in_short
from envlanes.failures import OnFailure, ignore
from envlanes.kinds.ray_options import RayOptions
from envlanes.ragen.metrics import RULES, Rules
from envlanes.ragen.seeds import checked_seed
from envlanes.ragen.turn import TEXT
from envlanes.settings import Settings


@dataclass(frozen=True)
class EnvEntry:
    """One environment to manage.

    Attributes:
        spec: Its class and configuration.
        max_actions_per_traj: Maximum number of actions per episode.
    """

    spec: EnvSpec
    max_actions_per_traj: int


@dataclass(frozen=True)
class ManagerSettings:
    """The settings of an ``EnvStateManager``.

    Attributes:
        entries: The environments, by env_id.
        env_groups: Number of groups.
        group_size: Environments per group.
        group_numbers: Number of each group, which is added to the first seed: 0, 1, 2, .. unless some are left out.
        format_penalty: Added to ``penalty`` for a turn with invalid actions.
        base_seed: The mode's configured seed; None if there is none.
        engine: Placement, time-outs and handling of failures.
        env_state_hash: Whether each turn of a history has the hash of its initial state.
        rules: The generation of RAGEN whose histories and metrics are shown.
        journal: Folder of the journals from which a later process goes on; None for none.
    """

    entries: tuple[EnvEntry, ...]
    env_groups: int
    group_size: int
    group_numbers: tuple[int, ...]
    format_penalty: float
    base_seed: int | None
    engine: Settings
    env_state_hash: bool = False
    rules: Rules = RULES
    journal: str | None = None

    def about(self) -> dict[str, Any]:
        """The settings that decide the environments, by tag."""
        return {
            f"custom_envs.{entry.spec.tag}": {
                "env_type": entry.spec.env_type,
                "env_config": entry.spec.env_config,
                "max_actions_per_traj": entry.max_actions_per_traj,
            }
            for entry in self.entries
        }

    def keep_failure(self) -> OnFailure:
        """A function that is called with each failure of an environment; its text is added to the message."""
        return ignore


ENGINE_KEYS = {each.name for each in dataclasses.fields(Settings)} - {"use_lanes", "preloaded"}
S = TypeVar("S", bound=ManagerSettings)
Resolve = Callable[[str, str, Mapping[str, Any]], tuple[type, Callable[..., Any]]]
"""Returns the class and the configuration's class of an environment type; takes the type, the key of its tag, and the
configuration's fields."""


class TagGroups(NamedTuple):
    """The groups of a tag: their number, and the number of the first of them."""

    tag: str
    number: int
    first: int


def read_groups(part: Mapping[str, Any], where: str) -> list[TagGroups]:
    """The groups of each tag of a mode; a tag may be listed twice.

    Without ``n_groups`` the tags share ``env_groups`` equally; a single tag has all of them, whatever its number says.

    Args:
        part: ``es_manager.<mode>``.
        where: Its key, for messages.

    Raises:
        ConfigError: A key is missing, or the numbers do not fit the tags or ``env_groups``.
    """
    whole, names = _count(part, where, "env_groups"), part.get("env_configs")
    where = f"{where}.env_configs"
    if not isinstance(names, Mapping):
        raise ConfigError(f"{where} = {in_short(names)}: expected a mapping with the key tags.")
    tags = read_list(names, where, "tags", str) or []
    counts, firsts = (read_list(names, where, name, int) for name in ("n_groups", "first_groups"))
    if not tags:
        raise ConfigError(f"{where}.tags = {tags}: expected a list of keys of custom_envs.")
    if counts is None and whole % len(tags) == 0:
        counts = [whole // len(tags)] * len(tags)
    counts = [whole] if len(tags) == 1 == len(counts or [1]) else counts or []
    if len(counts) != len(tags) or sum(counts) != whole or min(counts) < 1:
        raise ConfigError(
            f"{where}.n_groups = {counts}: expected a number of groups for each of the tags {tags}, and "
            f"env_groups = {whole} in all."
        )
    firsts = [0, *accumulate(counts)][:-1] if firsts is None else firsts
    if len(firsts) != len(tags) or min(firsts) < 0:
        raise ConfigError(f"{where}.first_groups = {firsts}: expected a number for each of the tags {tags}, or null.")
    return list(map(TagGroups, tags, counts, firsts))


def read_settings(
    kind: type[S],
    config: Mapping[str, Any],
    entry: Callable[[str], Any],
    mode: str,
    resolve: Resolve,
    engine: Callable[[Mapping[str, type]], Settings],
    rules: Rules = RULES,
    game: Game = TEXT,
    **further: Any,
) -> S:
    """Read what a mode plays; nothing is built or started.

    Args:
        kind: The class of the settings.
        config: ``es_manager`` and ``seed``.
        entry: Returns the entry of a tag under ``custom_envs``.
        mode: ``"train"`` or ``"val"``.
        resolve: Finds the classes of a type.
        engine: Returns the engine's settings for the classes of all types.
        rules: The generation of RAGEN.
        game: Its turns.
        further: Further fields of the settings.

    Raises:
        ConfigError: A key is missing or has an invalid value; the message names it.
    """
    if mode not in ("train", "val"):
        raise ConfigError(f"mode = {in_short(mode)}: expected 'train' or 'val'.")
    where, general = f"es_manager.{mode}", config["es_manager"]
    part = general.get(mode)
    if not isinstance(part, Mapping):
        raise ConfigError(f"{where} = {in_short(part)}: expected a mapping with env_groups, group_size, env_configs.")
    groups, size, entries = read_groups(part, where), _count(part, where, "group_size"), list[EnvEntry]()
    for tag, count, _ in groups:
        custom = entry(tag)
        env_type, fields = custom.get("env_type"), custom.get("env_config")
        fields = {} if fields is None else fields
        if not isinstance(fields, Mapping):
            raise ConfigError(f"custom_envs.{tag}.env_config = {in_short(fields)}: expected a mapping of fields.")
        env_class, config_class = resolve(env_type, f"custom_envs.{tag}", fields)
        limit = _count(custom, f"custom_envs.{tag}", "max_actions_per_traj")
        for env_id in range(len(entries), len(entries) + count * size):
            try:
                own = config_class(**copy.deepcopy(dict(fields)))
            except ConfigError as error:
                raise type(error)(f"custom_envs.{tag}.env_config: {error}") from error
            except (TypeError, ValueError) as error:
                raise ConfigError(f"custom_envs.{tag}.env_config = {dict(fields)!r}: {error}") from error
            spec = EnvSpec(env_id, env_id // size, tag, env_type, game, env_class, own, fields)
            entries.append(EnvEntry(spec, limit))
    seed = (config.get("seed") or {}).get(mode)
    return kind(
        entries=tuple(entries),
        env_groups=sum(each.number for each in groups),
        group_size=size,
        group_numbers=tuple(number for _, count, first in groups for number in range(first, first + count)),
        format_penalty=general.get("format_penalty", -0.1),
        base_seed=None if seed is None else checked_seed(seed, f"seed.{mode}"),
        engine=engine({entry.spec.env_type: entry.spec.env_class for entry in entries}),
        env_state_hash=bool(general.get("env_state_hash")),
        journal=general.get("journal"),
        rules=rules,
        **further,
    )


def engine_settings(general: Mapping[str, Any], **further: Any) -> Settings:
    """The engine's settings among the keys of ``es_manager``.

    Raises:
        ConfigError: A value is invalid.
    """
    given = {key: value for key, value in general.items() if key in ENGINE_KEYS and value is not None}
    mode = general.get("use_multiprocessing")
    try:
        known = {"use_lanes": "auto" if mode is None else mode, "preloaded": ("ragen.",), **given, **further}
        return Settings(**{**known, "ray": RayOptions.of(known.get("ray"))})
    except ConfigError as error:
        raise ConfigError(f"es_manager.{str(error).replace('use_lanes', 'use_multiprocessing', 1)}") from error


def tag_entry(custom_envs: Mapping[str, Any], tag: str) -> Any:
    """The entry of a tag under ``custom_envs``.

    Raises:
        ConfigError: There is none.
    """
    if tag not in custom_envs:
        meant = did_you_mean(tag, map(str, custom_envs)) or f" There are {', '.join(sorted(map(str, custom_envs)))}."
        raise ConfigError(f"tag {tag!r} is not a key of custom_envs.{meant}")
    return custom_envs[tag]


def read_list(section: Mapping[str, Any], where: str, key: str, kind: type) -> list[Any] | None:
    """A list of texts or integers; None if there is none."""
    values = section.get(key)
    if values is not None and (isinstance(values, str) or not isinstance(values, Sequence)):
        raise ConfigError(f"{where}.{key} = {in_short(values)}: expected a list.")
    for value in values or ():
        if type(value) is not kind:
            named = {str: "texts", int: "integers"}[kind]
            raise ConfigError(f"{where}.{key} = {in_short(list(values or ()))}: expected a list of {named}.")
    return None if values is None else [*values]


def _count(section: Mapping[str, Any], where: str, key: str) -> int:
    value = section.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where}.{key} = {value!r}: expected an integer of at least 1.")
    return value
