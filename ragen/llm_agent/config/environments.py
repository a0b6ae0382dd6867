"""Reads and checks ``es_manager``, ``custom_envs`` and ``seed``, before anything is built."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from envlanes.episode.spec import EnvSpec
from envlanes.episode.turn import TEXT
from envlanes.failures import OnFailure
from envlanes.ragen.settings import EnvEntry, ManagerSettings
from envlanes.settings import (
    BACKENDS,
    MODES,
    ON_ENV_FAILURE,
    START_METHODS,
    RayOptions,
    Settings,
)
from ragen.env.fields import check_kinds
from ragen.env.registry import known_names, resolve_env
from ragen.errors import ConfigError, UnknownEnvError, did_you_mean, in_short, suggestion
from ragen.extras import check_installed, extra_of
from ragen.llm_agent.config.groups import check_tag, first_groups, tag_groups
from ragen.settings import choice, count, number, plain, refused, seconds, setting, texts
from ragen.validity import read_policy

log = logging.getLogger(__name__)

DEFAULT_CRASH_REPORT_DIR = "outputs/crash_reports"  # created by the first failure
ENV_KEYS = ("env_type", "max_actions_per_traj", "env_config", "env_instruction", "max_tokens")
IGNORED_KEYS = ("parallel_friendly", "max_workers")  # RAGEN's settings of threads
_MODE_KEYS = ("env_groups", "group_size", "env_configs")
_logged: set[str] = set()


@dataclass(frozen=True)
class ManagerConfig(ManagerSettings):
    """The settings of an ``EnvStateManager``.

    Attributes:
        crash_report_dir: Folder for crash reports; None for none.
    """

    crash_report_dir: str | None = None

    def keep_failure(self) -> OnFailure:
        """The function that writes crash reports."""
        if self.crash_report_dir is None:
            return super().keep_failure()
        from ragen.tools.crash_report import CrashReportWriter

        return CrashReportWriter(self.crash_report_dir).note


def check_extras(managed: ManagerConfig) -> None:
    """Check that the packages of all environments are installed, before any is built.

    Raises:
        MissingExtraError: One is not; the message names its extra.
    """
    for env_type, env_class in {entry.spec.env_type: entry.spec.env_class for entry in managed.entries}.items():
        if extra := extra_of(env_class):
            check_installed(extra, f"the environment {env_type!r}")


def read_config(config: Any, mode: str) -> ManagerConfig:
    """Read and check everything; nothing is built or started.

    Args:
        config: Hydra's configuration, or nested dicts.
        mode: ``"train"`` or ``"val"``.

    Raises:
        ConfigError: A key is missing or has an invalid value; the message names it.
        UnknownEnvError: An environment type is unknown.
    """
    if isinstance(config, str | bytes | PathLike):
        is_name = "\n" not in str(config)
        cure = "load the file with ragen.llm_agent.config.loading.load_config" if is_name else "parse the text first"
        if not isinstance(mode, str) and mode is not None:
            cure = "the arguments are swapped: the configuration comes first, then the mode"
        raise ConfigError(f"the configuration is {in_short(config)}; expected Hydra's, or nested mappings: {cure}.")
    if not isinstance(mode, str) or mode not in ("train", "val"):
        raise ConfigError(f"mode = {in_short(mode)}: expected 'train' or 'val'.")
    config = {name: _section(name, config) for name in ("es_manager", "custom_envs", "seed")}
    _check_manager_keys(config)
    where = f"es_manager.{mode}"
    env_groups, group_size = (count(config, f"{where}.{name}", low=1) for name in ("env_groups", "group_size"))
    tags = tag_groups(config, mode)
    firsts = first_groups(config, mode, tags)
    entries = _entries(config, tags, group_size)
    used = {entry.spec.env_type for entry in entries}
    engine = _engine_settings(config, used)
    return ManagerConfig(
        entries=tuple(entries),
        env_groups=env_groups,
        group_size=group_size,
        group_numbers=tuple(
            number for first, (_, n) in zip(firsts, tags, strict=True) for number in range(first, first + n)
        ),
        format_penalty=number(config, "es_manager.format_penalty", -0.1),
        base_seed=count(config, f"seed.{mode}", None),
        engine=engine,
        crash_report_dir=_folder(config, "es_manager.crash_report_dir", DEFAULT_CRASH_REPORT_DIR),
        env_state_hash=setting(config, "es_manager.env_state_hash", bool, False),
        journal=setting(config, "es_manager.journal", str, None),
    )


def check_engine_settings(config: Mapping[str, Any]) -> None:
    """Check what ``es_manager`` says about all modes, such as placement and time-outs.

    Args:
        config: Plain mappings: ``es_manager``, ``custom_envs`` and ``seed``.

    Raises:
        ConfigError: A key is misspelled or has an invalid value.
        UnknownEnvError: ``sequential_env_types`` has a type that is in no entry of ``custom_envs``, nor registered.
    """
    _check_manager_keys(config)
    entries = filter(None, config["custom_envs"].values())
    _engine_settings(config, {entry.get("env_type") for entry in entries})


def _section(name: str, config: Any) -> Any:
    """A section as dicts and lists, with interpolations resolved.

    Raises:
        ConfigError: It is not a mapping.
    """
    value = config.get(name) if hasattr(config, "get") else getattr(config, name, None)
    if value is None or isinstance(value, dict):
        return value
    value = plain(value)
    if hasattr(value, "__dict__") and not isinstance(value, Mapping | type):
        value = dict(vars(value))
    if not isinstance(value, Mapping):
        raise refused(name, value, "a mapping" + " such as {train: 10000, val: 123}" * (name == "seed"))
    return value


def _folder(config: Any, key: str, default: str) -> str | None:
    """The path of a folder; None if the key is null."""
    section, _, name = key.rpartition(".")
    if name in (config[section] or {}) and config[section][name] is None:
        return None
    path = setting(config, key, object, default)
    if not isinstance(path, str) or not path.strip():
        raise refused(key, path, "the path of a folder, or null for none")
    return path


def _check_manager_keys(config: Any) -> None:
    settings = {field.name for field in dataclasses.fields(Settings)} - {"use_lanes", "why_sequential", "preloaded"}
    top = (
        *sorted(settings),
        "use_multiprocessing",
        "format_penalty",
        "failed_trajectories",
        "crash_report_dir",
        "env_state_hash",
        "journal",
        "train",
        "val",
    )
    known = {"es_manager": top, "seed": ("train", "val")}
    for mode in ("train", "val"):
        known |= {
            f"es_manager.{mode}": _MODE_KEYS,
            f"es_manager.{mode}.env_configs": ("tags", "n_groups", "first_groups"),
        }
    for section, keys in known.items():
        _check_keys(config, section, keys, dict.fromkeys(top, "es_manager"))
    read_policy(config)


def _check_keys(config: Any, section: str, known: Sequence[str], elsewhere: Mapping[str, str]) -> None:
    """Refuse keys that are misspelled or in the wrong place; log other unknown keys once as warnings.

    Args:
        config: The configuration.
        section: The dotted key of the mapping to check; it may be missing.
        known: The keys of that mapping.
        elsewhere: The sections of keys that belong elsewhere, by key.

    Raises:
        ConfigError: A key is probably a misspelling of another one, or belongs elsewhere.
    """
    values = _raw(config, section) or {}
    for key in map(str, values if isinstance(values, Mapping) else ()):
        if key in known:
            continue
        if key in elsewhere:
            meant = suggestion([f"{elsewhere[key]}.{key}"])
        else:
            meant = did_you_mean(key, known, lambda near: f"{section}.{near}", 0.8)
        if meant:
            raise ConfigError(f"{section}.{key} = {values.get(key)!r}: there is no such key.{meant}")
        if (name := f"{section}.{key}") not in _logged:
            _logged.add(name)
            log.warning("%s has no effect on the environment manager, which reads %s.", name, ", ".join(sorted(known)))


def _raw(config: Any, key: str) -> Any:
    """The unconverted value of a key; an environment's fields may be any objects."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


