"""The manager of a checkout of RAGEN, whose rollouts are those of the one that stood there, bit for bit.

It needs the checkout's ``REGISTERED_ENVS`` and ``REGISTERED_ENV_CONFIGS``; the checkout's packages tell its generation.
Keys of ``es_manager`` beside RAGEN's: ``use_multiprocessing`` (true, false, or auto, the default), ``env_state_hash``,
``journal`` (a folder, see :mod:`envlanes.ragen.recorded`), and the fields of :class:`envlanes.settings.Settings`, such
as ``max_workers`` and ``sequential_env_types``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from envlanes.errors import ConfigError, did_you_mean, in_short
from envlanes.ragen.games import GAME_2025, GAME_2026
from envlanes.ragen.manager import RolloutManager
from envlanes.ragen.metrics import Rules
from envlanes.ragen.own_process import why_own_process
from envlanes.ragen.settings import (
    ENGINE_KEYS,
    ManagerSettings,
    engine_settings,
    read_list,
    read_settings,
    tag_entry,
)
from envlanes.settings import Settings
from envlanes.workers.server import _worker_init, _worker_step_single_env

__all__ = ["EnvStateManager", "_worker_init", "_worker_step_single_env"]

ENVS = importlib.import_module("ragen.env")  # the checkout's: whichever stands beside
# Only RAGEN of 2026 has `ragen/patches`.
RULES = Rules(2026 if importlib.util.find_spec("ragen.patches") else 2025, as_in_ragen=True)
OWN_KEYS = ("use_multiprocessing", "format_penalty", "env_state_hash", "journal", "train", "val")
log = logging.getLogger(__name__)
_logged: set[str] = set()

with contextlib.suppress(ImportError, AttributeError):  # as RAGEN's module does for those who compose configurations
    importlib.import_module("ragen.utils").register_resolvers()


class EnvStateManager(RolloutManager):
    """The manager of a checkout; see :class:`~envlanes.ragen.manager.RolloutManager`."""

    def _read_settings(self, config: Any, mode: str) -> ManagerSettings:
        return read_config(config, mode)

    def render(self) -> list[Any]:
        """The renderings of all environments: text, an array of shape ``(H, W, 3)``, or a list of these."""
        self._caches()
        found = self._read(self._entries, "render")
        return [found[i] if i in found else self._engine.observation(i) for i in self._entries]

    def _grids(self, env_ids: Iterable[int]) -> dict[int, Any]:
        return self._read(env_ids, "grid")  # an instance may have it, and its class not

    def _rollout_infos(self, env_ids: Iterable[int]) -> dict[int, Any]:
        answering = [env_id for env_id in env_ids if self._entries[env_id]["tag"] == "MetamathQA"]
        found = self._read(answering, "correct_answer")
        return {env_id: {"correct_answer": answer} for env_id, answer in found.items()}


def read_config(config: Any, mode: str) -> ManagerSettings:
    """Read and check ``es_manager``, ``custom_envs`` and ``seed``; nothing is built or started.

    Args:
        config: Hydra's configuration, or nested mappings.
        mode: ``"train"`` or ``"val"``.

    Raises:
        ConfigError: A key is missing or has an invalid value; the message names it.
    """
    general, custom_envs = _plain(_section(config, "es_manager")), _section(config, "custom_envs")
    sections = {"es_manager": general, "seed": {mode: (config.get("seed") or {}).get(mode)}}

    def entry(tag: str) -> Any:  # tags that are not used may have interpolations that cannot be resolved
        return _plain(tag_entry(custom_envs, tag))

    game = GAME_2026 if RULES.generation == 2026 else GAME_2025
    return read_settings(
        ManagerSettings, sections, entry, mode, _resolve, partial(_engine_settings, general), RULES, game
    )


def _resolve(env_type: Any, where: str, fields: Mapping[str, Any]) -> tuple[type, Any]:
    _check_type(env_type, f"{where}.env_type")
    return ENVS.REGISTERED_ENVS[env_type], ENVS.REGISTERED_ENV_CONFIGS[env_type]


def _check_type(env_type: Any, where: str) -> None:
    if env_type not in (known := ENVS.REGISTERED_ENVS):
        meant = did_you_mean(str(env_type), known) or f" There are {', '.join(known)}."
        raise ConfigError(f"{where} = {env_type!r}: unknown environment type.{meant}")


def _engine_settings(general: Mapping[str, Any], classes: Mapping[str, Any]) -> Settings:
    """The engine's settings; types whose episodes depend on their process stay in the main process, and are logged."""
    known = [*ENGINE_KEYS, *OWN_KEYS]
    for key in general:
        if key not in known and (meant := did_you_mean(str(key), known, lambda near: f"es_manager.{near}", 0.8)):
            raise ConfigError(f"es_manager.{key} = {general[key]!r}: there is no such key.{meant}")
    why = {env_type: reason for env_type, each in classes.items() if (reason := why_own_process(each))}
    for env_type in why.keys() - _logged:
        _logged.add(env_type)
        log.warning("environments of type %r stay in the main process: %s.", env_type, why[env_type])
    sequential = read_list(general, "es_manager", "sequential_env_types", str) or []
    for env_type in sequential:
        _check_type(env_type, "es_manager.sequential_env_types")
    return engine_settings(general, sequential_env_types=tuple(dict.fromkeys([*sequential, *why])))


def _section(config: Any, name: str) -> Mapping[str, Any]:
    found = config.get(name) if isinstance(config, Mapping) else None
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name} = {in_short(found)}: expected a mapping.")
    return found


def _plain(value: Any) -> Any:
    """Hydra's containers as dicts and lists, with interpolations resolved."""
    if type(value).__module__.startswith("omegaconf."):
        return importlib.import_module("omegaconf").OmegaConf.to_container(value, resolve=True)
    return value
