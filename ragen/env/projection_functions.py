"""From texts to actions, under the name by which it was first asked for; see :mod:`ragen.llm_agent.prompting.replies`.

Nothing of ``ragen.env`` imports this module: what it gives reads replies, floors above the games.
"""

from ragen.llm_agent.prompting.replies import (
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
