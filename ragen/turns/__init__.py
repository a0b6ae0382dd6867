"""Text environments in groups, stepped by one action each, and rollouts with one row per turn.

    collector     the loop over turns, and the batch of all rows
      managers    prompts with histories (prompts), texts back to actions
        container lists of actions to lists of observations, rewards, dones and infos
          game    the effect of one action on one environment
    factory       managers for training and validation from a configuration
    rollouts      the same for ``LLMAgentProxy``, as RAGEN's training batches

Environments live in workers of :class:`~envlanes.engine.Engine`: results are equal for any number of workers, killed
or not. ``ragen.env`` exports the names too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.turns.container import MultiProcessEnvironmentContainer, to_numpy

__all__ = [
    "MultiProcessEnvironmentContainer",
    "to_numpy",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        **dict.fromkeys(("MultiProcessEnvironmentContainer", "to_numpy"), "container"),
    },
)
