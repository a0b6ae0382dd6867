"""The columns from which RAGEN of 2026 measures whether a model's thoughts depend on its prompts ("collapse").

They have the prompt and the thought of each trajectory's first turn, and of every turn with a thought. The prompts
contain the whole history, even where ``max_model_len`` shortens the rows of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ragen.llm_agent.batches.dataproto import object_array
from ragen.llm_agent.prompts.replies import thought_of
from ragen.llm_agent.prompts.settings import CollapseSettings

Ids = list[int]


def collapse_columns(
    rollouts: Sequence[dict[str, Any]],
    settings: CollapseSettings,
    prompt: Callable[[dict[str, Any], int], Ids],
    tokens: Callable[[str], Ids],
    enable_think: bool,
) -> dict[str, np.ndarray]:
    """The columns for some trajectories.

    Args:
        rollouts: Rollout caches.
        settings: The columns to build.
        prompt: The tokens of the chat that asked for a turn, given the rollout cache and the turn's index.
        tokens: Tokenizes thoughts.
        enable_think: Whether replies contain thoughts; if not, there are none.

    Returns:
        ``first_turn_prompt_ids``, ``first_turn_reasoning_ids`` (token ids); ``all_turns_prompt_ids``,
        ``all_turns_reasoning_ids`` (for each trajectory, token ids of every turn with a thought), ``turn_counts``
        (the number of these turns) and ``turn_counts_total`` (the number of turns with a reply), int64.
    """

    def thought(turn: dict[str, Any]) -> Ids:
        text = thought_of(str(turn.get("llm_response", ""))) if enable_think else ""
        return tokens(text) if text else []

    columns: dict[str, np.ndarray] = {}
    if settings.first_turn:
        columns["first_turn_prompt_ids"] = object_array(prompt(each, 0) for each in rollouts)
        columns["first_turn_reasoning_ids"] = object_array(thought(each["history"][0]) for each in rollouts)
    if settings.all_turns:
        thoughts = [list(map(thought, each["history"])) for each in rollouts]
        columns["all_turns_prompt_ids"] = object_array(
            [prompt(each, place) for place, ids in enumerate(found) if ids]
            for each, found in zip(rollouts, thoughts, strict=True)
        )
        columns["all_turns_reasoning_ids"] = object_array(list(filter(None, found)) for found in thoughts)
        columns["turn_counts"] = np.array([sum(map(bool, found)) for found in thoughts], dtype=int)
        replies = [sum("llm_response" in turn for turn in each["history"]) for each in rollouts]
        columns["turn_counts_total"] = np.array(replies, dtype=int)
    return columns
