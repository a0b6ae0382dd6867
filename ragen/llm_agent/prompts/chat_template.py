r"""Renders chats by the template of the tokenizer or processor, and finds contents in the text.

:class:`ChatTemplate` renders. :func:`outlines` distinguishes contents from the template's own text in a rendered chat,
for any template: the chat is rendered again as a *skeleton*, in which every content is replaced by a unique mark::

    chat      <|im_start|>user\nTurn 1: ..<|im_end|>\n<|im_start|>assistant\n<think>left</think><answer>..
    skeleton  <|im_start|>user\nzq0qz<|im_end|>\n<|im_start|>assistant\n<think>zq1qz</think><answer>..

The text between the marks is the template's. Walking through skeleton and chat side by side gives the place of every
content, even if the template trims contents, adds a system message, or drops the thoughts of earlier turns. The
``<think>`` and ``<answer>`` tags of replies stay in the skeleton, since templates look at them. Contents cannot forge
anything, since they are found by place and never searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ragen.errors import ConfigError, one_line
from ragen.llm_agent.prompts.replies import ANSWER, REPLY_TAGS, THINK

Message = dict[str, Any]
"""``role``, and ``content``: a text, or a list of items where a processor takes images."""

OPENING_TAGS = (THINK, ANSWER)
_TAGS = re.compile(f"({'|'.join(map(re.escape, REPLY_TAGS))})")
_MARK = re.compile(r"zq(\d+)qz")


class ChatTemplate:
    """The chat template of a processor or tokenizer.

    For a template without system messages, the system's text is put at the beginning of the first user message.
    """

    def __init__(self, tokenizer: Any, processor: Any = None, template_kwargs: dict[str, Any] | None = None) -> None:
        """Find the template and try it.

        Args:
            tokenizer: A Hugging Face tokenizer.
            processor: A Hugging Face processor; None for text alone.
            template_kwargs: Passed on to the template.

        Raises:
            ConfigError: There is no template, or it cannot render a single user message.
        """
        self.owner = processor if getattr(processor, "chat_template", None) else tokenizer
        if getattr(self.owner, "chat_template", None) is None:
            name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
            raise ConfigError(
                f"tokenizer {name!r} has no chat template, so chats cannot be turned into tokens; "
                "use an instruction-tuned model's tokenizer, or set tokenizer.chat_template."
            )
        self._kwargs = dict(template_kwargs or {})
        self._as_items = processor is not None
        self._try_user_message()
        self.knows_system = self._try_system_message()

    def render(self, chats: Sequence[Sequence[Message]], add_generation_prompt: bool = False) -> list[str]:
        """The text of each chat.

        Args:
            chats: Lists of messages.
            add_generation_prompt: Whether to open a reply at the end.
        """
        if not self.knows_system:
            chats = [_without_system(chat) for chat in chats]
        return [self._render(chat, add_generation_prompt) for chat in chats]

    def _render(self, chat: Sequence[Message], add_generation_prompt: bool = False) -> str:
        return self.owner.apply_chat_template(
            list(chat), tokenize=False, add_generation_prompt=add_generation_prompt, **self._kwargs
        )

    def message(self, role: str, text: str) -> Message:
        """A message of one text, in the form that this template expects."""
        return {"role": role, "content": [{"type": "text", "text": text}] if self._as_items else text}

    def _try_user_message(self) -> None:
        try:
            text = self._render([self.message("user", "probe")], True)
        except Exception as error:  # templates raise whatever they like
            raise ConfigError(f"the tokenizer's chat template fails on a user message: {one_line(error)}.") from error
        if "probe" not in text:
            raise ConfigError("the tokenizer's chat template leaves out the user message.")

    def _try_system_message(self) -> bool:
        try:
            return "probe" in self._render([self.message("system", "probe"), self.message("user", "hello")])
        except Exception:  # templates usually raise if they do not support system messages
            return False


def _without_system(chat: Sequence[Message]) -> list[Message]:
    """The chat with any system message put before the first user message's content."""
    if len(chat) < 2 or chat[0]["role"] != "system":
        return list(chat)
    system, user, *rest = chat
    if isinstance(user["content"], str):
        content: Any = f"{system['content']}\n\n{user['content']}"
    else:
        content = [*system["content"], *user["content"]]
    return [{**user, "content": content}, *rest]


