"""How many turns a rollout has at most; read by commands, which import as little as can be."""

from __future__ import annotations

from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.loading import setting


def read_max_turn(config: Any) -> int:
    """``agent_proxy.max_turn``.

    Raises:
        ConfigError: It is missing or less than 1.
    """
    turns = setting(config, "agent_proxy.max_turn", int)
    if turns < 1:
        raise ConfigError(f"configuration key 'agent_proxy.max_turn' is {turns}; expected at least 1.")
    return turns
