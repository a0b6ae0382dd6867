"""Environments for language models: bandit, countdown, frozen_lake, metamathqa, sokoban, webshop and more.

Nothing here imports torch or verl, and a game's own dependencies are imported when that game is first used.

Containers of environments, their managers and collectors are implemented on higher floors. They are also available here
under these names, and imported on first use.
"""

from envlanes.lazy import attach
from ragen.env.base import BaseDiscreteActionEnv, BaseEnv, BaseEnvConfig, BaseLanguageBasedEnv
from ragen.env.registry import REGISTERED_ENV_CONFIGS, REGISTERED_ENVS, register_env, resolve_env

__all__ = [
    "REGISTERED_ENVS",
    "REGISTERED_ENV_CONFIGS",
    "BaseDiscreteActionEnv",
    "BaseEnv",
    "BaseEnvConfig",
    "BaseLanguageBasedEnv",
    "register_env",
    "resolve_env",
]

_HIGHER = {
    "MultiProcessEnvironmentContainer": "parallel_env_container",
    "to_numpy": "parallel_env_container",
    "BanditEnvironmentManager": "environment_manager",
    "CountdownEnvironmentManager": "environment_manager",
    "EnvironmentManagerBase": "environment_manager",
    "FrozenLakeEnvironmentManager": "environment_manager",
    "MetaMathQAEnvironmentManager": "environment_manager",
    "SokobanEnvironmentManager": "environment_manager",
    "WebShopEnvironmentManager": "environment_manager",
    "bandit_projection": "projection_functions",
    "countdown_projection": "projection_functions",
    "create_projection_function": "projection_functions",
    "frozen_lake_projection": "projection_functions",
    "generic_projection": "projection_functions",
    "metamathqa_projection": "projection_functions",
    "sokoban_projection": "projection_functions",
    "webshop_projection": "projection_functions",
    "TrajectoryCollector": "trajectory_collector",
    "filter_group_data": "trajectory_collector",
    "to_list_of_dict": "trajectory_collector",
    "create_environments": "environment_factory",
    "create_single_environment_for_testing": "environment_factory",
    "get_environment_requirements": "environment_factory",
    "get_supported_environment_types": "environment_factory",
    "make_environments": "environment_factory",
    "validate_environment_config": "environment_factory",
}
"""Names of higher floors, each with the module here that gives it; games and workers need none of it."""

__getattr__, __dir__ = attach(__name__, _HIGHER)
