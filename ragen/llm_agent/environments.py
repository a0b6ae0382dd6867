"""Reads ``es_manager``, ``custom_envs`` and ``seed``, before anything is built."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from envlanes.failures import OnFailure
from envlanes.ragen.settings import (
    EnvEntry,
    ManagerSettings,
    TagGroups,
    engine_settings,
    read_groups,
    read_settings,
    tag_entry,
)
from envlanes.settings import Settings
from ragen.config.loading import as_config
from ragen.env.fields import check_kinds
from ragen.env.registry import known_names, resolve_env
from ragen.errors import ConfigError, UnknownEnvError, did_you_mean
from ragen.extras import check_installed, extra_of
from ragen.statistics import ALL

if TYPE_CHECKING:
    from ragen.config.schema import Config

__all__ = ["EnvEntry", "ManagerConfig", "check_extras", "custom_env", "environment_tags", "read_config"]


log = logging.getLogger(__name__)
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
        config: A :class:`~ragen.config.Config`, Hydra's, or nested mappings.
        mode: ``"train"`` or ``"val"``.

    Raises:
        ConfigError: A key is missing or has an invalid value; the message names it.
        UnknownEnvError: An environment type is unknown.
    """
    checked = as_config(config, ("es_manager", "custom_envs", "seed"))
    sections = {
        "es_manager": dict(checked.es_manager) | {name: _mode(checked, name) for name in ("train", "val")},
        "seed": dict(checked.seed),
    }
    _log_foreign(checked.es_manager, "es_manager")
    engine = partial(_engine_settings, checked)
    folder = checked.es_manager.crash_report_dir
    entry = partial(tag_entry, {tag: dict(entry) for tag, entry in checked.custom_envs.items()})
    read = read_settings(ManagerConfig, sections, entry, mode, _resolve, engine, crash_report_dir=folder)
    if any(entry.spec.tag == ALL for entry in read.entries):
        raise ConfigError(f"es_manager.{mode}.env_configs.tags has {ALL!r}, which results call the row over all tags.")
    return read


def _log_foreign(section: Any, where: str) -> None:
    for name in section.model_extra or ():
        if (key := f"{where}.{name}") not in _logged:
            _logged.add(key)
            log.warning("%s has no effect on the environment manager.", key)


def _mode(config: Config, name: str) -> Any:
    part = getattr(config.es_manager, name)
    return part and part.model_dump()


def _resolve(env_type: str, where: str, given: Mapping[str, Any]) -> tuple[type, Any]:
    """The classes of a type, whose configuration has all of the given fields."""
    try:
        env_class, config_class = resolve_env(env_type)
    except UnknownEnvError as error:
        raise UnknownEnvError(f"{where}.env_type: {error}") from error.__cause__
    if config_class is None:
        return env_class, lambda **fields: fields or None
    if not dataclasses.is_dataclass(config_class):
        return env_class, config_class
    known = {field.name for field in dataclasses.fields(config_class) if field.init}
    for name in given:
        if name not in known:
            meant = did_you_mean(name, known) or f" It has {', '.join(sorted(known))}."
            raise ConfigError(f"{where}.env_config.{name} = {given[name]!r}: {env_type!r} has no such field.{meant}")
    checked: list[Any] = []

    def build(**fields: Any) -> Any:
        config = config_class(**fields)
        if not checked:  # the others are the same
            check_kinds("", env_type, config, given)
            checked.append(config)
        return config

    return env_class, build


def _engine_settings(config: Config, classes: Mapping[str, type]) -> Settings:
    """The engine's settings.

    The class of a registered type that no tag uses is not imported: its packages need not be installed.

    Raises:
        UnknownEnvError: A type of ``sequential_env_types`` is neither used nor registered.
    """
    general = config.es_manager
    for env_type in {*general.sequential_env_types} - classes.keys() - {*known_names()}:
        try:
            resolve_env(env_type)
        except UnknownEnvError as error:
            own = config.custom_envs.get(env_type)
            meant = f"{env_type!r} is a tag; its type is {own.env_type!r}." if own else error
            raise UnknownEnvError(f"es_manager.sequential_env_types: {meant}") from None
    types = tuple(general.sequential_env_types)
    return engine_settings(dict(general), sequential_env_types=types, ray=general.ray.model_dump())


def groups_of(config: Any, mode: str) -> list[TagGroups]:
    """The groups of each tag of a mode.

    Raises:
        ConfigError: A key is missing, or the numbers do not fit the tags or ``env_groups``.
    """
    part = as_config(config, ("es_manager",)).select(f"es_manager.{mode}")
    return read_groups({} if part is None else part.model_dump(), f"es_manager.{mode}")


def environment_tags(config: Any, mode: str) -> tuple[dict[int, str], dict[str, int]]:
    """The tag of each environment id, and the number of environments of each tag; see :func:`groups_of`."""
    groups, size = groups_of(config, mode), as_config(config, ("es_manager",)).select(f"es_manager.{mode}.group_size")
    owners = [each.tag for each in groups for _ in range(each.number * size)]
    return dict(enumerate(owners)), {tag: owners.count(tag) for tag in owners}


def custom_env(config: Any, tag: str) -> dict[str, Any]:
    """The entry of a tag under ``custom_envs``, as plain Python.

    Raises:
        ConfigError: There is none.
    """
    return dict(tag_entry(as_config(config, ("custom_envs",)).custom_envs, tag))
