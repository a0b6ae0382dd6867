"""Re-exports projections of :mod:`ragen.llm_agent.prompts.replies`; nothing in ``ragen.env`` imports this module."""

from ragen.llm_agent.prompts.replies import (
    bandit_projection,
    countdown_projection,
    create_projection_function,
    frozen_lake_projection,
    generic_projection,
    metamathqa_projection,
    mixed_projection,
    sokoban_projection,
    webshop_projection,
)

__all__ = [
    "bandit_projection",
    "countdown_projection",
    "create_projection_function",
    "frozen_lake_projection",
    "generic_projection",
    "metamathqa_projection",
    "mixed_projection",
    "sokoban_projection",
    "webshop_projection",
]
