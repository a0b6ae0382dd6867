"""Checks, before anything is started, that agent loops can play a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen.agent_loop.verl_keys import ROLLOUT, SWITCHES
from ragen.config.loading import as_config
from ragen.errors import ConfigError
from ragen.llm_agent.environments import read_config
from ragen.llm_agent.filtering.group_filter import PREFIX, GroupFilter
from ragen.llm_agent.prompts.settings import ContextSettings
from ragen.validity import MASK


def check_environments(config: Mapping[str, Any]) -> None:
    """Check that agent loops can play the environments, before anything is started.

    Raises:
        ConfigError: They cannot.
    """
    settings, whole = ContextSettings.read(config), as_config(config)
    collapse = whole.collapse_detection
    asked = {
        f"{ROLLOUT}{PREFIX}*": not GroupFilter.read(config).keeps_all(),
        "collapse_detection.*_enabled": collapse.first_turn_enabled or collapse.multi_turn_enabled,
        "agent_proxy.use_turn_scores": settings.use_turn_scores,
        "enable_response_mask=false": not settings.enable_response_mask,
        "agent_proxy.reward_normalization.method": settings.method != "identity",
        "es_manager.failed_trajectories": whole.es_manager.failed_trajectories != MASK,
        **{key: whole.select(key) not in (None, False, "none") for key in SWITCHES},
    }
    if named := [name for name, is_asked in asked.items() if is_asked]:
        raise ConfigError(f"{', '.join(named)}: set, which verl's trainer does not do; do not set it.")
    for mode in ("train", "val"):
        for entry in read_config(config, mode).entries:
            if getattr(entry.spec.config, "render_mode", None) == "rgb_array":
                raise ConfigError(
                    f"custom_envs.{entry.spec.tag}.env_config.render_mode is 'rgb_array'; agent loops put no images "
                    "into prompts, expected 'text'."
                )
