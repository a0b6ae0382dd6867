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
    name: module
    for module, names in {
        "parallel_env_container": "MultiProcessEnvironmentContainer to_numpy",
        "environment_manager": "BanditEnvironmentManager CountdownEnvironmentManager EnvironmentManagerBase "
        "FrozenLakeEnvironmentManager MetaMathQAEnvironmentManager SokobanEnvironmentManager WebShopEnvironmentManager",
        "projection_functions": "bandit_projection countdown_projection create_projection_function "
        "frozen_lake_projection generic_projection metamathqa_projection sokoban_projection webshop_projection",
        "trajectory_collector": "TrajectoryCollector filter_group_data to_list_of_dict",
        "environment_factory": "create_environments create_single_environment_for_testing "
        "get_environment_requirements get_supported_environment_types make_environments validate_environment_config",
    }.items()
    for name in names.split()
}
"""Names of higher floors, each with the module here that gives it; games and workers need none of it."""

__getattr__, __dir__ = attach(__name__, _HIGHER)
