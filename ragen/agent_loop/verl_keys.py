"""The user's keys for verl: separated from verl's defaults and from RAGEN's own keys.

RAGEN's configurations have keys in verl's sections that verl lacks, since RAGEN's trainer is a modified older one. Keys
without an effect are ignored with one log message; keys that would change the training, but that verl's trainer does
not implement, are refused. A configuration that includes verl's ``ppo_trainer`` holds all of verl's defaults: a value
equal to verl's counts as unset, unless it was given on the command line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ragen.config.schema import Filters

ROLLOUT, _ACTOR, _TRAINER = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor.", "trainer."

SWITCHES = (
    *(f"{_TRAINER}{name}" for name in ("gradient_analysis_mode", "gradient_analysis_only")),
    *(f"algorithm.{name}" for name in ("bi_level_gae", "soft_advantage_reweight", "zero_task_advantage")),
    *(f"{_TRAINER}exit_after_gradient_analysis", f"{_ACTOR}grpo_advantage_length_weight"),
    *(f"{_ACTOR}filter_loss_scaling", "grpo_advantage_length_weight"),
    *("use_parallel_envs", "agent_proxy.use_parallel_rollout"),
)
"""RAGEN's keys that must be off."""
OF_RAGEN = {
    *SWITCHES,
    *(f"{ROLLOUT}{name}" for name in ("prompt_length", "tp_size_check", "val_kwargs.logprobs")),
    *(f"{ROLLOUT}gradient_analysis_{name}" for name in ("num_buckets", "bucket_mode")),
    *(f"{_ACTOR}{name}" for name in ("use_ref", "micro_batch_size_per_gpu")),
    *(f"{_TRAINER}{name}" for name in ("validation_steps", "local_log_dir", "log_group_rv_table")),
    *(f"{_TRAINER}generations_to_log_to_wandb.{name}" for name in ("train", "val")),
    *(f"{_TRAINER}gradient_analysis_{name}" for name in ("every", "env_groups", "group_size", "log_prefilter")),
    *(f"{ROLLOUT}{name}" for name in Filters.model_fields),
    "algorithm.high_level_gamma",
}
"""RAGEN's keys in verl's sections."""

_RAGENS_TOO = ("algorithm.adv_estimator",)  # keys that RAGEN's files set to verl's default
READ_HERE = (
    f"{ROLLOUT}response_length",
    f"{_TRAINER}backend",
)
"""Keys (and prefixes of keys) in verl's sections that this package reads itself."""


def sort_keys(
    resolved: Mapping[str, Any],
    written: Mapping[str, Any],
    stock: Mapping[str, Any],
    ours: Mapping[str, Any],
    said: Collection[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """The values to set, by verl's keys, and RAGEN's keys, which are ignored.

    Args:
        resolved: The user's sections that verl has, with interpolations resolved.
        written: Their values by dotted key, with interpolations unresolved.
        stock: The values of verl's own configuration, likewise.
        ours: The values that override verl's own before the user's.
        said: Keys given on the command line.
    """
    values, ignored = dict[str, Any](), list[str]()
    came_along = len(written.keys() & stock.keys()) > len(stock) / 2
    for key, text in written.items():
        is_said = key in said or key in _RAGENS_TOO
        if key.startswith(READ_HERE) or (came_along and key in stock and text == stock[key] and not is_said):
            continue
        value: Any = resolved
        for part in key.split("."):
            value = value[part]
        if key in OF_RAGEN:
            ignored.append(key)
        elif value is not None or ours.get(key) is None:  # else RAGEN fills it in later; here it is computed already
            values[key] = value
    return values, ignored
