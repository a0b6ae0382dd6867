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
    validate_environment_config(config)
    return make_environment_manager(config, "train"), make_environment_manager(config, "val")


create_environments = make_environments


def make_environment_manager(config: Any, mode: str) -> EnvironmentManagerBase:
    """The environments of one mode, ``"train"`` or ``"val"``.

    Raises:
        ConfigError: A key is missing or has an invalid value.
    """
    read, keys = read_config(config, mode), as_config(config).env
    seed = DEFAULT_SEEDS[mode] if read.base_seed is None else read.base_seed
    envs = EnvironmentContainer(read, seed, is_train=mode == "train")
    single = envs.env_types[0] if len(set(envs.env_types)) == 1 else ""
    project = create_projection_function(single or envs.env_types, keys.style)
    return MANAGERS.get(single, EnvironmentManagerBase)(
        envs, project, single or "mixed", history_length=keys.history_length
    )


def validate_environment_config(config: Any) -> bool:
    """Check every key for making environments and collecting from them; builds nothing.

    Returns:
        True.

    Raises:
        ConfigError: A key is missing or has an invalid value; the message names it.
        UnknownEnvError: An environment type is not known.
    """
    for mode in ("train", "val"):
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
    return MANAGERS.get(env_type, EnvironmentManagerBase)(envs, create_projection_function(env_type), env_type)


def get_supported_environment_types() -> list[str]:
    """All registered types: first those with their own manager class, then those that use the base class."""
    return [*MANAGERS, *sorted({*REGISTERED_ENVS} - {*MANAGERS})]


def get_environment_requirements(env_type: str) -> dict[str, Any]:
    """The parameters and requirements of a type's environments.

    Returns:
        ``env_type``; ``actions`` (``"text"`` or ``"discrete"``); ``action_lookup`` (names by key, if they do not depend
        on the seed); ``env_kwargs`` (names and defaults of the configuration's fields); ``has_manager``.

    Raises:
        UnknownEnvError: There is no such type.
    """
    env_class, config_class = resolve_env(env_type)
    missing = dataclasses.MISSING
    defaults = {
        each.name: each.default_factory()
        if each.default_factory is not missing
        else None
        if each.default is missing
        else each.default
        for each in (dataclasses.fields(config_class) if dataclasses.is_dataclass(config_class) else ())
        if each.init
    }
    return {
        "env_type": env_type,
        "actions": "text" if issubclass(env_class, BaseLanguageBasedEnv) else "discrete",
        "action_lookup": defaults.get("action_lookup"),
        "env_kwargs": defaults,
        "has_manager": env_type in MANAGERS,
    }
