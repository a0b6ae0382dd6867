"""A manager's prompts as a batch for the actor: one chat of one message for each environment, padded on the left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ragen.errors import InputError
from ragen.llm_agent.collecting.settings import MAX_PROMPT, CollectorSettings
from ragen.llm_agent.prompting.chat_template import ChatTemplate
from ragen.llm_agent.prompting.control_tokens import ControlTokens
from ragen.llm_agent.prompting.conversation import Message
from ragen.llm_agent.tokens.dataproto import data_proto, image_objects, object_array, token_tensors
from ragen.llm_agent.tokens.encoding import ChatEncoder, EncodedChat
from ragen.llm_agent.tokens.masks import ReplyMarker

if TYPE_CHECKING:
    from verl import DataProto

IMAGE = "<image>"


class PromptEncoder:
    """Makes batches of prompts with one tokenizer."""

    def __init__(self, settings: CollectorSettings, tokenizer: Any, processor: Any = None) -> None:
        """Find the chat template and try it.

        Args:
            settings: How long prompts may be.
            tokenizer: A fast tokenizer with a chat template.
            processor: Takes images; None leaves marks in their places.

        Raises:
            ConfigError: There is no template that works.
        """
        self._settings, self._tokenizer, self._processor = settings, tokenizer, processor
        self._template = ChatTemplate(tokenizer, processor)
        self._control = ControlTokens.of(tokenizer)
        marker = ReplyMarker(self._template, self._control, tokenizer.eos_token)
        self._encoder = ChatEncoder(tokenizer, self._template, marker, processor)

    @property
    def pad_id(self) -> int:
        """What fills up rows."""
        pad = self._tokenizer.pad_token_id
        return self._tokenizer.eos_token_id or 0 if pad is None else pad

    def batch(self, obs: Mapping[str, Any], rows: Sequence[int], columns: Mapping[str, Sequence[Any]]) -> DataProto:
        """The batch of some environments.

        Args:
            obs: What the manager gave: ``text``, ``image``, ``anchor``.
            rows: Which environments.
            columns: Further columns, with a value for every environment; those named as ours take their place.

        Returns:
            ``input_ids``, ``attention_mask``, ``position_ids``; and ``raw_prompt_ids`` (without padding),
            ``raw_prompt`` and ``messages_list`` (the chat), ``anchor_obs``, ``index``, ``data_source``, ``env_ids``.

        Raises:
            InputError: A prompt is too long, and ``data.truncation`` is ``error``.
        """
        images = obs.get("image")
        chats = [self._chat(obs["text"][row], None if images is None else images[row]) for row in rows]
        encoded = [self._fitted(chat, row) for chat, row in zip(self._encoder.prompts(chats, ""), rows, strict=True)]
        tensors = self._tensors(encoded)
        anchors = obs.get("anchor") or [None] * len(obs["text"])
        objects = {
            "raw_prompt_ids": object_array(list(chat.ids) for chat in encoded),
            "raw_prompt": object_array(chats),
            "messages_list": object_array(chats),
            "anchor_obs": object_array(anchors[row] for row in rows),
            "index": object_array(rows),
            "data_source": object_array("default" for _ in rows),
            "env_ids": object_array(rows),
        }
        if self._processor is not None:
            objects |= image_objects(encoded)
        objects |= {name: object_array(values[row] for row in rows) for name, values in columns.items()}
        return data_proto(tensors, objects, {})

    def _chat(self, text: str, image: Any) -> list[Message]:
        defuse = self._control.defuse
        if self._processor is None:
            return [{"role": "user", "content": defuse(text)}]
        before, mark, after = text.rpartition(IMAGE)  # the last is what is seen now; others are of the history
        if not mark or image is None:
            return [{"role": "user", "content": [{"type": "text", "text": defuse(text)}]}]
        from PIL import Image

        seen: Message = {"type": "image", "image": Image.fromarray(image)}
        items = [{"type": "text", "text": defuse(before)}, seen, {"type": "text", "text": defuse(after)}]
        return [{"role": "user", "content": items}]

    def _fitted(self, chat: EncodedChat, row: int) -> EncodedChat:
        limit, length = self._settings.prompt_limit, len(chat.ids)
        if limit is None or length <= limit:
            return chat
        if self._settings.truncation == "error" or chat.images:
            raise InputError(
                f"the prompt of env {row} has {length} tokens, and there is room for {limit} ({MAX_PROMPT}, or what "
                "the model's context leaves); raise it, show less history, or set data.truncation to left, right or "
                "middle."
            )
        kept = {
            "left": chat.ids[length - limit :],
            "right": chat.ids[:limit],
            "middle": chat.ids[: limit // 2] + chat.ids[length - (limit - limit // 2) :],
        }
        return replace(chat, ids=kept[self._settings.truncation])

    def _tensors(self, encoded: Sequence[EncodedChat]) -> dict[str, Any]:
        from torch.nn.functional import pad

        tensors = token_tensors(encoded, self.pad_id, self._processor)
        missing = (self._settings.prompt_width or 0) - tensors["input_ids"].shape[-1]
        if missing > 0:
            fill = {"input_ids": self.pad_id}
            tensors = {name: pad(each, (missing, 0), value=fill.get(name, 0)) for name, each in tensors.items()}
        return {name: tensors[name] for name in ("input_ids", "attention_mask", "position_ids")}
