"""Playing rollouts: the proxy and its loop, actors, joblib's shards, the command, and the files of a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.llm_agent.rollout.actor import BackendActor
    from ragen.llm_agent.rollout.proxy import LLMAgentProxy
    from ragen.llm_agent.rollout.shards import ParallelRolloutManager

__all__ = [
    "BackendActor",
    "LLMAgentProxy",
    "ParallelRolloutManager",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "BackendActor": "actor",
        "LLMAgentProxy": "proxy",
        "ParallelRolloutManager": "shards",
    },
)
