"""Batches exactly as RAGEN builds them, including its errors: ``quirks: true``, for comparisons with RAGEN.

Without quirks, :mod:`ragen.llm_agent.tokens.batches` builds correct batches. With them, ``generation`` selects the
behavior to reproduce:

====================================================================================================  ======
what RAGEN does                                                                                       which
====================================================================================================  ======
a window shortens the caller's history for good: turns count from 1 again, earlier rewards are lost    2025
a training row drops the last turn of a history, even if it has a reply                                2025
the line about a turn without valid actions is in prompts, but not in training rows                    2026
a chat that is too long may lose a question but keep its answer: the loss is then on questions         2026
in rows of single turns, the loss begins at the token before the reply's header                        2026
the loss mask is off by one: each column refers to the token before that of ``responses``              both
turn tokens within a reply begin new turns, so that questions and answers are swapped                  both
symbols and actions are the defaults of the environment's type; ``env_config`` is ignored              both
``original_rm_scores`` equals ``rm_scores``; the score is in the last column                           both
turn scores are at the line break after a reply, without penalties; those of hidden turns are lost     both
columns of objects have several dimensions if their lists have equal lengths                           both
====================================================================================================  ======

Input from which no batch can be built, such as a history without turns, raises a clear error instead of an
``IndexError``.

Masks and scores are computed as in RAGEN, which counts the tokens that begin messages: the first one begins the system
message, even ones begin questions and odd ones answers, even if a chat was cut or a reply contains such tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ragen.errors import ConfigError, InputError
from ragen.llm_agent.config.context import FULL, LIMITED, SINGLE, ContextSettings
from ragen.llm_agent.prompting.chat_template import ChatTemplate, Message
from ragen.llm_agent.prompting.conversation import ConversationBuilder, Row, row_of
from ragen.llm_agent.tokens.batches import BatchBuilder, asked
from ragen.llm_agent.tokens.dataproto import data_proto
from ragen.llm_agent.tokens.encoding import EncodedChat
from ragen.llm_agent.tokens.training_rows import normalized, signal_of
from ragen.validity import env_error

if TYPE_CHECKING:
    import torch
    from verl import DataProto

    from ragen.llm_agent.tokens.collapse import CollapseColumns

_KNOWN = (("<|im_start|>", "<|im_end|>"), ("<|start_header_id|>", "<|eot_id|>"))


@dataclass(frozen=True)
class TurnTokens:
    """The tokens that begin and end messages.

    Attributes:
        start: The token that begins a message.
        end: The token that ends it.
        has_line_break: Whether one more token follows the end of a message (ChatML).
    """

    start: int
    end: int
    has_line_break: bool

    @classmethod
    def of(cls, tokenizer: Any) -> TurnTokens:
        """The turn tokens of a tokenizer.

        Raises:
            ConfigError: It has neither those of ChatML nor those of Llama 3, the only ones that RAGEN knows.
        """
        vocabulary = tokenizer.get_vocab()
        for number, (start, end) in enumerate(_KNOWN):
            if start in vocabulary and end in vocabulary:
                return cls(vocabulary[start], vocabulary[end], number == 0)
        raise ConfigError(
            f"quirks is true, and {type(tokenizer).__name__} has none of {_KNOWN}, by which RAGEN finds replies; use "
            "quirks: false, which works with any chat template."
        )


@dataclass(frozen=True)
class RagenEncoder:
    """Tokenizes chats without locating replies, and appends the opening tag to every prompt.

    Attributes:
        tokenizer: Any tokenizer.
        template: Renders chats.
    """

    tokenizer: Any
    template: ChatTemplate

    def prompts(self, chats: Sequence[Sequence[Message]], opening_tag: str) -> list[EncodedChat]:
        """See :meth:`.ChatEncoder.prompts`."""
        return self._encoded([text + opening_tag for text in self.template.render(chats, add_generation_prompt=True)])

    def rollouts(self, chats: Sequence[Sequence[Message]], opening_tag: str = "") -> list[EncodedChat]:
        """See :meth:`.ChatEncoder.rollouts`; replies are not located."""
        return self._encoded(self.template.render(chats))

    def _encoded(self, texts: list[str]) -> list[EncodedChat]:
        return [EncodedChat(ids) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]


@dataclass(frozen=True)
class RagenBatches(BatchBuilder):
    """Builds batches as RAGEN does; everything else is inherited from :class:`.BatchBuilder`.

    Attributes:
        env_nums: Number of environments of each tag.
        turn_tokens: The tokens that begin and end messages.
    """

    env_nums: Mapping[str, int] = field(default_factory=dict)
    turn_tokens: TurnTokens = field(default_factory=lambda: TurnTokens(0, 0, False))

    @classmethod
    def of(
        cls, conversations: ConversationBuilder, tokenizer: Any, template: ChatTemplate, env_nums: Mapping[str, int]
    ) -> Self:
        """Create it with the encoder of a tokenizer.

        Raises:
            ConfigError: RAGEN does not know the tokenizer's turn tokens.
        """
        tokens = TurnTokens.of(tokenizer)
        encoder = RagenEncoder(tokenizer, template)
        settings, tag = conversations.settings, conversations.opening_tag
        return cls(settings, conversations, encoder, tag, tokenizer, env_nums=env_nums, turn_tokens=tokens)

    def prompt_columns(
        self, rollouts: Sequence[dict[str, Any]], with_tokens: bool = True
    ) -> tuple[dict[str, np.ndarray], list[list[int] | None]]:
        """See :meth:`.BatchBuilder.prompt_columns`; tokens are always returned."""
        return super().prompt_columns(rollouts)

    def _prompts(self, rollouts: Sequence[dict[str, Any]]) -> tuple[list[Row], list[list[Message]], list[EncodedChat]]:
        rows = [self._prompt_row(*each) for each in enumerate(rollouts)]
        chats = [self._fitted(row) for row in rows]
        return rows, chats, self._encode_prompts(chats)

    def _prompt_row(self, episode: int, rollout: dict[str, Any]) -> Row:
        if self.settings.generation.is_2026:
            return row_of(episode, rollout, len(rollout["history"]), self.settings.window, True)
        _last(rollout)
        self._shorten(rollout)
        row = Row(episode, rollout, 0, len(rollout["history"]), True, is_warned=False)
        if any(message["role"] != "assistant" for message in self.conversations.messages(row)[2::2]):
            raise InputError(f"env {rollout.get('env_id')}: a turn has a reward and no reply; step it first.")
        return row

    def training(
        self,
        rollouts: Sequence[dict[str, Any]],
        collapse: CollapseColumns | None = None,
        with_histories: bool = False,
    ) -> DataProto:
        """See :meth:`.BatchBuilder.training`; generation 2025 shortens the histories of the caches.

        Raises:
            InputError: No trajectory has a reply.
        """
        settings = self.settings
        stops = [self._learnt(rollout) for rollout in rollouts]
        rows = [row for each in zip(range(len(stops)), rollouts, stops, strict=True) for row in self._rows(*each)]
        if not rows:
            raise InputError("no trajectory has a reply, so there is nothing to train on; play at least one turn.")
        rewards = [
            [turn.get("reward", 0.0) for turn in rollout["history"][:stop]]
            for rollout, stop in zip(rollouts, stops, strict=True)
        ]
        chats = [self._fitted(row) for row in rows]
        tensors = self._tokens(self._encode_rollouts(chats))
        ids, attention = tensors["input_ids"], tensors["attention_mask"]
        loss, replies = _masks(ids, attention, self.turn_tokens, settings)
        if settings.use_turn_scores and settings.window_mode == FULL:
            scores = _turn_scores(ids, self.turn_tokens, rewards)
        else:
            totals = self._totals(rollouts, rewards)
            scores = _scores(ids.shape[1] - 1, [totals[row.episode] for row in rows])
        signal = signal_of(rollouts, settings)
        loss[[not signal[row.episode] for row in rows]] = 0  # RAGEN's runs ended where an environment failed
        tensors |= {"loss_mask": loss, "rm_scores": scores, "original_rm_scores": scores.clone()}
        objects = self._objects(rows, chats, ()) | ({} if collapse is None else collapse.of(rollouts))
        if any(env_error(rollout) for rollout in rollouts):
            objects |= self._failures(rows)
        if with_histories:  # one entry per trajectory, for any number of rows
            objects |= {
                name: self.array([rollout.get(name, nothing) for rollout in rollouts])
                for name, nothing in (("history", []), ("metrics", {}))
            }
        metrics = self._metrics(rollouts, self.env_nums)
        return data_proto(
            tensors, objects, {"metrics": metrics | {"response_length": float(replies.float().sum(-1).mean())}}
        )

    def _rows(self, episode: int, rollout: dict[str, Any], stop: int) -> list[Row]:
        """The row of a trajectory, or in turn modes a row for each of its replies."""
        if self.settings.window_mode == FULL:
            return [Row(episode, rollout, 0, stop, is_prompt=False, is_warned=False)]
        return [
            row_of(episode, rollout, place + 1, self.settings.window, False, is_warned=False)
            for place, turn in enumerate(rollout["history"][:stop])
            if "llm_response" in turn
        ]

    def _learnt(self, rollout: dict[str, Any]) -> int:
        """Number of turns of a trajectory to train on; generation 2025 removes the others from its cache."""
        if not self.settings.generation.is_2026:
            if "state" in _last(rollout):
                rollout["history"] = rollout["history"][:-1]
            self._shorten(rollout)
        return _closed(rollout["history"]) if self.settings.generation.is_2026 else len(rollout["history"])

    def _shorten(self, rollout: dict[str, Any]) -> None:
        """Cut a trajectory's history to the window; its cache is changed."""
        if self.settings.window is not None:
            rollout["history"] = rollout["history"][-self.settings.window :]

    def _fitted(self, row: Row) -> list[Message]:
        """The chat of a row without its oldest turns or messages, as many as needed to fit (2026).

        Unless it is a single message, whole rounds are removed: a question, its answer, and the next message if it has
        a reward, although that message also asks the next question.
        """
        messages = self.conversations.messages(row)
        if self.settings.window_mode == SINGLE:
            while row.start < row.stop - 1 and not self._fits(messages, row, self.opening_tag):
                row = row.without_oldest(1)
                messages = self.conversations.messages(row)
        elif self.settings.generation.is_2026:
            while len(messages) > 3 and not self._fits(messages, row):
                del messages[1 : 1 + _oldest(messages[1:])]
        return messages

    def _fits(self, messages: list[Message], row: Row, opening_tag: str = "") -> bool:
        limit = self.settings.max_model_len
        encode = self.encoder.prompts if row.is_prompt else self.encoder.rollouts
        return limit is None or len(encode([messages], opening_tag)[0].ids) <= limit

    def asked_chat(self, rollout: dict[str, Any], place: int) -> list[Message]:
        """See :meth:`.BatchBuilder.asked_chat`; for a trajectory without turns, the chat's opening."""
        history = rollout["history"]
        learnt = asked(rollout | {"history": history[: _closed(history)]}, place)
        return self.conversations.messages(Row(0, learnt, 0, len(learnt["history"]), is_prompt=True, is_warned=False))

    @staticmethod
    def array(values: list[Any]) -> np.ndarray:
        """An array of objects; lists of equal lengths become further dimensions."""
        return np.array(values, dtype=object)

    def _objects(self, rows: Sequence[Row], chats: Sequence[Any], encoded: Sequence[EncodedChat]) -> dict[str, Any]:
        kind = int if self.settings.generation.is_2026 else object
        owners = [row.rollout for row in rows]
        objects = {
            "env_ids": np.array([each["env_id"] for each in owners], dtype=kind),
            "group_ids": np.array([each["group_id"] for each in owners], dtype=kind),
            "messages_list": self.array(list(chats)),
        }
        if rows and not rows[0].is_prompt and self.settings.window_mode != FULL:
            objects["episode_ids"] = np.array([row.episode for row in rows], dtype=int)
            objects["uid"] = self.array([each.get("uid", each["env_id"]) for each in owners])
        return objects

    def _totals(self, rollouts: Sequence[dict[str, Any]], rewards: Sequence[Sequence[float]]) -> list[float]:
        sums = np.array([sum(each) for each in rewards], dtype=np.float32)  # rounded as in RAGEN
        totals = (sums + np.array([each.get("penalty", 0) for each in rollouts], dtype=np.float32)).tolist()
        return normalized(totals, rollouts, self.settings)


