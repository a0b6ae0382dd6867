"""Where the settings of RAGEN's filters stand: under ``agent_proxy``, or where RAGEN has them."""

from __future__ import annotations

from typing import Any

from ragen.llm_agent.config.loading import setting

PREFIX = "rollout_filter_"
NAMES = (
    "empty_stop_steps",
    "include_zero",
    "metric",
    "ratio",
    "selection_eps",
    "strategy",
    "top_p_prob_mode",
    "type",
    "value",
)
"""What follows the prefix in the keys."""


def filter_key(config: Any, name: str) -> str:
    """The key under which a setting of RAGEN's filters is found."""
    ours, ragens = f"agent_proxy.rollout_filter_{name}", f"actor_rollout_ref.rollout.rollout_filter_{name}"
    return ours if setting(config, ours, object, None) is not None else ragens


def filter_settings(config: Any) -> dict[str, Any]:
    """All settings of RAGEN's filters that a configuration has, by name with the prefix."""
    found = {name: setting(config, filter_key(config, name), object, None) for name in NAMES}
    return {f"{PREFIX}{name}": value for name, value in found.items() if value is not None}
