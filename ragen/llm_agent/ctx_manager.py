"""From environment states to prompts, from replies to actions, and from finished trajectories to training batches.

The turn loop that uses it::

    env_outputs = es_manager.reset()
    for _ in range(max_turn):
        lm_inputs = ctx_manager.get_lm_inputs(env_outputs, prepare_for_update=False)
        lm_outputs = ...                                 # DataProto with `responses` or `response_texts`
        env_outputs = es_manager.step(ctx_manager.get_env_inputs(lm_outputs))
    rollouts = ctx_manager.formulate_rollouts(es_manager.get_rollout_states())

Masks and scores are aligned with ``responses``, which is ``input_ids`` without its first column: column t of each
speaks of the token after token t. A trajectory's score stands on the last token that the model wrote.

Where an actor tells the tokens that it was given and sampled, training rows consist of these, token by token; which and
how many rows that makes, :mod:`ragen.llm_agent.tokens.training_rows` says.

A context that is too long loses its oldest turns, one after the other, and never its instruction or its last turn.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ragen.errors import ConfigError, InputError
from ragen.llm_agent.config.context import (
    FULL,
    MAX_MODEL_LEN,
    SAMPLED,
    ContextSettings,
    custom_env,
    environment_tags,
)
from ragen.llm_agent.prompting.chat_template import ChatTemplate
from ragen.llm_agent.prompting.control_tokens import ControlTokens
from ragen.llm_agent.prompting.conversation import Message, Narrator, Row, prompt_rows, trajectory_rows, turn_rows
from ragen.llm_agent.prompting.prompts import tag_prompt
from ragen.llm_agent.prompting.replies import ReplyParser
from ragen.llm_agent.rollout.metrics import mean_metrics
from ragen.llm_agent.tokens.dataproto import data_proto, image_objects, object_array, score_tensor, token_tensors
from ragen.llm_agent.tokens.encoding import ChatEncoder, EncodedChat
from ragen.llm_agent.tokens.learning_tensors import masks_of, reply_lengths, scores_of
from ragen.llm_agent.tokens.masks import ReplyMarker
from ragen.llm_agent.tokens.prompt_batch import AnyBatch, PromptBatch
from ragen.llm_agent.tokens.sampled_tokens import Exchange, RawReply
from ragen.llm_agent.tokens.training_rows import TrainingRow, exchanged_row, sampled_rows, written_row

if TYPE_CHECKING:
    from verl import DataProto

log = logging.getLogger(__name__)

Encoded = tuple[list[Row], list[list[Message]], list[EncodedChat]]
Encode = Callable[[list[list[Message]]], list[EncodedChat]]


class ContextManager:
    """Translates between environments and language models; drop-in for RAGEN's class of this name.

    Attributes:
        prefix_lookup: The instruction of each environment id.
        env_config_lookup: ``{"max_tokens": ..}`` of each environment id.
        env_nums: How many environments each tag has.
    """

    def __init__(self, config: Any, tokenizer: Any, processor: Any = None, mode: str = "train") -> None:
        """Check everything that can be checked before the first state.

        Args:
            config: The whole configuration; :mod:`ragen.llm_agent.config.context` lists the keys that are read.
            tokenizer: A fast Hugging Face tokenizer with a chat template.
            processor: A Hugging Face processor; with it, image observations become images in messages, without it they
                stay ``<images>`` marks in the text.
            mode: ``"train"`` or ``"val"``: the section of ``es_manager`` whose environments are talked to.

        Raises:
            ConfigError: A key has a value that cannot work, the tokenizer has no usable chat template, or a tag's
                instruction alone is longer than the model's context.
        """
        self.config = config
        self.tokenizer = tokenizer
        self.processor = processor
        self.settings = ContextSettings.read(config)
        self.action_sep = self.settings.action_sep
        self._control = ControlTokens.of(tokenizer)
        self._parser = ReplyParser(
            self._control, self.settings.enable_think, self.action_sep, self.settings.max_actions_per_turn
        )
        tags, self.env_nums = environment_tags(config, mode)
        prompts = {tag: tag_prompt(tag, custom_env(config, tag), self.settings, self._control) for tag in self.env_nums}
        self.prefix_lookup = {env_id: prompts[tag].instruction for env_id, tag in tags.items()}
        self.env_config_lookup = {env_id: {"max_tokens": prompts[tag].max_tokens} for env_id, tag in tags.items()}
        self._narrator = Narrator(
            self.settings, prompts, tags, self._control, self._parser.opening_tag, with_images=processor is not None
        )
        template = ChatTemplate(tokenizer, processor, self.settings.template_kwargs)
        marker = ReplyMarker(template, self._control, tokenizer.eos_token)
        self._encoder = ChatEncoder(tokenizer, template, marker, processor)
        self._check_lengths(prompts)
        _warn_about_thoughts(self.settings, marker)

    def get_lm_inputs(self, env_outputs: Sequence[dict[str, Any]], prepare_for_update: bool = False) -> DataProto:
        """Build a batch for generation, or for training.

        Args:
            env_outputs: Rollout caches, as the environment manager returns them. They are not changed.
            prepare_for_update: False gives prompts: each ends with the open turn's state and the tag that begins a
                reply. True gives trajectories: each ends with its last reply, and the open last state is left out.

        Returns:
            ``batch``: ``input_ids``, ``attention_mask``, ``position_ids``, ``responses``, padded on the left; for
            training also ``loss_mask``, ``response_mask`` (1 exactly on what the model wrote),
            ``rm_scores`` (normalised, penalty included) and ``original_rm_scores`` (the environments' own rewards),
            and ``rollout_log_probs``, if they are known of all replies (0 elsewhere).
            ``non_tensor_batch``: ``env_ids``, ``group_ids``, ``tags``, ``messages_list``, ``correct_answer`` where
            there is one, and with a processor ``multi_modal_data`` and ``multi_modal_inputs``; for training also
            ``episode_ids``: a row's trajectory, by its place in ``env_outputs``.
            ``meta_info["metrics"]``, for training: means over the environments of each tag.

        Raises:
            InputError: There are no environments, a tag is unknown, or a single turn is too long for the model.
        """
        if not len(env_outputs):
            raise InputError("get_lm_inputs was called without environments; stop the turn loop when none is active.")
        if prepare_for_update:
            return self._training_batch(self._tagged(env_outputs))
        rows, chats, encoded = self._prompts(env_outputs)
        return data_proto(self._tokens(encoded), self._objects(rows, chats, encoded), {})

    def get_prompts(self, env_outputs: Sequence[dict[str, Any]]) -> PromptBatch:
        """The prompts of :meth:`get_lm_inputs` without tensors: imports neither torch nor verl.

        Args:
            env_outputs: See there.

        Returns:
            The columns of ``get_lm_inputs``, and each prompt's tokens in ``prompt_ids``.

        Raises:
            InputError: A tag is unknown, or a single turn is too long for the model.
        """
        rows, chats, encoded = self._prompts(env_outputs)
        tokens = {"prompt_ids": object_array(chat.ids for chat in encoded)}
        return PromptBatch(self._objects(rows, chats, encoded) | tokens)

    def _tagged(self, env_outputs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [rollout | {"tag": self._narrator.tag_of(rollout)} for rollout in env_outputs]

    def get_env_inputs(self, lm_outputs: AnyBatch) -> list[dict[str, Any]]:
        """Read the model's replies.

        Args:
            lm_outputs: With ``non_tensor_batch["env_ids"]``, and the replies either as texts in
                ``non_tensor_batch["response_texts"]`` or, if that is missing, as tokens in ``batch["responses"]``;
                where ``non_tensor_batch["exchanges"]`` tells of tokens, training will be on these.

        Returns:
            For each row ``env_id``, ``llm_raw_response`` (which knows its
            :class:`~ragen.llm_agent.tokens.sampled_tokens.Exchange`), ``llm_response`` (as the history will show it)
            and ``actions`` (names, as the model wrote them; none if the reply is malformed). Of a reply that is far too
            long, only the beginning is read and kept; see :attr:`ContextSettings.reply_limit`.

        Raises:
            InputError: Ids or replies are missing.
        """
        texts = self._reply_texts(lm_outputs)
        env_ids = lm_outputs.non_tensor_batch.get("env_ids")
        if env_ids is None or len(env_ids) != len(texts):
            count = "no" if env_ids is None else len(env_ids)
            raise InputError(f"the model's output has {len(texts)} replies and {count} env_ids; expected one for each.")
        exchanges = lm_outputs.non_tensor_batch.get("exchanges", [None] * len(texts))
        _tell_cut_off(env_ids, texts, self.settings.reply_limit)
        return [self._env_input(*each) for each in zip(env_ids, texts, exchanges, strict=True)]

    def _env_input(self, env_id: Any, text: str, exchange: Exchange | None) -> dict[str, Any]:
        kept = text[: self.settings.reply_limit]
        if len(kept) < len(text):
            exchange = replace(exchange or Exchange(), cut_off=True)
        reply = self._parser.parse(kept)
        return {
            "env_id": int(env_id),
            "llm_raw_response": RawReply(reply.raw, exchange, reply.tag_added),
            "llm_response": reply.text,
            "actions": list(reply.actions),
        }

    def formulate_rollouts(self, env_outputs: Sequence[dict[str, Any]]) -> DataProto:
        """The training batch of finished trajectories: ``get_lm_inputs`` with ``prepare_for_update``.

        Args:
            env_outputs: What ``get_rollout_states()`` returned.
        """
        return self.get_lm_inputs(env_outputs, prepare_for_update=True)

    def chats(self, env_outputs: Sequence[dict[str, Any]]) -> list[list[Message]]:
        """The chats of the prompts of :meth:`get_lm_inputs`, for whoever needs no tokens; see there."""
        if self.settings.prompt_limit is not None:
            return self._prompts(env_outputs)[1]
        rows = prompt_rows(self._tagged(env_outputs), self.settings.window)
        return [self._narrator.messages(row) for row in rows]

    def transcript(self, rollout: dict[str, Any]) -> list[Message]:
        """The whole chat of a trajectory, however few turns its prompts showed; images stay ``<images>`` marks.

        Args:
            rollout: A rollout cache. Its open last turn is left out.
        """
        settings = replace(self.settings, window_mode=FULL)
        narrator = replace(self._narrator, settings=settings, with_images=False)
        return narrator.messages(trajectory_rows([rollout], None)[0])

    def _prompts(
        self, env_outputs: Sequence[dict[str, Any]]
    ) -> tuple[list[Row], list[list[Message]], list[EncodedChat]]:
        rows = prompt_rows(self._tagged(env_outputs), self.settings.window)
        return self._encode(rows, self._encode_prompts, self.settings.prompt_limit)

    def _training_batch(self, rollouts: Sequence[dict[str, Any]]) -> DataProto:
        whole = self.settings.window_mode == FULL
        learnt: list[TrainingRow] = []
        unknown: list[Row] = []
        for row in (trajectory_rows if whole else turn_rows)(rollouts, self.settings.window):
            sampled = sampled_rows(row, 0 if whole else row.stop - 1) if self._learns_samples else None
            learnt += [self._exchanged_row(*each) for each in sampled or ()]
            unknown += [row] if sampled is None else []
        learnt += self._written_rows(unknown) if unknown else []
        return self._learning_batch(sorted(learnt, key=lambda each: (each.row.episode, each.row.stop)), rollouts)

    def _exchanged_row(self, row: Row, exchanges: Sequence[Exchange]) -> TrainingRow:
        reply = self._narrator.messages(replace(row, start=row.stop - 1))[-1]
        built = exchanged_row(row, exchanges, reply)
        if self.settings.enable_response_mask:
            return built
        body = self._encode_rollouts([built.chat])[0].body
        return replace(built, encoded=replace(built.encoded, body=body))

    def _written_rows(self, rows: list[Row]) -> list[TrainingRow]:
        whole, as_shown = self.settings.window_mode == FULL, not self._learns_samples
        shown = zip(*self._encode(rows, self._encode_rollouts, self.settings.max_model_len), strict=True)
        return [
            written_row(row, chat, encoded, len(encoded.replies) if whole else 1, as_shown)
            for row, chat, encoded in shown
        ]

    def _learning_batch(self, rows: Sequence[TrainingRow], rollouts: Sequence[dict[str, Any]]) -> DataProto:
        encoded = [each.encoded for each in rows]
        tensors = self._tokens(encoded) | masks_of(encoded, self.settings) | scores_of(rows, rollouts, self.settings)
        log_probs = [each.log_probs for each in rows if each.length]
        if log_probs and None not in log_probs:
            tensors["rollout_log_probs"] = score_tensor(encoded, [each.log_probs or [] for each in rows])
        objects = self._objects([each.row for each in rows], [each.chat for each in rows], encoded)
        objects["episode_ids"] = object_array(each.row.episode for each in rows)
        return data_proto(tensors, objects, {"metrics": {**mean_metrics(rollouts), **reply_lengths(rows)}})

    @property
    def _learns_samples(self) -> bool:
        return self.settings.training_tokens == SAMPLED

    def _encode(self, rows: list[Row], encode: Encode, limit: int | None) -> Encoded:
        """The rows, chats and tokens of a batch, without the oldest turns of rows that are longer than the limit."""
        chats = [self._narrator.messages(row) for row in rows]
        encoded = encode(chats)
        for place, chat in enumerate(encoded):
            if limit is not None and len(chat.ids) > limit:
                rows[place] = self._shortened(rows[place], encode, limit)
                chats[place] = self._narrator.messages(rows[place])
                encoded[place] = encode([chats[place]])[0]
        return rows, chats, encoded

    def _shortened(self, row: Row, encode: Encode, limit: int) -> Row:
        """The row without as many of its oldest turns as it takes to fit."""

        def length(dropped: int) -> int:
            return len(encode([self._narrator.messages(row.without_oldest(dropped))])[0].ids)

        choices = range(len(row.turns))
        dropped = bisect_left(choices, True, key=lambda dropped: length(dropped) <= limit)
        if dropped == len(choices):
            raise InputError(
                f"{row.name}: the last turn alone makes a context of {length(max(0, len(choices) - 1))} tokens, and "
                f"{MAX_MODEL_LEN}={self.settings.max_model_len} leaves room for {limit}; raise it, or shorten the "
                "instruction or the observation."
            )
        return row.without_oldest(dropped)

    def _encode_prompts(self, chats: list[list[Message]]) -> list[EncodedChat]:
        return self._encoder.prompts(chats, self._parser.opening_tag)

    def _encode_rollouts(self, chats: list[list[Message]]) -> list[EncodedChat]:
        return self._encoder.rollouts(chats, self._parser.opening_tag)

    def _tokens(self, encoded: Sequence[EncodedChat]) -> dict[str, Any]:
        pad = self.tokenizer.pad_token_id
        return token_tensors(encoded, self.tokenizer.eos_token_id or 0 if pad is None else pad, self.processor)

    def _objects(self, rows: Sequence[Row], chats: Sequence[Any], encoded: Sequence[EncodedChat]) -> dict[str, Any]:
        rollouts = [row.rollout for row in rows]
        objects = {
            "env_ids": object_array(rollout["env_id"] for rollout in rollouts),
            "group_ids": object_array(rollout.get("group_id") for rollout in rollouts),
            "tags": object_array(rollout["tag"] for rollout in rollouts),
            "messages_list": object_array(chats),
        }
        if any("correct_answer" in rollout for rollout in rollouts):
            objects["correct_answer"] = object_array(rollout.get("correct_answer") for rollout in rollouts)
        return objects | (image_objects(encoded) if self.processor is not None else {})

    def _reply_texts(self, lm_outputs: AnyBatch) -> list[str]:
        texts = lm_outputs.non_tensor_batch.get("response_texts")
        if texts is not None:
            return ["" if text is None else str(text) for text in texts]
        if lm_outputs.batch is None or "responses" not in set(lm_outputs.batch.keys()):
            raise InputError("the model's output has neither response_texts nor responses.")
        return self.tokenizer.batch_decode(lm_outputs.batch["responses"], skip_special_tokens=True)

    def _check_lengths(self, prompts: Mapping[str, Any]) -> None:
        """See that every tag's first prompt leaves room for a state."""
        limit = self.settings.prompt_limit
        for tag in prompts:
            row = prompt_rows([{"tag": tag, "history": [{"state": "", "actions_left": 1}]}], None)[0]
            length = len(self._encode_prompts([self._narrator.messages(row)])[0].ids)
            if limit is not None and length > limit:
                raise ConfigError(
                    f"{MAX_MODEL_LEN} is {self.settings.max_model_len}, which leaves {limit} tokens for a prompt, and "
                    f"the instruction of custom_envs.{tag} alone takes {length}; raise the one or shorten the other."
                )


def _tell_cut_off(env_ids: Iterable[Any], texts: Sequence[str], limit: int | None) -> None:
    longer = [] if limit is None else [each for each in zip(env_ids, texts, strict=True) if len(each[1]) > limit]
    if longer:
        (env_id, text), count = longer[0], len(longer)
        log.warning(
            "%d of %d replies were cut off after %d characters; the first, of env %s, had %d.",
            *(count, len(texts), limit, env_id, len(text)),
        )


def _warn_about_thoughts(settings: ContextSettings, marker: ReplyMarker) -> None:
    one_row = settings.window_mode == FULL and settings.window != 1
    if settings.enable_think and one_row and not marker.keeps_thoughts():
        log.warning(
            "The chat template drops the thoughts of earlier turns, so training rows will not show them either; "
            "agent_proxy.context_window_mode=limited_multi_turn trains every turn on what the model saw and wrote."
        )
