"""Chats to text, by the chat template that comes with the tokenizer or processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.loading import one_line
from ragen.llm_agent.prompting.conversation import Message


class ChatTemplate:
    """The chat template of a tokenizer, or of a processor that has one of its own.

    A template that knows no system message gets the system's text at the head of the first user message.
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
        """A message of one text, in the form that this template takes."""
        return {"role": role, "content": [{"type": "text", "text": text}] if self._as_items else text}

    def _try_user_message(self) -> None:
        try:
            text = self._render([self.message("user", "probe")], True)
        except Exception as error:  # templates raise whatever they like
            raise ConfigError(f"the tokenizer's chat template fails on a user message: {one_line(error)}.") from error
        if "probe" not in text:
            raise ConfigError("the tokenizer's chat template leaves out what the user says.")

    def _try_system_message(self) -> bool:
        try:
            return "probe" in self._render([self.message("system", "probe"), self.message("user", "hello")])
        except Exception:  # the usual way of templates to say that they know no system message
            return False


def _without_system(chat: Sequence[Message]) -> list[Message]:
    """The chat with its system message, if any, put before the first user message's content."""
    if len(chat) < 2 or chat[0]["role"] != "system":
        return list(chat)
    system, user, *rest = chat
    if isinstance(user["content"], str):
        content: Any = f"{system['content']}\n\n{user['content']}"
    else:
        content = [*system["content"], *user["content"]]
    return [{**user, "content": content}, *rest]
