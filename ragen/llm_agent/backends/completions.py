"""Chats as a server that speaks OpenAI's chat completions takes them, and what it answers as replies."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from ragen.llm_agent.backends.base import Reply, valid_text

_MOST = 2**31 - 1  # no vocabulary, no answer and no log-probability is larger
_ROUNDING = 1e-3  # what a log-probability may be above 0


class UnreadableAnswerError(Exception):
    """A server answered with something that is not a chat completion."""


def read_completion(completion: Any) -> Reply:
    """The text, the token counts and, where a server tells them, the tokens of a chat completion.

    A reasoning model's thoughts come apart from its text on some servers; they are put back before it, as a thought.

    Raises:
        UnreadableAnswerError: It is something else.
    """
    choices = getattr(completion, "choices", None)
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = getattr(choice, "message", None)
    if message is None:
        raise UnreadableAnswerError("there is no choice with a message in it")
    refusal, calls = getattr(message, "refusal", None), getattr(message, "tool_calls", None)
    text = getattr(message, "content", None) or refusal or ""
    thought = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    if isinstance(thought, str) and "<think>" not in text:
        text = f"<think>{thought.strip()}</think>{text.lstrip()}"
    if not isinstance(text, str):
        raise UnreadableAnswerError(f"the message's content is a {type(text).__name__}")
    counted = getattr(completion, "usage", None)
    counts = {name: getattr(counted, name, None) for name in ("prompt_tokens", "completion_tokens")}
    reason = getattr(choice, "finish_reason", None)
    return Reply(
        text,
        *_tokens(completion, choice),
        cut_off=reason == "length",
        finish_reason=valid_text(reason) if isinstance(reason, str) else None,
        refused=bool(refusal),
        tool_calls=len(calls) if isinstance(calls, list) else 0,
        usage={name: count for name, count in counts.items() if _is_number(count) and 0 <= count <= _MOST},
    )


def _tokens(completion: Any, choice: Any) -> tuple[list[int] | None, list[float] | None, list[int] | None]:
    """The reply's tokens, their log-probabilities, and the prompt's tokens, as vLLM tells them.

    One's own tokens of a chat need not be the server's, so a reply's without its prompt's are worth nothing.
    """
    reply, prompt = getattr(choice, "token_ids", None), getattr(completion, "prompt_token_ids", None)
    if not _are_ids(reply) or not _are_ids(prompt):
        return None, None, None
    steps = getattr(getattr(choice, "logprobs", None), "content", None)
    log_probs = [getattr(step, "logprob", None) for step in steps] if isinstance(steps, list) else []
    return reply, log_probs if len(log_probs) == len(reply) and _are_log_probs(log_probs) else None, prompt


def _are_ids(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list) and bool(value) and all(type(token) is int and 0 <= token <= _MOST for token in value)
    )


def _are_log_probs(values: list[Any]) -> TypeGuard[list[float]]:
    return all(_is_number(value) and -_MOST <= value <= _ROUNDING for value in values)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def api_messages(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """A chat as the server takes it: images as data URLs."""
    return [{"role": message["role"], "content": _content(message["content"])} for message in messages]


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [_data_url(item["image"]) if item["type"] == "image" else dict(item) for item in content]


def _data_url(image: Any) -> dict[str, Any]:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
