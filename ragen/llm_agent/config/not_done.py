"""RAGEN's keys that change what is learnt, and that no trainer here does: refused where they are switched on."""

from __future__ import annotations

from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.loading import setting

NOT_DONE = (
    "algorithm.bi_level_gae",
    "algorithm.zero_task_advantage",
    "algorithm.soft_advantage_reweight",
    "actor_rollout_ref.actor.grpo_advantage_length_weight",
)


def refuse_not_done(config: Any, trainer: str) -> None:
    """See that none of them is switched on.

    Args:
        config: The whole configuration.
        trainer: Who does not do it, for the message.

    Raises:
        ConfigError: Some are; all are named.
    """
    asked = [key for key in NOT_DONE if setting(config, key, object, False)]
    if asked:
        verb = "is" if len(asked) == 1 else "are"
        raise ConfigError(f"{', '.join(asked)} {verb} switched on, which {trainer} does not do; expected false.")
