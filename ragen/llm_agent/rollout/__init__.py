"""Playing rollouts: players, schedules, actors, and the files of a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.llm_agent.rollout.actor import BackendActor
    from ragen.llm_agent.rollout.player import RolloutPlayer
    from ragen.llm_agent.rollout.timeline import Timeline

__all__ = [
    "BackendActor",
    "RolloutPlayer",
    "Timeline",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "BackendActor": "actor",
        "RolloutPlayer": "player",
        "Timeline": "timeline",
    },
)
