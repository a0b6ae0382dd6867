"""Environment states to prompts, replies to actions, and finished trajectories to training batches.

Usage in a turn loop::

    env_outputs = es_manager.reset()
    for _ in range(max_turn):
        lm_inputs = ctx_manager.get_lm_inputs(env_outputs, prepare_for_update=False)
        lm_outputs = ...                                 # DataProto with `responses` or `response_texts`
        env_outputs = es_manager.step(ctx_manager.get_env_inputs(lm_outputs))
    rollouts = ctx_manager.formulate_rollouts(es_manager.get_rollout_states())

Masks and scores are aligned with ``responses``, which is ``input_ids`` without its first column: column t of each
refers to the token after token t. A trajectory's score is on the last token that the model wrote.

If an actor returns the tokens it received and sampled, training rows consist of exactly these tokens; see
:mod:`ragen.llm_agent.batches.training_rows` for which and how many rows this makes.

A context that is too long loses its oldest turns, one by one, but never its instruction or its last turn. Prompts are
built in :mod:`ragen.llm_agent.prompts.conversation` from the texts in :mod:`~ragen.llm_agent.prompts.templates`,
replies are parsed in :mod:`~ragen.llm_agent.prompts.replies`, and batches are built in
:mod:`ragen.llm_agent.batches.builder`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ragen.config.loading import as_config
from ragen.errors import ConfigError, InputError
from ragen.llm_agent.batches.builder import BatchBuilder
from ragen.llm_agent.batches.collapse import collapse_columns
from ragen.llm_agent.batches.dataproto import AnyBatch, PromptBatch, RawReply, TokenExchange, object_array
from ragen.llm_agent.batches.encoding import ChatEncoder, EncodedChat
from ragen.llm_agent.batches.training_rows import TrainingRow, exchanged_row, sampled_rows
from ragen.llm_agent.environments import custom_env, environment_tags
from ragen.llm_agent.prompts.chat_template import Message
from ragen.llm_agent.prompts.conversation import (
    ConversationBuilder,
    Row,
    asked,
    prompt_rows,
    shortened,
    tag_prompt,
    trajectory_rows,
    turn_rows,
)
from ragen.llm_agent.prompts.replies import ALWAYS, REPLY_TAGS, THINK, ControlTokens, ReplyParser, reply_texts
from ragen.llm_agent.prompts.settings import FULL, MAX_MODEL_LEN, SAMPLED, ContextSettings

Encode = Callable[[list[list[Message]]], list[EncodedChat]]
Encoded = tuple[list[Row], list[list[Message]], list[EncodedChat]]
if TYPE_CHECKING:
    import numpy as np
    from verl import DataProto

log = logging.getLogger(__name__)


class ContextManager:
    """Translates between environments and language models; a drop-in replacement for RAGEN's class of this name.

    Attributes:
        prefix_lookup: The instruction of each environment id.
        env_config_lookup: ``{"max_tokens": ..., "env_type": ...}`` of each environment id.
        env_nums: Number of environments per tag.
        mode: The section of ``es_manager`` in use, and ``es_cfg`` that section.
        special_token_list: Tokens removed from the parts of a reply, in addition to the tokenizer's own control tokens.
    """

    special_token_list = (*REPLY_TAGS, *ALWAYS)

    def __init__(self, config: Any, tokenizer: Any, processor: Any = None, mode: str = "train") -> None:
        """Check everything that can be checked before the first state.

        Args:
            config: The whole configuration; :mod:`ragen.llm_agent.prompts.settings` lists the keys that are read.
            tokenizer: A fast Hugging Face tokenizer with a chat template.
            processor: A Hugging Face processor; with it, image observations become images in messages, without it they
                stay ``<images>`` marks in the text.
            mode: ``"train"`` or ``"val"``: the section of ``es_manager`` that describes the environments.

        Raises:
            ConfigError: A key has an invalid value, the tokenizer has no usable chat template, or a tag's
                instruction alone is longer than the model's context.
        """
        self.config = config
        self.tokenizer = tokenizer
        self.processor = processor
        self.mode = mode
        self.settings = ContextSettings.read(config)
        self.action_sep = self.settings.action_sep
        self._collapse = as_config(config).collapse_detection
        control = ControlTokens.of(tokenizer)
        most = self.settings.max_actions_per_turn
        self._parser = ReplyParser(control, self.settings.enable_think, self.action_sep, most)
        self._tags, self.env_nums = environment_tags(config, mode)
        self.es_cfg = as_config(config).select(f"es_manager.{mode}")
        entries = {tag: custom_env(config, tag) for tag in self.env_nums}
        prompts = {tag: tag_prompt(tag, entry, self.settings, control) for tag, entry in entries.items()}
        self.prefix_lookup = {env_id: prompts[tag].instruction for env_id, tag in self._tags.items()}
        self.env_config_lookup = {
            env_id: {"max_tokens": prompts[tag].max_tokens, "env_type": entries[tag]["env_type"]}
            for env_id, tag in self._tags.items()
        }
        opening_tag, with_images = self._parser.opening_tag, processor is not None
        self._conversations = ConversationBuilder(self.settings, prompts, self._tags, control, opening_tag, with_images)
        self._encoder = ChatEncoder(tokenizer, control, opening_tag, processor, self.settings.template_kwargs)
        self._batches = BatchBuilder(self.settings, tokenizer, processor)
        self._check_lengths(prompts)

    def reset_memory_managers(self) -> None:
        """Begin a rollout: RAGEN of 2026 calls this after a reset. This class keeps no memory, so it does nothing."""

    def get_lm_inputs(
        self,
        env_outputs: Sequence[dict[str, Any]],
        prepare_for_update: bool = False,
        include_collapse_data: bool = True,
    ) -> DataProto:
        """Build a batch for generation, or for training.

        Args:
            env_outputs: Rollout caches, as the environment manager returns them. They are not changed.
            prepare_for_update: False builds prompts: each ends with the open turn's state and the tag that begins a
                reply. True builds trajectories: each ends with its last reply, without the open last state.
            include_collapse_data: Whether a training batch has the columns for collapse detection,
                if ``collapse_detection`` enables them and a row is a trajectory.

        Returns:
            ``batch``: ``input_ids``, ``attention_mask``, ``position_ids``, ``responses``, padded on the left; for
                training also ``loss_mask``, ``response_mask`` (1 exactly on what the model wrote), ``rm_scores``
                (normalized, including the penalty) and ``original_rm_scores`` (the environments' own rewards), and
                ``rollout_log_probs``, if known for all replies (0 elsewhere).
            ``non_tensor_batch``: ``env_ids``, ``group_ids``, ``tags``, ``messages_list``, ``correct_answer`` if there
                is one, and with a processor ``multi_modal_data`` and ``multi_modal_inputs``; for training also
                ``episode_ids``: a row's trajectory, as its index in ``env_outputs``.
            ``meta_info["metrics"]``, for training: means over the environments of each tag.
            Training batches also have columns for collapse detection (:mod:`ragen.llm_agent.batches.collapse`), ``uid``
            in turn modes, and for validation environments ``history`` and ``metrics`` of the row's trajectory.

        Raises:
            InputError: There are no environments, a tag is unknown, or a single turn is too long for the model.
        """
        if not len(env_outputs):
            raise InputError("get_lm_inputs was called without environments; end the turn loop when none is active.")
        rollouts = self._tagged(env_outputs)
        if prepare_for_update:
            return self._training(rollouts, include_collapse_data)
        return self._batches.prompts(*self._encoded_prompts(rollouts))

    def get_prompts(self, env_outputs: Sequence[dict[str, Any]]) -> PromptBatch:
        """The prompts of :meth:`get_lm_inputs` without tensors: imports neither torch nor verl.

        Args:
            env_outputs: See :meth:`get_lm_inputs`.

        Returns:
            The columns of ``get_lm_inputs``, and each prompt's tokens in ``prompt_ids``.

        Raises:
            InputError: A tag is unknown, or a single turn is too long for the model.
        """
        rows, chats, encoded = self._encoded_prompts(self._tagged(env_outputs))
        ids = {"prompt_ids": object_array(chat.ids for chat in encoded)}
        return PromptBatch(self._batches.columns(rows, chats, encoded) | ids)

    def _encoded_prompts(self, rollouts: Sequence[dict[str, Any]]) -> Encoded:
        return self._encode(
            prompt_rows(rollouts, self.settings.window), self._encoder.prompts, self.settings.prompt_limit
        )

    def _training(self, rollouts: Sequence[dict[str, Any]], include_collapse_data: bool) -> DataProto:
        whole = self.settings.window_mode == FULL
        rows: list[TrainingRow] = []
        unknown: list[Row] = []
        for row in (trajectory_rows if whole else turn_rows)(rollouts, self.settings.window):
            reads = self.settings.training_tokens == SAMPLED
            sampled = sampled_rows(row, 0 if whole else row.stop - 1) if reads else None
            for part, exchanges in sampled or ():
                reply = self._conversations.messages(replace(part, start=part.stop - 1))[-1]
                rows.append(exchanged_row(part, exchanges, reply))
            unknown += [row] if sampled is None else []
        shown = self._encode(unknown, self._encoder.rollouts, self.settings.max_model_len) if unknown else ()
        for row, chat, encoded in zip(*shown, strict=True):
            replies = encoded.replies if whole else encoded.replies[-1:]
            rows.append(TrainingRow(row, chat, replace(encoded, replies=replies)))
        rows.sort(key=lambda each: (each.row.episode, each.row.stop))
        columns = self.collapse_columns(rollouts) if include_collapse_data else {}
        if self.mode == "val":
            columns |= {name: object_array(each.get(name, []) for each in rollouts) for name in ("history", "metrics")}
        if not whole:
            columns["uid"] = object_array(each.get("uid", each["env_id"]) for each in rollouts)
        episodes, batch = [row.row.episode for row in rows], self._batches.training(rows, rollouts)
        batch.non_tensor_batch.update({name: values[episodes] for name, values in columns.items()})
        return batch

    def _encode(self, rows: list[Row], encode: Encode, limit: int | None) -> Encoded:
        """The rows, chats and tokens of a batch; rows over the limit lose their oldest turns."""
        write = self._conversations.messages
        chats = [write(row) for row in rows]
        encoded = encode(chats)
        for place, chat in enumerate(encoded):
            if limit is not None and len(chat.ids) > limit:
                row = shortened(rows[place], limit, self.settings, lambda row: len(encode([write(row)])[0].ids))
                rows[place], chats[place] = row, write(row)
                encoded[place] = encode([chats[place]])[0]
        return rows, chats, encoded

    def _check_lengths(self, tags: Iterable[str]) -> None:
        """Check that every tag's first prompt leaves room for a state."""
        limit = self.settings.prompt_limit
        for tag in tags:
            row = prompt_rows([{"tag": tag, "history": [{"state": "", "actions_left": 1}]}], None)[0]
            length = len(self._encoder.prompts([self._conversations.messages(row)])[0].ids)
            if limit is not None and length > limit:
                raise ConfigError(
                    f"{MAX_MODEL_LEN} is {self.settings.max_model_len}, which leaves {limit} tokens for a prompt, and "
                    f"the instruction of custom_envs.{tag} alone takes {length}; raise the limit, or shorten it."
                )

    def _tagged(self, env_outputs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [rollout | {"tag": self._conversations.tag_of(rollout)} for rollout in env_outputs]

    def collapse_columns(self, env_outputs: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Prompts and reasoning of finished trajectories; see :func:`.collapse_columns`.

        Args:
            env_outputs: The result of ``get_rollout_states()``.

        Returns:
            The columns that ``collapse_detection`` enables; none if it enables none, or if prompts show less than the
            whole history.
        """
        if self.settings.window_mode != FULL:
            return {}

        def tokens(text: str) -> list[int]:
            return self.tokenizer([text], add_special_tokens=False)["input_ids"][0]

        def prompt(rollout: dict[str, Any], place: int) -> list[int]:
            chat = self._conversations.messages(asked(rollout, place))
            (text,) = self._encoder.template.render([chat], add_generation_prompt=True)
            return tokens(text + THINK * thinks)

        thinks = self.settings.enable_think
        return collapse_columns(self._tagged(env_outputs), self._collapse, prompt, tokens, thinks)

    def get_env_inputs(self, lm_outputs: AnyBatch) -> list[dict[str, Any]]:
        """Parse the model's replies.

        Args:
            lm_outputs: With ``non_tensor_batch["env_ids"]``, and the replies either as texts in
                ``non_tensor_batch["response_texts"]`` or, if that is missing, as tokens in ``batch["responses"]``; if
                ``non_tensor_batch["exchanges"]`` has tokens, training uses these.

        Returns:
            For each row ``env_id``, ``llm_raw_response`` (which knows its
            :class:`~ragen.llm_agent.batches.dataproto.TokenExchange`), ``llm_response`` (as shown in the history) and
            ``actions`` (names, as the model wrote them; none if the reply is malformed). Of a reply that is far too
            long, only the beginning is read and kept; see :attr:`ContextSettings.reply_limit`.

        Raises:
            InputError: Ids or replies are missing.
        """
        texts = reply_texts(lm_outputs, self.tokenizer)
        env_ids = lm_outputs.non_tensor_batch.get("env_ids")
        if env_ids is None or len(env_ids) != len(texts):
            count = "no" if env_ids is None else len(env_ids)
            raise InputError(f"the model's output has {len(texts)} replies and {count} env_ids; expected one for each.")
        exchanges = lm_outputs.non_tensor_batch.get("exchanges", [None] * len(texts))
        return [self.env_input(*each) for each in zip(env_ids, texts, exchanges, strict=True)]

    def env_input(self, env_id: int, text: str, exchange: TokenExchange | None = None) -> dict[str, Any]:
        """Parse one reply; see :meth:`get_env_inputs`."""
        kept = text[: self.settings.reply_limit]
        if len(kept) < len(text):
            exchange = replace(exchange or TokenExchange(), cut_off=True)
            log.warning("env %s: a reply of %d characters was cut off after %d.", env_id, len(text), len(kept))
        reply = self._parser.parse(kept)
        return {
            "env_id": int(env_id),
            "llm_raw_response": RawReply(reply.raw, exchange, reply.tag_added),
            "llm_response": reply.text,
            "actions": list(reply.actions),
        }

    def formulate_rollouts(
        self, env_outputs: Sequence[dict[str, Any]], include_collapse_data: bool = True
    ) -> DataProto:
        """The training batch of finished trajectories: ``get_lm_inputs`` with ``prepare_for_update``.

        Args:
            env_outputs: The result of ``get_rollout_states()``.
            include_collapse_data: See :meth:`get_lm_inputs`.
        """
        return self.get_lm_inputs(env_outputs, prepare_for_update=True, include_collapse_data=include_collapse_data)

    def transcript(self, rollout: dict[str, Any]) -> list[Message]:
        """The whole chat of a trajectory, however few turns its prompts showed; images remain ``<images>`` marks.

        Args:
            rollout: A rollout cache. Its open last turn is excluded.
        """
        settings = replace(self.settings, window_mode=FULL)
        whole = replace(self._conversations, settings=settings, with_images=False)
        return whole.messages(trajectory_rows([rollout], None)[0])
