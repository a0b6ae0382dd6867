"""Checks, before anything is started, that agent loops can play a configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ragen.agent_loop.service import ServiceSettings
from ragen.agent_loop.session import service_kind
from ragen.agent_loop.verl_keys import IN_RAGEN, ROLLOUT
from ragen.errors import ConfigError
from ragen.llm_agent.config.context import CollapseSettings, ContextSettings
from ragen.llm_agent.config.environments import read_config
from ragen.llm_agent.config.loading import read_max_turn
from ragen.llm_agent.filtering.group_filter import PREFIX, read_filter
from ragen.settings import read, setting


def check_environments(config: Mapping[str, Any]) -> None:
    """Check that agent loops can play the environments, before anything is started.

    Raises:
        ConfigError: They cannot; the message lists all reasons.
    """
    refused: list[str] = []
    checks = (
        read_max_turn,
        service_kind,
        partial(read, ServiceSettings),
        _check_ragens_trainer,
        _check_learnt,
        _check_method,
        _check_modes,
    )
    for check in checks:
        with noting(refused):
            check(config)
    if refused:
        raise ConfigError(" ".join(refused))


@contextlib.contextmanager
def noting(told: list[str]) -> Iterator[None]:
    """Collect refusals within the block instead of raising them, so that all are reported together."""
    try:
        yield
    except ConfigError as error:
        if not any(str(error) in each for each in told):
            told.append(str(error))


def _check_learnt(config: Mapping[str, Any]) -> None:
    settings, refused = ContextSettings.read(config), []
    if settings.use_turn_scores:
        refused.append(
            "agent_proxy.use_turn_scores is True; verl's trainer puts a trajectory's whole score on its last token, so "
            "it takes False alone (trainer.backend=tiny learns from turn scores)."
        )
    if not settings.enable_response_mask:
        refused.append(
            "configuration key 'enable_response_mask' is False; an agent loop knows the probabilities of what the "
            "model said and of nothing else, so replies alone are learned. Expected True."
        )
    if refused:
        raise ConfigError(" ".join(refused))


def _check_ragens_trainer(config: Mapping[str, Any]) -> None:
    asked = {
        f"{ROLLOUT}{PREFIX}*": not read_filter(config).keeps_all(),
        "collapse_detection.*_enabled": bool(CollapseSettings.read(config)),
        "grpo_advantage_length_weight": setting(config, "grpo_advantage_length_weight", bool, False),
    }
    if named := [name for name, is_asked in asked.items() if is_asked]:
        raise ConfigError(f"{', '.join(named)}: switched on, {IN_RAGEN}; train in RAGEN, or switch it off.")


def _check_method(config: Mapping[str, Any]) -> None:
    method = ContextSettings.read(config).method
    if method != "identity":
        raise ConfigError(
            f"agent_proxy.reward_normalization.method is {method!r}; verl's trainer compares the trajectories of a "
            "group itself (algorithm.adv_estimator, algorithm.norm_adv_by_std_in_grpo), so it takes 'identity' alone."
        )


def _check_modes(config: Mapping[str, Any]) -> None:
    for mode in ("train", "val"):
        for entry in read_config(config, mode).entries:
            if getattr(entry.spec.config, "render_mode", None) == "rgb_array":
                raise ConfigError(
                    f"custom_envs.{entry.spec.tag}.env_config.render_mode is 'rgb_array'; agent loops put no images "
                    "into prompts, expected 'text'."
                )
