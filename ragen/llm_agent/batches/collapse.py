"""The columns from which RAGEN of 2026 measures whether a model's thoughts depend on its prompts ("collapse").

They have the prompt and the thought of each trajectory's first turn, and of every turn with a thought. The prompts
contain the whole history, even where ``max_model_len`` shortens the rows of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ragen.config.schema import CollapseDetection
from ragen.llm_agent.batches.dataproto import object_array
from ragen.llm_agent.prompts.replies import thought_of

Ids = list[int]


def collapse_columns(
    rollouts: Sequence[dict[str, Any]],
    keys: CollapseDetection,
    prompt: Callable[[dict[str, Any], int], Ids],
    tokens: Callable[[str], Ids],
    enable_think: bool,
) -> dict[str, np.ndarray]:
    """The columns for some trajectories.

    Args:
        rollouts: Rollout caches.
        keys: The columns to build.
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
    if keys.first_turn_enabled:
        columns["first_turn_prompt_ids"] = object_array(prompt(each, 0) for each in rollouts)
        columns["first_turn_reasoning_ids"] = object_array(thought(each["history"][0]) for each in rollouts)
    if keys.multi_turn_enabled:
        thoughts = [
            {place: ids for place, turn in enumerate(each["history"]) if (ids := thought(turn))} for each in rollouts
        ]
        asked = ([prompt(each, place) for place in found] for each, found in zip(rollouts, thoughts, strict=True))
        replies = [sum("llm_response" in turn for turn in each["history"]) for each in rollouts]
        columns["all_turns_prompt_ids"] = object_array(asked)
        columns["all_turns_reasoning_ids"] = object_array(list(found.values()) for found in thoughts)
        columns["turn_counts"] = np.array(list(map(len, thoughts)), dtype=int)
        columns["turn_counts_total"] = np.array(replies, dtype=int)
    return columns
