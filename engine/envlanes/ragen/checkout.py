"""The manager of a checkout of RAGEN, whose rollouts are those of the one that stood there, bit for bit.

It needs the checkout's ``REGISTERED_ENVS`` and ``REGISTERED_ENV_CONFIGS``; the checkout's packages tell its generation.
Keys of ``es_manager`` beside RAGEN's: ``use_multiprocessing`` (true, false, or auto, the default), ``env_state_hash``,
``journal`` (a folder, see :mod:`envlanes.ragen.recorded`), and the fields of :class:`envlanes.settings.Settings`, such
as ``max_workers`` and ``sequential_env_types``.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from envlanes import bare
from envlanes.episode.spec import EnvSpec
from envlanes.episode.turn import TEXT
from envlanes.errors import ConfigError, did_you_mean, in_short
from envlanes.own_process import why_own_process
from envlanes.ragen.games import GAME_2025
from envlanes.ragen.manager import RolloutManager
from envlanes.ragen.metrics import Rules
from envlanes.ragen.seeds import checked_seed
from envlanes.ragen.settings import EnvEntry, ManagerSettings
from envlanes.settings import Settings
from envlanes.workers.server import _worker_init, _worker_step_single_env

__all__ = ["EnvStateManager", "_worker_init", "_worker_step_single_env"]

bare.leave_out("ragen", "ragen.env")  # a worker needs one environment, and neither verl nor all the others
ENVS = importlib.import_module("ragen.env")  # the checkout's: whichever stands beside
RULES = Rules(2026 if importlib.util.find_spec("ragen.patches") else 2025, as_in_ragen=True)
OWN_KEYS = ("use_multiprocessing", "format_penalty", "env_state_hash", "journal", "train", "val")
log = logging.getLogger(__name__)
_said: set[str] = set()

with contextlib.suppress(ImportError, AttributeError):  # as RAGEN's module does for those who compose configurations
    importlib.import_module("ragen.utils").register_resolvers()


class EnvStateManager(RolloutManager):
    """The manager of a checkout; see :class:`~envlanes.ragen.manager.RolloutManager`."""

    def _read_settings(self, config: Any, mode: str) -> ManagerSettings:
        return read_settings(config, mode)

    def render(self) -> list[Any]:
        """What each environment renders: text, an array of shape ``(H, W, 3)``, or a list of these."""
        self._caches()
        found = self._read(self._entries, "render")
        return [found[i] if i in found else self._engine.observation(i) for i in self._entries]


def read_settings(config: Any, mode: str) -> ManagerSettings:
    """Read and check ``es_manager``, ``custom_envs`` and ``seed``; nothing is built or started.

    Args:
        config: Hydra's configuration, or nested mappings or objects.
        mode: ``"train"`` or ``"val"``.

    Raises:
        ConfigError: A key is missing or has an invalid value; the message names it.
    """
    if mode not in ("train", "val"):
        raise ConfigError(f"mode = {in_short(mode)}: expected 'train' or 'val'.")
    general, part = _section(config, "es_manager"), _section(config, f"es_manager.{mode}")
    env_groups, group_size = (_count(part, f"es_manager.{mode}", key) for key in ("env_groups", "group_size"))
    seed = _value(_value(config, "seed"), mode)
    tags = _tags(part.get("env_configs"), f"es_manager.{mode}.env_configs", env_groups)
    entries: list[EnvEntry] = []
    for tag, groups in tags:
        build = _EntryBuilder(_section(config, "custom_envs"), tag)
        for env_id in range(len(entries), len(entries) + groups * group_size):
            entries.append(build(env_id, env_id // group_size))
    return ManagerSettings(
        entries=tuple(entries),
        env_groups=env_groups,
        group_size=group_size,
        group_numbers=tuple(range(env_groups)),
        format_penalty=general.get("format_penalty", -0.1),
        base_seed=None if seed is None else checked_seed(seed, f"seed.{mode}"),
        engine=_engine_settings(general, {entry.spec.env_type: entry.spec.env_class for entry in entries}),
        env_state_hash=bool(general.get("env_state_hash")),
        rules=RULES,
        journal=general.get("journal"),
    )


def _tags(env_configs: Any, where: str, env_groups: int) -> list[tuple[str, int]]:
    names = env_configs or {}
    tags, counts = list(names.get("tags") or ()), list(names.get("n_groups") or ())
    if not tags or len(counts) != len(tags) or sum(counts) != env_groups:
        raise ConfigError(
            f"{where}: {tags} have {counts} groups; expected as many n_groups as tags, {env_groups} in all."
        )
    return list(zip(tags, counts, strict=True))


class _EntryBuilder:
    """Builds the entries of one tag, each with its own configuration object."""

    def __init__(self, custom_envs: Mapping[str, Any], tag: str) -> None:
        if tag not in custom_envs:
            meant = did_you_mean(str(tag), map(str, custom_envs)) or f" There are {', '.join(custom_envs)}."
            raise ConfigError(f"tag {tag!r} is not a key of custom_envs.{meant}")
        given, where = _plain(custom_envs[tag]), f"custom_envs.{tag}"
        self._tag, self._where, self._env_type = tag, f"{where}.env_config", given.get("env_type")
        self._max_actions = _count(given, where, "max_actions_per_traj")
        self._fields = dict(given.get("env_config") or {})
        if self._env_type not in ENVS.REGISTERED_ENVS:
            known = ENVS.REGISTERED_ENVS
            meant = did_you_mean(str(self._env_type), known) or f" There are {', '.join(known)}."
            raise ConfigError(f"{where}.env_type = {self._env_type!r}: unknown environment type.{meant}")

    def __call__(self, env_id: int, group_id: int) -> EnvEntry:
        env_class, game = ENVS.REGISTERED_ENVS[self._env_type], TEXT if RULES.generation == 2026 else GAME_2025
        try:
            config = ENVS.REGISTERED_ENV_CONFIGS[self._env_type](**copy.deepcopy(self._fields))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self._where} = {self._fields!r}: {error}") from error
        named = env_id, group_id, self._tag, self._env_type, env_class
        return EnvEntry(EnvSpec(*named, config, game, self._fields), self._max_actions)


def _engine_settings(general: Mapping[str, Any], classes: Mapping[str, Any]) -> Settings:
    """The engine's settings; types whose episodes depend on their process stay in the main process, and are logged."""
    known = {each.name for each in dataclasses.fields(Settings)} - {"use_lanes", "why_sequential", "preloaded"}
    for key in general:
        if key not in (*known, *OWN_KEYS) and (
            meant := did_you_mean(str(key), [*known, *OWN_KEYS], lambda near: f"es_manager.{near}", 0.8)
        ):
            raise ConfigError(f"es_manager.{key} = {general[key]!r}: there is no such key.{meant}")
    why = {env_type: reason for env_type, each in classes.items() if (reason := why_own_process(each))}
    for env_type in why.keys() - _said:
        _said.add(env_type)
        log.warning("environments of type %r stay in the main process: %s.", env_type, why[env_type])
    given = {key: value for key, value in general.items() if key in known and value is not None}
    sequential = given.pop("sequential_env_types", ())
    if isinstance(sequential, str) or not isinstance(sequential, Sequence):
        raise ConfigError(f"es_manager.sequential_env_types = {sequential!r}: expected a list of names.")
    if unknown := [each for each in sequential if each not in ENVS.REGISTERED_ENVS]:
        meant = did_you_mean(str(unknown[0]), ENVS.REGISTERED_ENVS)
        raise ConfigError(f"es_manager.sequential_env_types: there is no type {unknown[0]!r}.{meant}")
    given["sequential_env_types"] = tuple(dict.fromkeys([*sequential, *why]))
    mode = general.get("use_multiprocessing")
    try:
        return Settings("auto" if mode is None else mode, why_sequential=why, preloaded=("ragen.",), **given)
    except ConfigError as error:
        raise ConfigError(f"es_manager.{str(error).replace('use_lanes', 'use_multiprocessing', 1)}") from error


def _value(section: Any, key: str) -> Any:
    """The value of a key of a mapping or object; None where it has none."""
    return section.get(key) if hasattr(section, "get") else getattr(section, key, None)


def _section(config: Any, path: str) -> Mapping[str, Any]:
    """A section as a mapping; interpolations of ``custom_envs`` are left, since tags that are not used may have some.

    Raises:
        ConfigError: There is none.
    """
    for name in path.split("."):
        config = _value(config, name)
    if path == "custom_envs" and hasattr(config, "keys"):
        return config
    found = _plain(config)
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path} = {in_short(config)}: expected a mapping.")
    return found


def _plain(value: Any) -> Any:
    """Hydra's containers as dicts and lists, with interpolations resolved."""
    if type(value).__module__.startswith("omegaconf."):
        return importlib.import_module("omegaconf").OmegaConf.to_container(value, resolve=True)
    return dict(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, Mapping) else value


def _count(section: Mapping[str, Any], where: str, key: str) -> int:
    value = section.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where}.{key} = {value!r}: expected an integer of at least 1.")
    return value
