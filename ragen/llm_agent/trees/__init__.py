"""Trees of rollouts: shared turns, branching decisions, and advantages.

::

    env 0     turn 0 -- turn 1 -- turn 2 -- turn 3         a leaf is a whole trajectory: 0, 8, 9 and 10
                          |         |
    env 8                 |         +---- turn 3           branched from env 0 after three turns
    env 9                 +---- turn 2 -- turn 3
    env 10                          +---- turn 3           branched from env 9

:mod:`~.lineage` reads trees from rollout caches and computes advantages and counts; :mod:`~.policy` decides where to
branch; :mod:`ragen.llm_agent.rollout.trees` plays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ragen.lazy import attach

if TYPE_CHECKING:
    from ragen.llm_agent.trees.lineage import Forest, forest_of, is_branch

__all__ = [
    "Forest",
    "forest_of",
    "is_branch",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        **dict.fromkeys(("Forest", "forest_of", "is_branch"), "lineage"),
    },
)