@dataclass(frozen=True)
class Part:
    """A part of a message's text.

    Attributes:
        text: The text.
        role: The role of the message.
        message: The index of the message.
        tag_before: The tag of a reply directly before it, if any.
        tag_after: The one directly after it.
    """

    text: str
    role: str
    message: int
    tag_before: str = ""
    tag_after: str = ""


@dataclass(frozen=True)
class Place:
    """The place of a part in a rendered chat: ``[start, end)`` in characters."""

    part: Part
    start: int
    end: int


@dataclass(frozen=True)
class Outline:
    """A rendered chat as the template's own texts and the parts between them.

    Attributes:
        literals: The template's texts before, between and after the parts.
        parts: The parts in the order of their appearance; some may be missing.
    """

    literals: list[str]
    parts: list[Part]

    def locate(self, text: str) -> list[Place] | None:
        """Find the parts in the chat.

        Args:
            text: The rendered chat.

        Returns:
            A place for each part, or None if the template changed contents in other ways than by trimming.
        """
        position, places = len(self.literals[0]), []
        if not text.startswith(self.literals[0]):
            return None
        for part, literal in zip(self.parts, self.literals[1:], strict=True):
            ends = (position + len(shape) for shape in _shapes(part.text) if text.startswith(shape, position))
            end = next((end for end in ends if text.startswith(literal, end)), None)
            if end is None:
                return None
            places.append(Place(part, position, end))
            position = end + len(literal)
        return places if position == len(text) else None

    def fill(self) -> tuple[str, list[Place]]:
        """The chat with unchanged contents, and the places of its parts."""
        text, places = self.literals[0], []
        for part, literal in zip(self.parts, self.literals[1:], strict=True):
            places.append(Place(part, len(text), len(text) + len(part.text)))
            text += part.text + literal
        return text, places


def outlines(template: ChatTemplate, chats: Sequence[Sequence[Message]]) -> list[Outline]:
    """The outline of each chat as the template renders it."""
    skeletons = [_Skeleton(chat) for chat in chats]
    rendered = template.render([skeleton.chat for skeleton in skeletons])
    return [_outline(text, skeleton.parts) for text, skeleton in zip(rendered, skeletons, strict=True)]


def _outline(rendered: str, parts: list[Part]) -> Outline:
    pieces = _MARK.split(rendered)
    return Outline(pieces[::2], [parts[int(number)] for number in pieces[1::2]])


class _Skeleton:
    """A chat with marks instead of texts, and the part of each mark."""

    def __init__(self, chat: Sequence[Message]) -> None:
        self.parts: list[Part] = []
        self.chat = [self._message(index, message) for index, message in enumerate(chat)]

    def _message(self, index: int, message: Message) -> Message:
        role, content = message["role"], message["content"]
        if isinstance(content, str):
            return {**message, "content": self._text(index, role, content)}
        items = [
            {**item, "text": self._text(index, role, item["text"])} if item["type"] == "text" else item
            for item in content
        ]
        return {**message, "content": items}

    def _text(self, index: int, role: str, text: str) -> str:
        """The text with a mark for each part between tags, even for empty ones, to show omissions.

        There is none before a tag that opens the text, since templates check how texts begin.
        """
        pieces: list[Any] = _TAGS.split(text) if role == "assistant" else [text]
        marked = list(pieces)
        for place in range(0, len(pieces), 2):
            before, after = "".join(pieces[max(0, place - 1) : place]), "".join(pieces[place + 1 : place + 2])
            if place or pieces[place] or after not in OPENING_TAGS:
                marked[place] = f"zq{len(self.parts)}qz"
                self.parts.append(Part(pieces[place], role, index, before, after))
        return "".join(marked)


def _shapes(text: str) -> Iterator[str]:
    """The text, and its possible forms after trimming."""
    for left in (text, text.lstrip("\n"), text.lstrip()):
        yield from (left, left.rstrip("\n"), left.rstrip())
