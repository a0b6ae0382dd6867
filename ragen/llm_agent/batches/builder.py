"""Builds the batches of a context manager from rollout caches: prompts for generation, and rows for training.

Masks and scores are aligned with ``responses``, which is ``input_ids`` without its first column. A context that is too
long loses its oldest turns one by one, but never its instruction or its last turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen.errors import ConfigError
from ragen.llm_agent.batches.collapse import CollapseColumns
from ragen.llm_agent.batches.dataproto import (
    Layout,
    data_proto,
    image_objects,
    object_array,
    pad_id,
    token_tensors,
)
from ragen.llm_agent.batches.encoding import ChatEncoder, EncodedChat
from ragen.llm_agent.batches.metrics import mean_metrics, overall_metrics
from ragen.llm_agent.batches.training_rows import (
    TrainingRow,
    exchanged_row,
    masks_of,
    reply_lengths,
    sampled_rows,
    scores_of,
    signal_of,
)
from ragen.llm_agent.prompts.chat_template import Message
from ragen.llm_agent.prompts.conversation import (
    ConversationBuilder,
    Row,
    prompt_rows,
    shortened,
    trajectory_rows,
    turn_rows,
)
from ragen.llm_agent.prompts.settings import FULL, MAX_MODEL_LEN, SAMPLED, ContextSettings
from ragen.validity import env_error

if TYPE_CHECKING:
    from verl import DataProto

Encode = Callable[[list[list[Message]]], list[EncodedChat]]


@dataclass(frozen=True)
class BatchBuilder:
    """Builds batches.

    Attributes:
        settings: The context manager's settings.
        conversations: Builds the chats of rows.
        encoder: Tokenizes chats.
        tokenizer: Provides the padding token.
        processor: Processes images; None for text only.
    """

    settings: ContextSettings
    conversations: ConversationBuilder
    encoder: ChatEncoder
    tokenizer: Any
    processor: Any = None

    def prompts(self, rollouts: Sequence[dict[str, Any]]) -> DataProto:
        """The batch for generation; see :meth:`~ragen.llm_agent.ctx_manager.ContextManager.get_lm_inputs`."""
        rows, chats, encoded = self._prompts(rollouts)
        layout = Layout([len(chat.ids) for chat in encoded])
        return data_proto(self._tokens(encoded, layout), self._objects(rows, chats, encoded), {})

    def prompt_columns(
        self, rollouts: Sequence[dict[str, Any]], with_tokens: bool = True
    ) -> tuple[dict[str, np.ndarray], list[list[int] | None]]:
        """The columns of :meth:`prompts`, and each prompt's tokens; imports neither torch nor verl.

        Args:
            rollouts: Rollout caches.
            with_tokens: Whether to return tokens; if not, they are None for every prompt that is certain to fit.
        """
        if with_tokens or self.processor is not None:
            rows, chats, encoded = self._prompts(rollouts)
            return self._objects(rows, chats, encoded), [chat.ids for chat in encoded]
        rows, limit = prompt_rows(rollouts, self.settings.window), self.settings.prompt_limit
        chats = [self.conversations.messages(row) for row in rows]
        ids: list[list[int] | None] = [None] * len(rows)
        for place, chat in enumerate(chats):
            if limit is not None and not surely_fits(chat, limit):
                fitted, (chats[place],), (encoded_chat,) = self._encode([rows[place]], self.encoder.prompts, limit)
                rows[place], ids[place] = fitted[0], encoded_chat.ids
        return self._objects(rows, chats, ()), ids

    def _prompts(self, rollouts: Sequence[dict[str, Any]]) -> tuple[list[Row], list[list[Message]], list[EncodedChat]]:
        rows = prompt_rows(rollouts, self.settings.window)
        return self._encode(rows, self.encoder.prompts, self.settings.prompt_limit)

    def training(
        self,
        rollouts: Sequence[dict[str, Any]],
        collapse: CollapseColumns | None = None,
        with_histories: bool = False,
    ) -> DataProto:
        """The batch for training; see :meth:`~ragen.llm_agent.ctx_manager.ContextManager.get_lm_inputs`.

        Args:
            rollouts: Rollout caches.
            collapse: Builds the columns for collapse detection; None omits them.
            with_histories: Whether to add the columns ``history`` and ``metrics``, those of the row's trajectory.
        """
        whole = self.settings.window_mode == FULL
        rows: list[TrainingRow] = []
        unknown: list[Row] = []
        for row in (trajectory_rows if whole else turn_rows)(rollouts, self.settings.window):
            reads = self.settings.training_tokens == SAMPLED
            sampled = sampled_rows(row, 0 if whole else row.stop - 1) if reads else None
            for part, exchanges in sampled or ():
                reply = self.conversations.messages(replace(part, start=part.stop - 1))[-1]
                rows.append(exchanged_row(part, exchanges, reply))
            unknown += [row] if sampled is None else []
        shown = self._encode(unknown, self.encoder.rollouts, self.settings.max_model_len) if unknown else ()
        for row, chat, encoded in zip(*shown, strict=True):
            replies = encoded.replies if whole else encoded.replies[-1:]
            rows.append(TrainingRow(row, chat, replace(encoded, replies=replies)))
        rows.sort(key=lambda each: (each.row.episode, each.row.stop))
        batch = self.learning_batch(rows, rollouts)
        episodes = [row.row.episode for row in rows]
        columns = {} if collapse is None else collapse.of(rollouts)
        if with_histories:
            columns |= {name: object_array(each.get(name, []) for each in rollouts) for name in ("history", "metrics")}
        if not whole:
            columns["uid"] = object_array(each.get("uid", each["env_id"]) for each in rollouts)
        batch.non_tensor_batch.update({name: values[episodes] for name, values in columns.items()})
        return batch

    def asked_chat(self, rollout: dict[str, Any], place: int) -> list[Message]:
        """The complete chat that asked for a turn, without cuts by a window or a length limit.

        Args:
            rollout: A rollout cache.
            place: The turn, from 0.
        """
        return self.conversations.messages(Row(0, asked(rollout, place), 0, place + 1, is_prompt=True))

    def learning_batch(
        self, rows: Sequence[TrainingRow], rollouts: Sequence[dict[str, Any]], layout: Layout | None = None
    ) -> DataProto:
        """The training batch of these rows of some rollouts, padded on the left unless another layout is given."""
        encoded = [each.encoded for each in rows]
        layout = layout or Layout([len(chat.ids) for chat in encoded])
        tensors = self._tokens(encoded, layout) | masks_of(
            rows, self.settings, signal_of(rollouts, self.settings), layout
        )
        tensors |= scores_of(rows, rollouts, self.settings, layout)
        log_probs = [each.log_probs for each in rows if each.length]
        if log_probs and None not in log_probs:
            tensors["rollout_log_probs"] = layout.values([each.log_probs or [] for each in rows])
        objects = self._objects([each.row for each in rows], [each.chat for each in rows], encoded)
        objects["episode_ids"] = self._numbers(each.row.episode for each in rows)
        objects |= self._failures([each.row for each in rows])
        means = mean_metrics(rollouts)
        metrics = {**means, **overall_metrics(rollouts, means), **reply_lengths(rows)}
        return data_proto(tensors, objects, {"metrics": metrics})

    def _encode(
        self, rows: list[Row], encode: Encode, limit: int | None
    ) -> tuple[list[Row], list[list[Message]], list[EncodedChat]]:
        """The rows, chats and tokens of a batch; rows over the limit lose their oldest turns."""
        chats = [self.conversations.messages(row) for row in rows]
        encoded = encode(chats)
        for place, chat in enumerate(encoded):
            if limit is not None and len(chat.ids) > limit:
                rows[place] = self._shortened(rows[place], encode, limit)
                chats[place] = self.conversations.messages(rows[place])
                encoded[place] = encode([chats[place]])[0]
        return rows, chats, encoded

    def _shortened(self, row: Row, encode: Encode, limit: int) -> Row:
        return shortened(row, limit, self.settings, lambda row: len(encode([self.conversations.messages(row)])[0].ids))

    def _tokens(self, encoded: Sequence[EncodedChat], layout: Layout) -> dict[str, Any]:
        return token_tensors(encoded, layout, pad_id(self.tokenizer), self.processor)

    def _objects(self, rows: Sequence[Row], chats: Sequence[Any], encoded: Sequence[EncodedChat]) -> dict[str, Any]:
        rollouts = [row.rollout for row in rows]
        objects = {
            "env_ids": self._numbers(rollout["env_id"] for rollout in rollouts),
            "group_ids": self._numbers(rollout.get("group_id") for rollout in rollouts),
            "tags": object_array(rollout["tag"] for rollout in rollouts),
            "messages_list": object_array(chats),
        }
        if any("correct_answer" in rollout for rollout in rollouts):
            objects["correct_answer"] = object_array(rollout.get("correct_answer") for rollout in rollouts)
        return objects | (image_objects(encoded) if self.processor is not None else {})

    def _failures(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """``env_error``, and ``group_ids`` in which each failed trajectory is alone.

        RAGEN's trainers compare the rows of equal ``group_ids``; they need not know of failures.
        """
        errors = [env_error(row.rollout) for row in rows]
        groups = [
            row.rollout.get("group_id") if error is None else -1 - row.episode
            for row, error in zip(rows, errors, strict=True)
        ]
        return {"env_error": object_array(errors), "group_ids": self._numbers(groups)}

    @staticmethod
    def _numbers(values: Iterable[Any]) -> np.ndarray:
        """Ids as a column of integers; of objects if one is none."""
        column = object_array(values)
        return column.astype(np.int64) if all(isinstance(value, int | np.integer) for value in column) else column

    def check_lengths(self, tags: Iterable[str]) -> None:
        """Check that every tag's first prompt leaves room for a state.

        Raises:
            ConfigError: An instruction is too long.
        """
        limit = self.settings.prompt_limit
        for tag in tags:
            row = prompt_rows([{"tag": tag, "history": [{"state": "", "actions_left": 1}]}], None)[0]
            length = len(self.encoder.prompts([self.conversations.messages(row)])[0].ids)
            if limit is not None and length > limit:
                raise ConfigError(
                    f"{MAX_MODEL_LEN} is {self.settings.max_model_len}, which leaves {limit} tokens for a prompt, and "
                    f"the instruction of custom_envs.{tag} alone takes {length}; raise the limit, or shorten it."
                )


def surely_fits(chat: Sequence[Message], limit: int) -> bool:
    """Whether a text prompt is so short that it cannot have more tokens than the limit.

    A token has at least one byte of the normalized text, and normalization lengthens only texts that are not ASCII.
    """
    texts = [message["content"] for message in chat]
    most = sum(len(text) if text.isascii() else len(text) * _LONGEST_CHARACTER for text in texts)
    return most + _TEMPLATE_TOKENS * (len(chat) + 1) <= limit


def asked(rollout: dict[str, Any], place: int) -> dict[str, Any]:
    """A rollout cache as it was when the turn's reply was requested: the earlier turns, and the turn's state."""
    history = rollout["history"]
    open_turn = [{key: value for key, value in turn.items() if key in _OPEN} for turn in history[place : place + 1]]
    return rollout | {"history": [*history[:place], *open_turn]}


_TEMPLATE_TOKENS = 64  # more than a chat template, or an opening tag, adds to a message
_LONGEST_CHARACTER = 36  # maximum bytes of a character after Unicode normalization
_OPEN = ("state", "images", "actions_left", "manager_invalid_action")
