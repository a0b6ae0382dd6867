"""Builds verl's batches from rows of tokens: prompts for generation, and rows for training.

Masks and scores are aligned with ``responses``, which is ``input_ids`` without its first column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen.llm_agent.batches.dataproto import Layout, data_proto, image_objects, object_array, pad_id, token_tensors
from ragen.llm_agent.batches.encoding import EncodedChat
from ragen.llm_agent.batches.metrics import mean_metrics
from ragen.llm_agent.batches.training_rows import TrainingRow, masks_of, reply_lengths, scores_of, signal_of
from ragen.llm_agent.prompts.conversation import Row
from ragen.llm_agent.prompts.settings import ContextSettings
from ragen.validity import env_error

if TYPE_CHECKING:
    from verl import DataProto


@dataclass(frozen=True)
class BatchBuilder:
    """Builds batches.

    Attributes:
        settings: The context manager's settings.
        tokenizer: Provides the padding token.
        processor: Processes images; None for text only.
    """

    settings: ContextSettings
    tokenizer: Any
    processor: Any = None

    def tensors(self, encoded: Sequence[EncodedChat], layout: Layout) -> dict[str, Any]:
        """The tokens of rows; see :func:`.token_tensors`."""
        return token_tensors(encoded, layout, pad_id(self.tokenizer), self.processor)

    def prompts(
        self, rows: Sequence[Row], chats: Sequence[Any], encoded: Sequence[EncodedChat], width: int = 0
    ) -> DataProto:
        """The batch of prompts, padded on the left to at least a width."""
        layout = Layout([len(chat.ids) for chat in encoded], least=width)
        return data_proto(self.tensors(encoded, layout), self.columns(rows, chats, encoded), {})

    def columns(self, rows: Sequence[Row], chats: Sequence[Any], encoded: Sequence[EncodedChat]) -> dict[str, Any]:
        """The objects of rows, for which neither torch nor verl is imported."""
        rollouts = [row.rollout for row in rows]
        objects = {
            "env_ids": _numbers(rollout["env_id"] for rollout in rollouts),
            "group_ids": _numbers(rollout.get("group_id") for rollout in rollouts),
            "tags": object_array(rollout["tag"] for rollout in rollouts),
            "messages_list": object_array(chats),
        }
        if any("correct_answer" in rollout for rollout in rollouts):
            objects["correct_answer"] = object_array(rollout.get("correct_answer") for rollout in rollouts)
        return objects | (image_objects(encoded) if self.processor is not None else {})

    def training(
        self, rows: Sequence[TrainingRow], rollouts: Sequence[dict[str, Any]], width: int | None = None
    ) -> DataProto:
        """The training batch of these rows of some rollouts, padded on the left.

        With a width, the batch has verl's layout for rows of one reply: ``prompts``, padded on the left to at least
        this width, and then ``responses``.

        A failed trajectory is alone in its group: RAGEN's trainers, which compare the rows of equal ``group_ids``, need
        not know of failures.
        """
        encoded, chats = [each.encoded for each in rows], [each.chat for each in rows]
        ends = None if width is None else [chat.replies[0][0] for chat in encoded]
        layout = Layout([len(chat.ids) for chat in encoded], ends, width or 0)
        signal = signal_of(rollouts, self.settings)
        tensors = self.tensors(encoded, layout) | masks_of(rows, self.settings, signal, layout)
        tensors |= scores_of(rows, rollouts, self.settings, layout)
        if width is not None:
            tensors["prompts"] = tensors["input_ids"][:, : layout.first]
        log_probs = [each.log_probs for each in rows if each.length]
        if log_probs and None not in log_probs:
            tensors["rollout_log_probs"] = layout.values([each.log_probs or [] for each in rows])
        shown = [each.row for each in rows]
        errors = [env_error(row.rollout) for row in shown]
        objects = self.columns(shown, chats, encoded)
        objects |= {"episode_ids": _numbers(row.episode for row in shown), "env_error": object_array(errors)}
        groups = zip(objects["group_ids"], shown, errors, strict=True)
        objects["group_ids"] = _numbers(group if error is None else -1 - row.episode for group, row, error in groups)
        return data_proto(tensors, objects, {"metrics": {**mean_metrics(rollouts), **reply_lengths(rows)}})


def _numbers(values: Iterable[Any]) -> np.ndarray:
    """Ids as a column of integers; of objects if one is none."""
    column = object_array(values)
    return column.astype(np.int64) if all(isinstance(value, int | np.integer) for value in column) else column
