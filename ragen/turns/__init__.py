"""Containers of text environments: many environments, stepped by one action each.

    container     maps lists of actions to lists of observations, rewards, dones and infos
    game          the effect of one call on one environment

Built on the public :class:`~envlanes.engine.Engine`, with its guarantees (equal results for any number of
workers, killed or not). Imports neither torch nor verl. ``ragen.env`` exports these names too. Managers, which write
prompts for a container and parse replies, are in :mod:`ragen.turns`.
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
