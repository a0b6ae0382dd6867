"""Re-exports :mod:`ragen.turns.factory` publicly; nothing in ``ragen.env`` imports this module."""

from ragen.turns.factory import (
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
