"""Tokenizes chats and locates their replies; images are processed by the processor.

Replies are located for any chat template: first in the characters of the rendered chat, then in its tokens. A reply
consists of its text with its tags, and the token that ends its turn. It excludes headers, line breaks between messages
and ``<think>`` blocks that the template adds itself. The end of a turn is determined from the template: it is the first
control token after a reply, unless that token opens messages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Any

from ragen.errors import ConfigError, TemplateError
from ragen.llm_agent.prompts.chat_template import OPENING_TAGS, ChatTemplate, Message, Outline, Place, outlines
from ragen.llm_agent.prompts.conversation import images_of
from ragen.llm_agent.prompts.replies import ControlTokens

Span = tuple[int, int]
CONTEXT = 8  # tokens before a reply by which it is located again among image tokens


@dataclass(frozen=True)
class MarkedText:
    """A rendered chat and the spans of its replies.

    Attributes:
        text: The chat up to the end of its last reply; the whole chat if it has none.
        replies: ``[start, end)`` in characters of every reply including its end-of-turn token, in order.
        body: The index of the first character of the first user message's content.
    """

    text: str
    replies: list[Span]
    body: int


class ReplyMarker:
    """Locates the replies in chats rendered by one template."""

    def __init__(self, template: ChatTemplate, control: ControlTokens, eos_token: str | None = None) -> None:
        """Determine how the template ends turns, by a chat of two turns.

        Args:
            template: Renders the chats.
            control: The tokenizer's control tokens.
            eos_token: The tokenizer's end token; it ends a turn even if it also opens messages.

        Raises:
            TemplateError: The template omits messages.
        """
        self._template = template
        self._control = control.pattern
        asked, answered = template.message("user", "ask"), template.message("assistant", "tell")
        outline = self._try_chat([asked, answered, asked, answered])
        self._openers = self._opening_tokens([asked], outline) - {eos_token}
        self._plain_end = self._ending_text(gap=outline.literals[2], tail=outline.literals[4])

    def mark(self, chats: Sequence[Sequence[Message]]) -> list[MarkedText]:
        """Render chats and locate their replies.

        Args:
            chats: Lists of messages.

        Raises:
            TemplateError: The template omits a reply.
        """
        texts = self._template.render(chats)
        marked = [self._mark(*each) for each in zip(texts, outlines(self._template, chats), strict=True)]
        for chat, found in zip(chats, marked, strict=True):
            expected = sum(message["role"] == "assistant" for message in chat)
            if len(found.replies) != expected:
                raise TemplateError(
                    f"the chat template shows {len(found.replies)} of a chat's {expected} replies, so no loss mask can "
                    "be made for them; use another tokenizer.chat_template."
                )
        return marked

    def _mark(self, text: str, outline: Outline) -> MarkedText:
        places = outline.locate(text)
        if places is None:  # the template changed a content; with contents unchanged, text and mask agree
            text, places = outline.fill()
        replies = list(self._replies(text, places))
        body = next((place.start for place in places if place.part.role == "user"), 0)
        return MarkedText(text[: replies[-1][1]] if replies else text, replies, body)

    def _replies(self, text: str, places: Sequence[Place]) -> Iterator[Span]:
        """The start of each reply, and the end of its turn."""
        messages = [list(group) for _, group in groupby(places, key=lambda place: place.part.message)]
        limits = [*(message[0].start for message in messages[1:]), len(text)]
        for message, limit in zip(messages, limits, strict=True):
            if message[0].part.role == "assistant":
                start, end = _before_tag(text, message[0]), _after_tag(text, message[-1])
                yield start, end + self._end_of_turn(text[end:limit])

    def _end_of_turn(self, rest: str) -> int:
        """Number of characters of the template's text after a reply that end its turn."""
        token = self._control.search(rest)
        if token and not rest[: token.start()].strip():
            return 0 if token.group() in self._openers else token.end()
        return len(self._plain_end) if rest.startswith(self._plain_end) else 0

    def _try_chat(self, chat: list[Message]) -> Outline:
        try:
            outline = outlines(self._template, [chat])[0]
        except Exception as error:  # templates raise whatever they like
            raise TemplateError(f"the chat template fails on a chat of two turns: {error}.") from error
        shown = [part.message for part in outline.parts]
        if shown != list(range(len(chat))):
            raise TemplateError(
                f"the chat template shows messages {shown} of a chat of {len(chat)}, so no loss mask can be made; "
                "use another tokenizer.chat_template."
            )
        return outline

    def _opening_tokens(self, chat: list[Message], outline: Outline) -> set[str | None]:
        """The control tokens that open messages: those of a generation prompt, and the last before a user's text."""
        closed, opened = (self._control.findall(self._template.render([chat], prompt)[0]) for prompt in (False, True))
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(closed, opened, strict=False)))
        return {*opened[shared:], *self._control.findall(outline.literals[0])[-1:]}

    def _ending_text(self, gap: str, tail: str) -> str:
        """The plain text that ends a reply in templates without a control token for that."""
        plain = tail.rstrip()
        return plain if gap.startswith(plain) and not self._control.search(plain) else ""


def _before_tag(text: str, place: Place) -> int:
    """The start of a part including the tag that opens it; a closing tag before it belongs to the template."""
    head, tag = text[: place.start].rstrip(), place.part.tag_before
    return len(head) - len(tag) if tag in OPENING_TAGS and head.endswith(tag) else place.start


