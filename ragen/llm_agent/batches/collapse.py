"""The columns from which RAGEN of 2026 measures whether a model's thoughts depend on its prompts ("collapse").

They have the prompt and the thought of each trajectory's first turn, and of every turn with a thought. The prompts
contain the whole history, even where ``max_model_len`` shortens the rows of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragen.llm_agent.batches.dataproto import object_array
from ragen.llm_agent.prompts.chat_template import Message
from ragen.llm_agent.prompts.replies import THINK, thought_of
from ragen.llm_agent.prompts.settings import CollapseSettings

Chats = Callable[[dict[str, Any], int], list[Message]]


@dataclass(frozen=True)
class CollapseColumns:
    """Builds the columns.

    Attributes:
        settings: The columns to build.
        chat: Returns the chat that asked for a turn, given the rollout cache and the turn's index.
        render: Renders a chat as a prompt, without the tag that opens a reply.
        tokenizer: Tokenizes prompts and thoughts.
        enable_think: Whether replies contain thoughts; if not, there are none.
    """

    settings: CollapseSettings
    chat: Chats
    render: Callable[[list[Message]], str]
    tokenizer: Any
    enable_think: bool

    def of(self, rollouts: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
        """The columns for some trajectories.

        Args:
            rollouts: Rollout caches.

        Returns:
            ``first_turn_prompt_ids``, ``first_turn_reasoning_ids`` (token ids); ``all_turns_prompt_ids``,
            ``all_turns_reasoning_ids`` (for each trajectory, token ids of every turn with a thought), ``turn_counts``
            (the number of these turns) and ``turn_counts_total`` (the number of turns with a reply), int64.
        """
        columns: dict[str, np.ndarray] = {}
        if self.settings.first_turn:
            first = [self._first(rollout) for rollout in rollouts]
            columns["first_turn_prompt_ids"] = object_array([prompt for prompt, _ in first])
            columns["first_turn_reasoning_ids"] = object_array([thought for _, thought in first])
        if self.settings.all_turns:
            turns = [self._thoughtful(rollout) for rollout in rollouts]
            columns["all_turns_prompt_ids"] = object_array([[prompt for prompt, _ in each] for each in turns])
            columns["all_turns_reasoning_ids"] = object_array([[thought for _, thought in each] for each in turns])
            columns["turn_counts"] = np.array([len(each) for each in turns], dtype=int)
            replies = [sum("llm_response" in turn for turn in rollout["history"]) for rollout in rollouts]
            columns["turn_counts_total"] = np.array(replies, dtype=int)
        return columns

    def _first(self, rollout: dict[str, Any]) -> tuple[list[int], list[int]]:
        played = any("llm_response" in turn for turn in rollout["history"][:1])
        return self._prompt(rollout, 0), self._thought(rollout["history"][0]) if played else []

    def _thoughtful(self, rollout: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
        """The prompt and thought of every turn that has a thought."""
        found = []
        for place, turn in enumerate(rollout["history"]):
            thought = self._thought(turn) if "llm_response" in turn else []
            if thought:
                found.append((self._prompt(rollout, place), thought))
        return found

    def _prompt(self, rollout: dict[str, Any], place: int) -> list[int]:
        return self._ids(self.render(self.chat(rollout, place)) + THINK * self.enable_think)

    def _thought(self, turn: dict[str, Any]) -> list[int]:
        thought = thought_of(str(turn["llm_response"])) if self.enable_think else ""
        return self._ids(thought) if thought else []

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]