def _entries(config: Any, tags: list[tuple[str, int]], group_size: int) -> list[EnvEntry]:
    entries: list[EnvEntry] = []
    for tag, groups in tags:
        build = _EntryBuilder(config, tag)
        for member in range(groups * group_size):
            entries.append(build(env_id=len(entries), group_id=len(entries) // group_size))
            if not member:  # the others are the same
                build.check_kinds(entries[-1].spec.config)
    return entries


class _EntryBuilder:
    """Builds the entries of one tag, each with its own configuration object."""

    def __init__(self, config: Any, tag: str) -> None:
        known = config["custom_envs"]
        if known is None:
            raise ConfigError("the configuration lacks 'custom_envs'.")
        check_tag(tag, known)
        self._tag, self._key = tag, f"custom_envs.{tag}"
        own = {"custom_envs": {tag: {name: _raw(known[tag], name) for name in ENV_KEYS}}}
        if not isinstance(known[tag], Mapping | None):
            raise refused(self._key, known[tag], "a mapping, such as {env_type: bandit, max_actions_per_traj: 1}")
        self._env_type = setting(own, f"{self._key}.env_type", object)
        if not isinstance(self._env_type, str):
            raise refused(f"{self._key}.env_type", self._env_type, "a name or 'package.module:Class'")
        try:
            self._env_class, self._config_class = resolve_env(self._env_type)
        except UnknownEnvError as error:
            raise UnknownEnvError(f"{self._key}.env_type: {error}") from error.__cause__
        _check_keys(config, self._key, (*ENV_KEYS, *IGNORED_KEYS), {})
        fields = _raw(config, f"{self._key}.env_config")
        self._fields = {} if fields is None else fields
        self._max_actions = count(own, f"{self._key}.max_actions_per_traj", low=1)
        if not isinstance(self._fields, Mapping):
            raise refused(f"{self._key}.env_config", self._fields, "a mapping of fields")

    def __call__(self, env_id: int, group_id: int) -> EnvEntry:
        described = env_id, group_id, self._tag, self._env_type, self._env_class
        return EnvEntry(EnvSpec(*described, self._config(), TEXT, self._fields), self._max_actions)

    def check_kinds(self, config: Any) -> None:
        """Check the types of the fields of one of its configurations; raises ConfigError."""
        check_kinds(f"{self._key}.env_config.", self._env_type, config, self._fields)

    def _config(self) -> Any:
        fields = copy.deepcopy(dict(self._fields))
        if self._config_class is None:
            return fields or None
        if dataclasses.is_dataclass(self._config_class):
            self._check_fields({field.name for field in dataclasses.fields(self._config_class) if field.init})
        try:
            return self._config_class(**fields)
        except ConfigError as error:
            raise type(error)(f"{self._key}.env_config: {error}") from error
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self._key}.env_config = {dict(self._fields)!r}: {error}") from error

    def _check_fields(self, known: set[str]) -> None:
        for name in self._fields:
            if name not in known:
                meant = did_you_mean(name, known) or f" It has {', '.join(sorted(known))}."
                raise ConfigError(
                    f"{self._key}.env_config.{name} = {self._fields[name]!r}: {self._env_type!r} has no such field."
                    f"{meant}"
                )


def _sequential_env_types(config: Any, used: set[str]) -> tuple[str, ...]:
    """The listed types.

    The class of a registered type that no tag uses is not imported: its packages need not be installed.

    Raises:
        UnknownEnvError: A listed type is neither used nor registered.
    """
    types = texts(config, "es_manager.sequential_env_types", ())
    for env_type in sorted({*types} - used - {*known_names()}):
        try:
            resolve_env(env_type)
        except UnknownEnvError as error:
            own = setting(config, f"custom_envs.{env_type}.env_type", str, "") if env_type.isidentifier() else ""
            meant = f"{env_type!r} is a tag; its type is {own!r}." if own else error
            raise UnknownEnvError(f"es_manager.sequential_env_types: {meant}") from None
    return types


def _engine_settings(config: Any, used: set[str]) -> Settings:
    return Settings(
        use_lanes=choice(config, "es_manager.use_multiprocessing", "auto", MODES),
        max_workers=count(config, "es_manager.max_workers", None, low=1),
        backend=choice(config, "es_manager.backend", "process", BACKENDS),
        sequential_env_types=_sequential_env_types(config, used),
        step_timeout=seconds(config, "es_manager.step_timeout", 60.0),
        reset_timeout=seconds(config, "es_manager.reset_timeout", 120.0),
        startup_timeout=seconds(config, "es_manager.startup_timeout", 60.0),
        on_env_failure=choice(config, "es_manager.on_env_failure", "fallback", ON_ENV_FAILURE),
        max_restarts=count(config, "es_manager.max_restarts", 3),
        start_method=choice(config, "es_manager.start_method", "forkserver", START_METHODS),
        ray=RayOptions.of(_raw(config, "es_manager.ray"), "es_manager.ray"),
        preloaded=("ragen.",),
    )
