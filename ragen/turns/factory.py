"""Creates managers of environments from a configuration, for training and for validation.

    train, val = make_environments(load_config("parallel_envs"))

The keys are RAGEN's ``es_manager``, ``custom_envs`` and ``seed``, read as by ``EnvStateManager``, and verl-agent's
``env.history_length`` with our ``env.style``. A configuration may mix tags of all types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragen.config.loading import as_config
from ragen.config.schema import Config
from ragen.env import REGISTERED_ENVS, resolve_env
from ragen.env.base import BaseLanguageBasedEnv
from ragen.llm_agent.environments import read_config
from ragen.llm_agent.prompts.replies import create_projection_function
from ragen.turns.container import EnvironmentContainer, MultiProcessEnvironmentContainer
from ragen.turns.managers import MANAGERS, EnvironmentManagerBase

DEFAULT_SEEDS = {"train": 42, "val": 1042}


def make_environments(config: Any) -> tuple[EnvironmentManagerBase, EnvironmentManagerBase]:
    """The environments of a configuration; nothing is built before their first reset.

    Args:
        config: The whole configuration.

    Returns:
        The manager of ``es_manager.train`` and that of ``es_manager.val``.

    Raises:
        ConfigError: A key is missing or invalid.
    """
    config, managers = as_config(config), []
    for mode, default in DEFAULT_SEEDS.items():
        read = read_config(config, mode)
        seed = default if read.base_seed is None else read.base_seed
        managers.append(_managed(EnvironmentContainer(read, seed, is_train=mode == "train"), config))
    train, val = managers
    return train, val


create_environments = make_environments


def _managed(envs: EnvironmentContainer, config: Config) -> EnvironmentManagerBase:
    types = [spec.env_type for spec in envs.specs]
    manager = EnvironmentManagerBase if len(set(types)) > 1 else MANAGERS.get(types[0], EnvironmentManagerBase)
    return manager(envs, create_projection_function(types, config.env.style), config)


def validate_environment_config(config: Any) -> bool:
    """Check every key for making environments and collecting from them; builds nothing.

    Returns:
        True.

    Raises:
        ConfigError: A key is missing or has an invalid value; the message names it.
        UnknownEnvError: An environment type is not known.
    """
    config = as_config(config)
    for mode in DEFAULT_SEEDS:
        read_config(config, mode)
    return True


def create_single_environment_for_testing(
    env_type: str, seed: int = 42, env_kwargs: Mapping[str, Any] | None = None
) -> EnvironmentManagerBase:
    """One environment in the main process, with its manager.

    Args:
        env_type: A registered name, or ``"package.module:Class"``.
        seed: Seed of its first episode.
        env_kwargs: Fields of its configuration.

    Raises:
        UnknownEnvError: There is no such type.
        ConfigError: It has no such field, or a value is invalid.
    """
    envs = MultiProcessEnvironmentContainer(env_type, 1, 1, seed, env_kwargs, settings={"use_lanes": False})
    return _managed(envs, as_config({}))


def get_supported_environment_types() -> list[str]:
    """All registered types."""
    return sorted(REGISTERED_ENVS)


def get_environment_requirements(env_type: str) -> dict[str, Any]:
    """The parameters and requirements of a type's environments.

    Returns:
        ``actions`` (``"text"`` or ``"discrete"``) and ``env_kwargs`` (names and defaults of the configuration's fields;
        without one, ``dataclasses.MISSING``).

    Raises:
        UnknownEnvError: There is no such type.
    """
    env_class, config_class = resolve_env(env_type)
    fields = dataclasses.fields(config_class) if dataclasses.is_dataclass(config_class) else ()
    defaults = {
        each.name: each.default_factory() if callable(each.default_factory) else each.default
        for each in fields
        if each.init
    }
    return {
        "actions": "text" if issubclass(env_class, BaseLanguageBasedEnv) else "discrete",
        "env_kwargs": defaults,
    }
