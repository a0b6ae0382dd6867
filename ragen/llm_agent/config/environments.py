"""What ``es_manager``, ``custom_envs`` and ``seed`` of a configuration say, checked before anything is built."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragen.env.fields import check_kinds
from ragen.env.registry import resolve_env, staying_in_main
from ragen.errors import ConfigError, UnknownEnvError
from ragen.llm_agent.config.generation import Generation
from ragen.llm_agent.config.reader import Reader, is_integer
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import RAGEN, RAGEN_2026
from ragen.parallel.failures import OnFailure, say_nothing
from ragen.parallel.settings import (
    BACKENDS,
    MODES,
    ON_ENV_FAILURE,
    START_METHODS,
    RayOptions,
    Settings,
    names_own_kind,
)

log = logging.getLogger(__name__)

DEFAULT_CRASH_REPORT_DIR = "outputs/crash_reports"  # created by the first failure
ENV_KEYS = ("env_type", "max_actions_per_traj", "env_config", "env_instruction", "max_tokens", "overlap_waits")
READ_OVER = ("parallel_friendly", "max_workers")  # RAGEN's, of its threads
_MODE_KEYS = ("env_groups", "group_size", "env_configs")
_told: set[str] = set()


@dataclass(frozen=True)
class EnvEntry:
    """One environment to manage.

    Attributes:
        spec: What builds it.
        max_actions_per_traj: Actions an episode allows.
    """

    spec: EnvSpec
    max_actions_per_traj: int


@dataclass(frozen=True)
class ManagerConfig:
    """All that an ``EnvStateManager`` needs to know.

    Attributes:
        entries: The environments, by env_id.
        env_groups: Number of groups.
        group_size: Environments per group.
        format_penalty: Added to ``penalty`` for a turn with invalid actions.
        generation: Which RAGEN is meant where it has changed.
        base_seed: First seed, None where the configuration has none for this mode.
        engine: Where environments live, time-outs, and what follows a failure.
        crash_report_dir: Folder for crash reports; None for none.
        env_state_hash: Whether each turn of a history has the hash of what it began with.
    """

    entries: tuple[EnvEntry, ...]
    env_groups: int
    group_size: int
    format_penalty: float
    generation: Generation
    base_seed: int | None
    engine: Settings
    crash_report_dir: str | None
    env_state_hash: bool = False

    def keep_failure(self) -> OnFailure:
        """What writes failures down, so that they can be played again."""
        if self.crash_report_dir is None:
            return say_nothing
        from ragen.tools.crash_report import CrashReportWriter

        return CrashReportWriter(self.crash_report_dir).note


def read_config(config: Any, mode: str) -> ManagerConfig:
    """Read and check everything; nothing is built and no process started.

    Args:
        config: Hydra's configuration, or nested dicts.
        mode: ``"train"`` or ``"val"``.

    Raises:
        ConfigError: A key is missing or has a value that cannot work; the message names it.
        UnknownEnvError: An environment type is not known.
    """
    if mode not in ("train", "val"):
        raise ConfigError(f"mode = {mode!r}: expected 'train' or 'val'.")
    reader = Reader(config)
    _check_manager_keys(reader)
    section = f"es_manager.{mode}"
    env_groups = reader.integer(f"{section}.env_groups", minimum=1)
    group_size = reader.integer(f"{section}.group_size", minimum=1)
    entries = _entries(reader, _tags(reader, section, env_groups), group_size)
    return ManagerConfig(
        entries=tuple(entries),
        env_groups=env_groups,
        group_size=group_size,
        format_penalty=reader.number("es_manager.format_penalty", -0.1),
        generation=reader.generation,
        base_seed=reader.integer(f"seed.{mode}", None, minimum=0),
        engine=_engine_settings(reader, {entry.spec.env_type for entry in entries}),
        crash_report_dir=reader.folder("es_manager.crash_report_dir", DEFAULT_CRASH_REPORT_DIR),
        env_state_hash=reader.choice("es_manager.env_state_hash", (True, False), False),
    )


def _check_manager_keys(reader: Reader) -> None:
    settings = {field.name for field in dataclasses.fields(Settings)} - {"use_lanes", "max_turns"}
    top = (
        *sorted(settings),
        "use_multiprocessing",
        "format_penalty",
        "crash_report_dir",
        "env_state_hash",
        "train",
        "val",
    )
    known = {"es_manager": top, "seed": ("train", "val")}
    for mode in ("train", "val"):
        known |= {f"es_manager.{mode}": _MODE_KEYS, f"es_manager.{mode}.env_configs": ("tags", "n_groups")}
    for section, keys in known.items():
        _check_keys(reader, section, keys, dict.fromkeys(top, "es_manager"))


def _check_keys(reader: Reader, section: str, known: Sequence[str], elsewhere: Mapping[str, str]) -> None:
    """See to it that nobody takes a key for set that is not read: as it is misspelt, or stands at the wrong place.

    Args:
        reader: The configuration.
        section: The dotted key of the mapping whose keys are looked at; it may be missing.
        known: Keys that are read there.
        elsewhere: Keys that are read in other places, and where.

    Raises:
        ConfigError: A key was probably meant to be another one. Any other unknown key is warned of, once.
    """
    values = reader.get(section, {})
    for key in map(str, values if isinstance(values, Mapping) else ()):
        if key in known:
            continue
        meant = f"{section}.{near[0]}" if (near := difflib.get_close_matches(key, known, 1, 0.8)) else ""
        if key in elsewhere:
            meant = f"{elsewhere[key]}.{key}"
        if meant:
            raise ConfigError(f"{section}.{key} = {values.get(key)!r}: there is no such key; {meant!r} was meant?")
        if (name := f"{section}.{key}") not in _told:
            _told.add(name)
            log.warning("%s is not read by the environment manager, which knows %s.", name, ", ".join(sorted(known)))


def _tags(reader: Reader, section: str, env_groups: int) -> list[tuple[str, int]]:
    """Each tag with its number of groups; a tag may stand in the list twice."""
    tags = reader.texts(f"{section}.env_configs.tags")
    where = f"{section}.env_configs"
    counts = reader.get(f"{where}.n_groups", None)
    if counts is None:
        counts = _equal_shares(where, tags, env_groups)
    if not isinstance(counts, list | tuple) or not all(is_integer(count) and count >= 1 for count in counts):
        raise ConfigError(f"{where}.n_groups = {counts!r}: expected a list of integers of at least 1.")
    if not tags or len(tags) != len(counts):
        raise ConfigError(f"{where}: {len(tags)} tags {tags} but {len(counts)} n_groups {list(counts)}; one for each.")
    if sum(counts) != env_groups:
        raise ConfigError(
            f"{where}.n_groups = {list(counts)} adds up to {sum(counts)}, but {section}.env_groups = {env_groups}."
        )
    return list(zip(tags, counts, strict=True))


def _equal_shares(where: str, tags: list[str], env_groups: int) -> list[int]:
    """What RAGEN does where ``n_groups`` is left out: all tags get the same number of groups."""
    if not tags or env_groups % len(tags):
        raise ConfigError(f"{where}.n_groups is missing, and {env_groups} groups do not divide among tags {tags}.")
    return [env_groups // len(tags)] * len(tags)


def _entries(reader: Reader, tags: list[tuple[str, int]], group_size: int) -> list[EnvEntry]:
    entries: list[EnvEntry] = []
    for tag, groups in tags:
        build = _EntryBuilder(reader, tag)
        for member in range(groups * group_size):
            entries.append(build(env_id=len(entries), group_id=len(entries) // group_size))
            if not member:  # of all others it is the same
                build.check_kinds(entries[-1].spec.config)
    return entries


class _EntryBuilder:
    """Makes the entries of one tag, each with a configuration object of its own."""

    def __init__(self, reader: Reader, tag: str) -> None:
        known = reader.get("custom_envs")
        if tag not in known:
            raise ConfigError(f"tag {tag!r} is not a key of custom_envs; there are {', '.join(sorted(known))}.")
        self._tag, self._key = tag, f"custom_envs.{tag}"
        self._env_type = reader.get(f"{self._key}.env_type")
        if not isinstance(self._env_type, str):
            raise ConfigError(f"{self._key}.env_type = {self._env_type!r}: expected a name or 'package.module:Class'.")
        try:
            self._env_class, self._config_class = resolve_env(self._env_type)
        except UnknownEnvError as error:
            raise UnknownEnvError(f"{self._key}.env_type: {error}") from error.__cause__
        _check_keys(reader, self._key, (*ENV_KEYS, *READ_OVER), {})
        self._fields = reader.get(f"{self._key}.env_config", {})
        self._overlaps = reader.get(f"{self._key}.overlap_waits", False)
        if not isinstance(self._overlaps, bool):
            raise ConfigError(f"{self._key}.overlap_waits = {self._overlaps!r}: expected true or false.")
        self._max_actions = reader.integer(f"{self._key}.max_actions_per_traj", minimum=1)
        if not isinstance(self._fields, Mapping):
            raise ConfigError(f"{self._key}.env_config = {self._fields!r}: expected a mapping of fields.")
        self._fields = reader.generation.env_fields(self._env_type, self._fields)
        self._game = RAGEN_2026 if reader.generation.is_2026 else RAGEN

    def __call__(self, env_id: int, group_id: int) -> EnvEntry:
        described = env_id, group_id, self._tag, self._env_type, self._env_class
        try:
            spec = EnvSpec(*described, self._config(), self._game, self._fields, self._overlaps)
        except ConfigError as error:
            text = str(error)
            raise type(error)(f"{self._key}.{text}" if text.startswith("overlap_waits") else text) from error
        return EnvEntry(spec, self._max_actions)

    def check_kinds(self, config: Any) -> None:
        """See that the fields of one of its configurations hold what they are declared to; raises ConfigError."""
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
                raise ConfigError(
                    f"{self._key}.env_config.{name} = {self._fields[name]!r}: "
                    f"{self._env_type!r} has no such field; it has {', '.join(sorted(known))}."
                )


def _sequential_env_types(reader: Reader, used: set[str]) -> tuple[str, ...]:
    """The listed types, where a name that is neither used nor registered is a typing error, and those that must."""
    types = reader.texts("es_manager.sequential_env_types", [])
    for env_type in sorted({*types} - used):
        try:
            resolve_env(env_type)
        except UnknownEnvError as error:
            raise UnknownEnvError(f"es_manager.sequential_env_types: {error}") from None
    return (*types, *(each for each in staying_in_main(used) if each not in types))


def _engine_settings(reader: Reader, used: set[str]) -> Settings:
    key = "es_manager"
    own = reader.get(f"{key}.backend", "")
    return Settings(
        use_lanes=reader.choice(f"{key}.use_multiprocessing", MODES, "auto"),
        max_workers=reader.integer(f"{key}.max_workers", None, minimum=1),
        backend=own if names_own_kind(own) else reader.choice(f"{key}.backend", BACKENDS, "process"),
        sequential_env_types=_sequential_env_types(reader, used),
        step_timeout=reader.seconds(f"{key}.step_timeout", 60),
        reset_timeout=reader.seconds(f"{key}.reset_timeout", 120),
        startup_timeout=reader.seconds(f"{key}.startup_timeout", 60),
        on_env_failure=reader.choice(f"{key}.on_env_failure", ON_ENV_FAILURE, "fallback"),
        max_restarts=reader.integer(f"{key}.max_restarts", 3),
        start_method=_start_method(reader),
        ray=RayOptions.of(reader.get(f"{key}.ray", None), f"{key}.ray"),
        max_turns=reader.max_turn,
    )


def _start_method(reader: Reader) -> str:
    """How workers start; ``fork``, which there was once, is ``forkserver``."""
    key = "es_manager.start_method"
    if reader.get(key, None) == "fork":
        if key not in _told:
            _told.add(key)
            log.warning("%s = 'fork' is no more (it copied the locks of other threads): 'forkserver' is taken.", key)
        return "forkserver"
    return reader.choice(key, START_METHODS, "forkserver")
