"""The settings of ``trainer.backend: tiny``, checked before torch is imported."""

from __future__ import annotations

import json
from typing import Any

from ragen.config import as_config, decisive_settings, refused

AUTO, DISABLE = "auto", "disable"
_OFF = (None, False, 0)
ALLOWED: dict[str, tuple[Any, ...]] = {
    "trainer.resume_mode": (AUTO, DISABLE),
    # trajectories are trained on whole, and as they were sampled from the model's distributions
    "agent_proxy.context_window_mode": ("full",),
    "agent_proxy.training_tokens": ("sampled",),
    "enable_response_mask": (True,),
    "actor_rollout_ref.rollout.do_sample": (None, True),
    "actor_rollout_ref.rollout.top_p": (None, 1.0),
    "actor_rollout_ref.rollout.top_k": (None, -1),
    # updates
    "algorithm.adv_estimator": ("grpo",),
    "algorithm.filter_groups.metric": (None, "reward"),
    "actor_rollout_ref.actor.loss_agg_mode": ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"),
    "actor_rollout_ref.actor.filter_loss_scaling": ("none",),
    # of other trainers
    "actor_rollout_ref.actor.grpo_advantage_length_weight": _OFF,
    "actor_rollout_ref.actor.use_kl_loss": _OFF,
    "actor_rollout_ref.model.lora_rank": _OFF,
    "algorithm.bi_level_gae": _OFF,
    "algorithm.soft_advantage_reweight": _OFF,
    "algorithm.use_kl_in_reward": _OFF,
    "algorithm.zero_task_advantage": _OFF,
    "grpo_advantage_length_weight": _OFF,
    "report": _OFF,
    "reward_model.enable": _OFF,
    "trainer.critic_warmup": _OFF,
    "trainer.exit_after_gradient_analysis": _OFF,
    "trainer.gradient_analysis_mode": _OFF,
    "trainer.gradient_analysis_only": _OFF,
    "trainer.val_only": _OFF,
}
"""The values of keys with which the tiny trainer can train; other trainers have more."""


def check_training(config: Any) -> None:
    """Check that the tiny trainer can train with a configuration.

    Raises:
        ConfigError: A key has a value that it has no part for.
    """
    whole = as_config(config)
    for name, allowed in ALLOWED.items():
        if (value := whole.select(name)) not in allowed:
            raise refused(name, value, f"one of {', '.join(map(json.dumps, allowed))}, with trainer.backend: tiny")
    if whole.trainer.logger not in ("console", [], ["console"]):
        raise refused("trainer.logger", whole.trainer.logger, "console, with trainer.backend: tiny")
    if whole.actor_rollout_ref.rollout.temperature == 0:
        name = "actor_rollout_ref.rollout.temperature"
        raise refused(name, 0, "a number above 0, since training needs sampled replies")
    if whole.trainer.reward_sign == -1 and (method := whole.agent_proxy.reward_normalization.method) != "identity":
        name = "agent_proxy.reward_normalization.method"
        raise refused(name, method, "'identity' with trainer.reward_sign: -1, which turns rewards, not penalties")


DECISIVE = (
    "trainer.seed",
    "trainer.reward_sign",
    "tiny_model",
    "warm_up",
    "algorithm",
    "actor_rollout_ref",
    "seed",
    "agent_proxy",
    "es_manager.format_penalty",
    "es_manager.train",
    "es_manager.val",
    "actor.tokenizer",
    "actor.model",
)


def about_training(config: Any) -> dict[str, Any]:
    """The settings that determine the training and its measurements, as flat keys.

    The length of the training, its output, and settings that only affect speed are excluded.

    Raises:
        ConfigError: A key cannot be read.
    """
    modes = (whole := as_config(config)).es_manager.train, whole.es_manager.val
    tags = {tag for mode in modes if mode for tag in mode.env_configs.tags}
    return decisive_settings(whole, (*DECISIVE, *(f"custom_envs.{tag}" for tag in sorted(tags))))
