"""Chats to tokens, with the places of their replies; images go through the processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ragen.errors import ConfigError, TemplateError
from ragen.llm_agent.prompting.chat_template import ChatTemplate, Message
from ragen.llm_agent.prompting.conversation import images_of
from ragen.llm_agent.tokens.masks import MarkedText, ReplyMarker, Span, moved, token_span


@dataclass(frozen=True)
class EncodedChat:
    """A chat as tokens, without padding.

    Attributes:
        ids: The tokens.
        replies: ``[start, end)`` in tokens of every reply with its end-of-turn token, in order; empty for a prompt.
        inner: The same without the tag that prompts end with and without the end-of-turn token.
        body: The token with which the first user message begins.
        images: The chat's images, in order.
        image_inputs: What the processor makes of them for the model (``pixel_values``, ...).
    """

    ids: list[int]
    replies: list[Span] = field(default_factory=list)
    inner: list[Span] = field(default_factory=list)
    body: int = 0
    images: list[Any] = field(default_factory=list)
    image_inputs: dict[str, Any] = field(default_factory=dict)


class ChatEncoder:
    """Encodes chats with one tokenizer, template and processor."""

    def __init__(self, tokenizer: Any, template: ChatTemplate, marker: ReplyMarker, processor: Any = None) -> None:
        """Put the parts together.

        Args:
            tokenizer: A fast tokenizer: one that knows which characters a token came from.
            template: Renders prompts.
            marker: Renders chats with replies, and finds them.
            processor: Takes the images; None for text alone.

        Raises:
            ConfigError: The tokenizer is not a fast one.
        """
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"{type(tokenizer).__name__} does not know which characters a token came from, which loss masks need; "
                "use a fast tokenizer (tokenizer.json)."
            )
        self._tokenizer = tokenizer
        self._template = template
        self._marker = marker
        self._processor = processor

    def prompts(self, chats: Sequence[Sequence[Message]], opening_tag: str) -> list[EncodedChat]:
        """Encode chats that a reply is to follow.

        Args:
            chats: Lists of messages; each ends with the user's.
            opening_tag: Put at the end, unless the template ends a prompt with it already.
        """
        texts = self._template.render(chats, add_generation_prompt=True)
        texts = [text if text.rstrip().endswith(opening_tag) else text + opening_tag for text in texts]
        return self._encode([MarkedText(text, [], [], 0) for text in texts], chats, with_offsets=False)

    def rollouts(self, chats: Sequence[Sequence[Message]], opening_tag: str = "") -> list[EncodedChat]:
        """Encode chats that end with a reply, and find their replies.

        Args:
            chats: Lists of messages.
            opening_tag: What prompts end with.
        """
        return self._encode(self._marker.mark(chats, opening_tag), chats, with_offsets=True)

    def _encode(
        self, texts: Sequence[MarkedText], chats: Sequence[Sequence[Message]], with_offsets: bool
    ) -> list[EncodedChat]:
        batch = self._tokenizer(
            [marked.text for marked in texts],
            add_special_tokens=False,
            truncation=False,
            return_offsets_mapping=with_offsets,
        )
        offsets = batch["offset_mapping"] if with_offsets else [[]] * len(texts)
        return [self._chat(*row) for row in zip(texts, chats, batch["input_ids"], offsets, strict=True)]

    def _chat(self, marked: MarkedText, chat: Sequence[Message], ids: list[int], offsets: list[Span]) -> EncodedChat:
        replies, inner = ([token_span(span, offsets) for span in spans] for spans in (marked.replies, marked.inner))
        body = token_span((marked.body, marked.body), offsets)[0]
        plain, images = EncodedChat(ids, replies, inner, body), images_of(chat)
        return self._with_images(plain, marked.text, images) if images else plain

    def _with_images(self, plain: EncodedChat, text: str, images: list[Any]) -> EncodedChat:
        """The chat with the processor's tokens for its images."""
        inputs = dict(self._processor(text=[text], images=images, add_special_tokens=False, return_tensors="pt"))
        ids = inputs.pop("input_ids")[0].tolist()
        inputs.pop("attention_mask", None)
        replies = moved(plain.replies, plain.ids, ids)
        if replies is None:
            raise TemplateError(
                f"{type(self._processor).__name__} gives other tokens for a chat's replies when the chat has images, "
                "so no loss mask can be made for it."
            )
        return EncodedChat(ids, replies, _followed(plain, replies), plain.body, images, inputs)


def _followed(plain: EncodedChat, replies: Sequence[Span]) -> list[Span]:
    """The inner spans of a chat whose replies have moved."""
    pairs = zip(plain.inner, plain.replies, replies, strict=True)
    return [(start + new[0] - old[0], end + new[0] - old[0]) for (start, end), old, new in pairs]
