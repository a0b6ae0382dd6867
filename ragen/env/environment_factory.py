"""Managers from a configuration, under the name first asked for; see :mod:`ragen.llm_agent.collecting.factory`.

Nothing of ``ragen.env`` imports this module: what it gives reads configurations, floors above the games.
"""

from ragen.llm_agent.collecting.factory import (
    create_environments,
    create_single_environment_for_testing,
    get_environment_requirements,
    get_supported_environment_types,
    make_environment_manager,
    make_environments,
    validate_environment_config,
)

__all__ = [
    "create_environments",
    "create_single_environment_for_testing",
    "get_environment_requirements",
    "get_supported_environment_types",
    "make_environment_manager",
    "make_environments",
    "validate_environment_config",
]