def _after_tag(text: str, place: Place) -> int:
    """The end of a part including the tag that closes it."""
    tail, tag = text[place.end :].lstrip(), place.part.tag_after
    closes = tag not in ("", *OPENING_TAGS) and tail.startswith(tag)
    return len(text) - len(tail) + len(tag) if closes else place.end


def token_span(span: Span, offsets: Sequence[Span]) -> Span:
    """The tokens that a span of characters covers.

    Args:
        span: ``[start, end)`` in characters; the last one is not whitespace.
        offsets: ``[start, end)`` in characters of every token. Tokenizers may exclude whitespace from them, so a token
            is located relative to its neighbors.

    Returns:
        ``[start, end)`` in tokens.
    """
    first = bisect_right(offsets, span[0], key=lambda offset: offset[1])
    return first, max(first, bisect_left(offsets, span[1], key=lambda offset: offset[0]))


def moved(spans: Sequence[Span], plain: Sequence[int], full: Sequence[int]) -> list[Span] | None:
    """The token spans after a processor has inserted image tokens between them.

    Args:
        spans: ``[start, end)`` in tokens of ``plain``, in order.
        plain: The tokens of the text alone.
        full: The tokens of the text with its images. A span and the ``CONTEXT`` tokens before it are as in ``plain``.

    Returns:
        The spans in tokens of ``full``; None if one of them is not found.
    """
    found: list[Span] = []
    done = cursor = 0
    for start, end in spans:
        lead = min(CONTEXT, start - done)
        place = _find(full, plain[start - lead : end], cursor)
        if place is None:
            return None
        done, cursor = end, place + lead + end - start
        found.append((place + lead, cursor))
    return found


def _find(tokens: Sequence[int], pattern: Sequence[int], start: int) -> int | None:
    places = range(start, len(tokens) - len(pattern) + 1)
    return next((place for place in places if tokens[place : place + len(pattern)] == pattern), None)


# Tokens


@dataclass(frozen=True)
class EncodedChat:
    """A chat as tokens, without padding.

    Attributes:
        ids: The tokens.
        replies: ``[start, end)`` in tokens of every reply including its end-of-turn token, in order; empty for a
            prompt.
        body: The index of the first token of the first user message's content.
        images: The chat's images, in order.
        image_inputs: The processor's tensors of them for the model (``pixel_values``, ...).
    """

    ids: list[int]
    replies: list[Span] = field(default_factory=list)
    body: int = 0
    images: list[Any] = field(default_factory=list)
    image_inputs: dict[str, Any] = field(default_factory=dict)


class ChatEncoder:
    """Encodes chats with one tokenizer, template and processor.

    Attributes:
        template: Renders chats.
        marker: Locates replies in them.
    """

    def __init__(
        self,
        tokenizer: Any,
        control: ControlTokens,
        opening_tag: str = "",
        processor: Any = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Test the tokenizer and its template.

        Args:
            tokenizer: A fast tokenizer, which reports the characters of each token.
            control: Its control tokens.
            opening_tag: The tag at the end of prompts, with which replies therefore begin.
            processor: Processes the images; None for text only.
            template_kwargs: Passed to the chat template.

        Raises:
            ConfigError: The tokenizer is not a fast one, or there is no usable template.
            TemplateError: The template omits messages.
        """
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"{type(tokenizer).__name__} does not know which characters a token came from, which loss masks need; "
                "use a fast tokenizer (tokenizer.json)."
            )
        self.template = ChatTemplate(tokenizer, processor, template_kwargs)
        self.marker = ReplyMarker(self.template, control, tokenizer.eos_token)
        self._tokenizer = tokenizer
        self._processor = processor
        self._tag = opening_tag

    def prompts(self, chats: Sequence[Sequence[Message]]) -> list[EncodedChat]:
        """Tokenize prompts, which end with the opening tag; the last message of each is the user's."""
        texts = self.template.render(chats, add_generation_prompt=True)
        texts = [text if text.rstrip().endswith(self._tag) else text + self._tag for text in texts]
        return self._encode([MarkedText(text, [], 0) for text in texts], chats, with_offsets=False)

    def rollouts(self, chats: Sequence[Sequence[Message]]) -> list[EncodedChat]:
        """Tokenize chats that end with a reply, and locate their replies."""
        return self._encode(self.marker.mark(chats), chats, with_offsets=True)

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
        replies = [token_span(span, offsets) for span in marked.replies]
        body = token_span((marked.body, marked.body), offsets)[0]
        plain, images = EncodedChat(ids, replies, body), images_of(chat)
        return self._with_images(plain, marked.text, images) if images else plain

    def _with_images(self, plain: EncodedChat, text: str, images: list[Any]) -> EncodedChat:
        """The chat with the processor's image tokens."""
        inputs = dict(self._processor(text=[text], images=images, add_special_tokens=False, return_tensors="pt"))
        ids = inputs.pop("input_ids")[0].tolist()
        inputs.pop("attention_mask", None)
        replies = moved(plain.replies, plain.ids, ids)
        if replies is None:
            raise TemplateError(
                f"{type(self._processor).__name__} gives other tokens for a chat's replies when the chat has images, "
                "so no loss mask can be made for it."
            )
        return EncodedChat(ids, replies, plain.body, images, inputs)
