"""The two batches of a context manager, as RAGEN makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen.llm_agent.config.context import FULL, ContextSettings
from ragen.llm_agent.prompting.chat_template import ChatTemplate
from ragen.llm_agent.prompting.conversation import Message
from ragen.llm_agent.prompting.prompts import TagPrompt
from ragen.llm_agent.quirks.chats import Chat, RagenNarrator
from ragen.llm_agent.quirks.columns import TurnTokens, masks, score_columns, turn_score_columns
from ragen.llm_agent.rollout.metrics import mean_metrics, overall_metrics
from ragen.llm_agent.tokens.batches import asked
from ragen.llm_agent.tokens.dataproto import data_proto, token_tensors
from ragen.llm_agent.tokens.encoding import EncodedChat
from ragen.llm_agent.tokens.normalization import group_of, normalize

if TYPE_CHECKING:
    from verl import DataProto

    from ragen.llm_agent.tokens.collapse import CollapseColumns


class RagenBatches:
    """Makes batches as RAGEN does."""

    def __init__(
        self,
        settings: ContextSettings,
        prompts: dict[str, TagPrompt],
        env_nums: Mapping[str, int],
        tokenizer: Any,
        template: ChatTemplate,
        opening_tag: str,
    ) -> None:
        """Take the context manager's parts.

        Args:
            settings: Its settings.
            prompts: What each tag's environments are told.
            env_nums: How many environments each tag has.
            tokenizer: With the tokens that begin and end messages in ChatML or Llama 3.
            template: Renders chats.
            opening_tag: What prompts end with.

        Raises:
            ConfigError: The tokenizer has other tokens.
        """
        self._settings, self._env_nums = settings, env_nums
        self._tokenizer, self._template, self._opening_tag = tokenizer, template, opening_tag
        self._turn_tokens = TurnTokens.of(tokenizer)
        self._narrator = RagenNarrator(settings, prompts, self._length)

    def prompts(self, rollouts: Sequence[dict[str, Any]]) -> DataProto:
        """The batch for generation."""
        columns, ids = self.prompt_columns(rollouts)
        return data_proto(self._padded(ids), columns, {})

    def prompt_columns(
        self, rollouts: Sequence[dict[str, Any]], with_tokens: bool = True
    ) -> tuple[dict[str, np.ndarray], list[list[int]]]:
        """The columns of :meth:`prompts`, and each prompt's tokens, always; imports neither torch nor verl."""
        chats = self._narrator.prompt_chats(rollouts)
        texts = self._template.render([chat.messages for chat in chats], add_generation_prompt=True)
        return self._objects(chats, rollouts), self._ids([text + self._opening_tag for text in texts])

    def training(self, rollouts: Sequence[dict[str, Any]], collapse: CollapseColumns | None = None) -> DataProto:
        """The batch for training.

        Args:
            rollouts: Rollout caches; generation 2025 shortens their histories.
            collapse: Makes the columns that collapse detection reads; None leaves them out.
        """
        settings = self._settings
        chats = self._narrator.training_chats(rollouts)
        rewards = [[turn.get("reward", 0.0) for turn in self._rewarded(rollout)] for rollout in rollouts]
        extra = {} if collapse is None else collapse.of(rollouts)
        tensors = self._padded(self._ids(self._template.render([chat.messages for chat in chats])))
        ids, attention = tensors["input_ids"], tensors["attention_mask"]
        loss, replies = masks(ids, attention, self._turn_tokens, settings)
        if settings.use_turn_scores and settings.window_mode == FULL:
            scores = turn_score_columns(ids, self._turn_tokens, rewards)
        else:
            totals = self._totals(rollouts, rewards)
            scores = score_columns(ids.shape[1] - 1, [totals[chat.episode] for chat in chats])
        tensors |= {"loss_mask": loss, "rm_scores": scores, "original_rm_scores": scores.clone()}
        metrics = self._metrics(rollouts, float(replies.float().sum(-1).mean()))
        return data_proto(tensors, self._objects(chats, rollouts, is_training=True) | extra, {"metrics": metrics})

    def asked_chat(self, rollout: dict[str, Any], place: int) -> list[Message]:
        """The chat that asked for a turn, without warnings; of a trajectory without a turn, its opening."""
        learnt = rollout | {"history": self._narrator.learnt_history(rollout)}
        return self._narrator.chat(rollout, asked(learnt, place)["history"], warned=False)

    @staticmethod
    def array(values: list[Any]) -> np.ndarray:
        """An array of objects, with more dimensions where the lists agree in their lengths."""
        return np.array(values, dtype=object)

    def _rewarded(self, rollout: dict[str, Any]) -> list[dict[str, Any]]:
        """The turns whose rewards count; in 2025 the cache has no others any more."""
        return self._narrator.learnt_history(rollout) if self._settings.generation.is_2026 else rollout["history"]

    def _length(self, messages: list[Message], is_prompt: bool, with_tag: bool) -> int:
        text = self._template.render([messages], add_generation_prompt=is_prompt)[0]
        return len(self._tokenizer(text + self._opening_tag * with_tag, add_special_tokens=False)["input_ids"])

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer(texts, add_special_tokens=False)["input_ids"]

    def _padded(self, ids: list[list[int]]) -> dict[str, Any]:
        pad = self._tokenizer.pad_token_id
        filler = self._tokenizer.eos_token_id or 0 if pad is None else pad
        return token_tensors([EncodedChat(row) for row in ids], filler)

    def _objects(
        self, chats: Sequence[Chat], rollouts: Sequence[dict[str, Any]], is_training: bool = False
    ) -> dict[str, Any]:
        kind = int if self._settings.generation.is_2026 else object
        owners = [rollouts[chat.episode] for chat in chats]
        objects = {
            "env_ids": np.array([each["env_id"] for each in owners], dtype=kind),
            "group_ids": np.array([each["group_id"] for each in owners], dtype=kind),
            "messages_list": np.array([chat.messages for chat in chats], dtype=object),
        }
        if is_training and self._settings.window_mode != FULL:
            objects["episode_ids"] = np.array([chat.episode for chat in chats], dtype=int)
            objects["uid"] = np.array([each.get("uid", each["env_id"]) for each in owners], dtype=object)
        return objects

    def _totals(self, rollouts: Sequence[dict[str, Any]], rewards: Sequence[Sequence[float]]) -> list[float]:
        sums = np.array([sum(each) for each in rewards], dtype=np.float32)  # and so is what their sums lose
        totals = (sums + np.array([each.get("penalty", 0) for each in rollouts], dtype=np.float32)).tolist()
        if self._settings.method == "identity":
            return totals
        return normalize(totals, group_of(rollouts, self._settings.grouping), self._settings.method).tolist()

    def _metrics(self, rollouts: Sequence[dict[str, Any]], response_length: float) -> dict[str, float]:
        metrics = mean_metrics(rollouts, self._env_nums)
        if self._settings.generation.is_2026:
            metrics |= overall_metrics(rollouts, metrics)
        return metrics | {"response_length": response_length}


def history_objects(rollouts: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """What a batch at validation has besides, in 2026: one entry of each trajectory, however many rows it has."""
    return {
        "history": np.array([rollout.get("history", []) for rollout in rollouts], dtype=object),
        "metrics": np.array([rollout.get("metrics", {}) for rollout in rollouts], dtype=object),
    }
