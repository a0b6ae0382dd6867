"""Where the settings of RAGEN's filters stand: under ``agent_proxy``, or where RAGEN has them."""

from __future__ import annotations

from typing import Any

from ragen.llm_agent.config.loading import setting

OURS, RAGENS = (f"{section}.rollout_filter_" for section in ("agent_proxy", "actor_rollout_ref.rollout"))


def filter_key(config: Any, name: str) -> str:
    """The key under which a setting of RAGEN's filters is found."""
    ours = f"{OURS}{name}"
    return ours if setting(config, ours, object, None) is not None else f"{RAGENS}{name}"
