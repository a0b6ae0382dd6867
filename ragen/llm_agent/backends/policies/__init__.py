"""A policy for each of a few environment types; their solvers are imported on first use."""

from __future__ import annotations

import importlib

from ragen.llm_agent.backends.policies.base import Plan, Policy, UnreadableError

__all__ = ["POLICIES", "Plan", "Policy", "UnreadableError", "create_policy"]

POLICIES = {
    "bandit": "BanditPolicy",
    "countdown": "CountdownPolicy",
    "frozen_lake": "FrozenLakePolicy",
    "metamathqa": "MathPolicy",
    "search": "SearchPolicy",
    "sokoban": "SokobanPolicy",
    "textworld": "TextWorldPolicy",
}
"""Environment type to policy: those of the default rollout, and of the tiny model's demonstrations."""


def create_policy(env_type: str) -> Policy:
    """The policy of an environment type; the default chooses among the actions that the prompt names."""
    if env_type not in POLICIES:
        return Policy()
    return getattr(importlib.import_module("ragen.llm_agent.backends.policies.games"), POLICIES[env_type])()