def _last(rollout: dict[str, Any]) -> dict[str, Any]:
    if not rollout["history"]:
        raise InputError(f"env {rollout.get('env_id')} has no history; reset it first.")
    return rollout["history"][-1]


def _closed(history: Sequence[dict[str, Any]]) -> int:
    """Number of turns of a history, excluding an open one at its end."""
    is_open = bool(history) and "state" in history[-1] and "llm_response" not in history[-1]
    return len(history) - is_open


def _oldest(messages: Sequence[Message]) -> int:
    """Number of messages to remove at once."""
    roles = [message["role"] for message in messages[:3]]
    if roles[:2] != ["user", "assistant"]:
        return 1
    return 3 if roles[2] == "user" and "Reward" in messages[2]["content"] else 2


def _masks(
    ids: torch.Tensor, attention: torch.Tensor, tokens: TurnTokens, settings: ContextSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss mask and the mask of replies.

    Args:
        ids: ``(rows, tokens)``, padded on the left.
        attention: 0 where padded, of the same shape.
        tokens: The tokens that begin messages.
        settings: The window mode, and whether the loss includes questions.

    Returns:
        Both ``(rows, tokens - 1)``; bool in generation 2025, float32 in 2026.
    """
    if settings.window_mode == FULL:
        count = (ids == tokens.start).cumsum(-1)
        replies = (count % 2 == 1) & (count > 1)
        loss = replies if settings.enable_response_mask else count > 1
        kept = loss[:, :-1], replies[:, :-1]
        return tuple(mask.float() for mask in kept) if settings.generation.is_2026 else kept  # type: ignore[return-value]
    mask = attention.new_zeros((len(ids), ids.shape[1] - 1)).float()
    for row, row_ids in enumerate(ids):
        starts = (row_ids == tokens.start).nonzero()[:, 0].tolist()
        chosen = starts[-1:] if settings.window_mode == LIMITED else starts[2:3]
        if chosen and chosen[0] > 0:
            mask[row, chosen[0] - 1 :] = 1
        padding = int((attention[row] == 0).sum())
        mask[row, : max(0, padding - 1)] = 0
    return mask, mask


def _scores(width: int, totals: Sequence[float]) -> torch.Tensor:
    """Scores in the last column; float32 ``(rows, width)``."""
    import torch

    scores = torch.zeros((len(totals), width), dtype=torch.float32)
    scores[:, -1] = torch.tensor(list(totals), dtype=torch.float32)
    return scores


def _turn_scores(ids: torch.Tensor, tokens: TurnTokens, rewards: Sequence[Sequence[float]]) -> torch.Tensor:
    """Each turn's reward after its reply; float32 ``(rows, tokens - 1)``.

    Args:
        ids: The rows.
        tokens: The tokens that begin and end messages.
        rewards: The rewards of each row's turns, in order.
    """
    import torch

    scores = torch.zeros(ids.shape, dtype=torch.float32)
    count = (ids == tokens.start).cumsum(-1)
    for turn, column in enumerate(zip_longest(*rewards, fillvalue=0.0)):
        ends = (ids == tokens.end) & (count == 2 * turn + 3)
        ends[~ends.any(dim=-1), -1] = True
        for row, reward in enumerate(column):
            scores[row, ends[row]] = float(reward)
    return (scores.roll(1, dims=-1) if tokens.has_line_break else scores)[:, 1:]
