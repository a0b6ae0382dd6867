"""The settings of a collector: RAGEN's keys, and verl-agent's where they are set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ragen.llm_agent.config.context import ContextSettings
from ragen.settings import count, key, read

TRUNCATIONS = ("error", "left", "right", "middle")
ON_EXHAUSTED = ("keep", "raise")

MAX_PROMPT = "data.max_prompt_length"
FILTER = "algorithm.filter_groups"


@dataclass(frozen=True)
class CollectorSettings:
    """How rollouts are collected.

    Attributes:
        max_steps: Most turns: ``env.max_steps``, else ``agent_proxy.max_turn``; None where neither is there, which
            is enough for making environments.
        group_n: Trajectories of a group in training: ``env.rollout.n``, else ``es_manager.train.group_size``.
        train_groups: Groups that training wants: ``data.train_batch_size``, else ``es_manager.train.env_groups``.
        prompt_width: Tokens of every prompt, padding included: ``data.max_prompt_length``; None for as few as can be.
        prompt_limit: Most tokens of a prompt: the width, else what the model's context leaves beside a reply.
        truncation: What happens to a longer prompt, ``data.truncation``: ``error``, or it loses its ``left``, ``right``
            or ``middle``.
        filters_groups: Whether training only takes groups whose rewards differ: ``algorithm.filter_groups.enable``.
        max_num_gen_batches: How often it tries, ``algorithm.filter_groups.max_num_gen_batches``; 0 for no limit.
        on_exhausted: What follows then, ``algorithm.filter_groups.on_exhausted``: the last try is kept whole
            (``keep``), or an error (``raise``).
    """

    max_steps: int | None = None
    group_n: int | None = None
    train_groups: int | None = None
    prompt_width: int | None = key(None, MAX_PROMPT, low=1)
    prompt_limit: int | None = None
    truncation: str = key(TRUNCATIONS[0], "data.truncation", allowed=TRUNCATIONS)
    filters_groups: bool = key(False, f"{FILTER}.enable")
    max_num_gen_batches: int = key(10, f"{FILTER}.max_num_gen_batches", low=0)
    on_exhausted: str = key(ON_EXHAUSTED[0], f"{FILTER}.on_exhausted", allowed=ON_EXHAUSTED)

    @classmethod
    def read(cls, config: Any) -> CollectorSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has a value that cannot work.
        """
        width = count(config, MAX_PROMPT, None, low=1)
        return read(
            cls,
            config,
            max_steps=count(config, "env.max_steps", None, low=1) or count(config, "agent_proxy.max_turn", None, low=1),
            group_n=count(config, "env.rollout.n", None, low=1)
            or count(config, "es_manager.train.group_size", None, low=1),
            train_groups=count(config, "data.train_batch_size", None, low=1)
            or count(config, "es_manager.train.env_groups", None, low=1),
            prompt_limit=ContextSettings.read(config).prompt_limit if width is None else width,
        )
