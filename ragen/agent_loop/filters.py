"""RAGEN's filters of groups in verl's configuration: the sampler of batches, and its arguments.

verl's V1 trainer creates the class that ``trainer.v1.sampler.custom_sampler`` names, with ``sampler_kwargs``, so verl
is not patched. A choice by entropy needs probabilities, which are computed later: :mod:`ragen.agent_loop.v1_trainer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ragen.llm_agent.config.context import CollapseSettings
from ragen.llm_agent.filtering import advantages, early_stop
from ragen.llm_agent.filtering.advantages import AdvantageWeights, LossScaling
from ragen.llm_agent.filtering.group_filter import filter_settings, read_empty_stop, read_filter
from ragen.settings import setting

if TYPE_CHECKING:
    from omegaconf import DictConfig

SAMPLER = {"path": "pkg://ragen.agent_loop.group_sampler", "name": "GroupSampler"}
SCALING = "filter_loss_scaling"  # its argument beside RAGEN's rollout_filter_*


def check_filters(config: Any) -> None:
    """Check the filters' keys.

    Raises:
        ConfigError: A value is invalid.
    """
    read_filter(config)
    read_empty_stop(config)
    LossScaling.read(config)


def put_filters(config: Any, verl: DictConfig) -> list[str]:
    """Configure verl's sampler for RAGEN's filters, if they can drop any group.

    Args:
        config: RAGEN's whole configuration.
        verl: verl's, with the user's keys; changed only if there is no conflict.

    Returns:
        Sentences, each about a conflict.
    """
    choice = read_filter(config)
    if choice.keeps_all():
        return []
    mode, sampler = verl.trainer.v1.trainer_mode, verl.trainer.v1.sampler
    refused = []
    if not verl.trainer.use_v1:
        refused.append("rollout_filter_* is set, which takes verl's V1 trainer; expected trainer.use_v1=true")
    elif mode != "sync":
        refused.append(
            f"rollout_filter_* is set, and trainer.v1.trainer_mode is {mode!r}, whose batches are not a step's groups; "
            "expected 'sync'"
        )
    if sampler.custom_sampler.path:
        refused.append(
            "rollout_filter_* is set, which takes a sampler of its own, beside trainer.v1.sampler.custom_sampler; "
            "expected one of the two"
        )
    if verl.algorithm.filter_groups and verl.algorithm.filter_groups.enable:
        refused.append(
            "rollout_filter_* is set beside algorithm.filter_groups.enable; expected one of the two "
            "(trainer.backend=tiny does both)"
        )
    if not refused and not choice.needs_entropies:
        sampler.custom_sampler.update(SAMPLER)
        scaling = LossScaling.read(config)
        scaled = {SCALING: scaling.name} if scaling else {}
        sampler.sampler_kwargs = {**sampler.sampler_kwargs, **filter_settings(config), **scaled}
    return refused


def unplaced(verl: DictConfig, manager: str) -> list[str]:
    """Configured features that have no effect without verl's V1 trainer and our manager.

    Args:
        verl: verl's configuration, with the section ``ragen``.
        manager: The class of agent loop managers that implements these features.
    """
    asked = {
        "collapse_detection.*_enabled": bool(CollapseSettings.read(verl.ragen)),
        "algorithm.soft_advantage_reweight, zero_task_advantage or grpo_advantage_length_weight": bool(
            AdvantageWeights.read(verl.ragen)
        ),
        advantages.LOSS_SCALING: bool(LossScaling.read(verl.ragen)),
        early_stop.KEY: setting(verl.ragen, early_stop.KEY, bool, False),
        "rollout_filter_metric by entropy": read_filter(verl.ragen).needs_entropies,
    }
    named = [name for name, is_asked in asked.items() if is_asked]
    if not named or (verl.trainer.use_v1 and verl.actor_rollout_ref.rollout.agent.agent_loop_manager_class == manager):
        return []
    return [
        f"{'; '.join(named)}: switched on, which needs trainer.use_v1=true and "
        f"actor_rollout_ref.rollout.agent.agent_loop_manager_class={manager}"
    ]
