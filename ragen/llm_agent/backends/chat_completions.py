"""OpenAI's chat completions: building requests, reading answers, and classifying failures."""

from __future__ import annotations

import base64
import io
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, TypeGuard

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

from ragen.llm_agent.backends.base import Reply, valid_text
from ragen.llm_agent.backends.http_client import AnswerTooLongError, http_library
from ragen.output import printable, shown_address
from ragen.settings import one_line

_MOST = 2**31 - 1  # no vocabulary, no answer and no log-probability is larger
_ROUNDING = 1e-3  # tolerance for log-probabilities above 0
_LONGEST_REASON = 40  # characters of a finish_reason
_BEGIN = 4096  # bytes of an unreadable answer
_RETRIED_STATUS = frozenset({408, 409, 425, 429})
_SERVER_FAULTS = frozenset({"error", "abort"})
"""Values of ``finish_reason`` with which the server, not the model, ended the reply (OpenRouter; vLLM, SGLang)."""

UNREADABLE = (APIError, ValueError, TypeError, AttributeError)
"""Exceptions that the client may raise for an answer in an unknown format."""


class UnreadableAnswerError(Exception):
    """A server's answer is not a chat completion, or the server failed while it wrote a reply.

    Attributes:
        passing: Whether another try may succeed.
    """

    def __init__(self, message: str, passing: bool = True) -> None:
        """See the class."""
        super().__init__(message)
        self.passing = passing


# What is sent


def api_messages(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """A chat in the server's format, with images as data URLs."""
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


# What comes back


def read_json(body: bytes) -> Any:
    """Parse a JSON body.

    Raises:
        UnreadableAnswerError: It is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        begin = " ".join(body[:_BEGIN].decode("utf-8", "replace").split())  # shortened once keys are removed
        raise UnreadableAnswerError(f"{one_line(error)}; it begins with: {begin}") from None


def read_completion(body: bytes) -> Reply:
    """The text, the token counts and, if the server sends them, the tokens of a chat completion.

    Some servers return a reasoning model's thoughts separately; they are put back before the text, as a thought.

    Args:
        body: The body of the server's answer.

    Raises:
        UnreadableAnswerError: It is not a chat completion, or the server reports a failure.
    """
    completion = _section(read_json(body))
    choices = completion.get("choices")
    choice = _section(choices[0] if isinstance(choices, list) and choices else None)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise _no_choice(completion)
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason in _SERVER_FAULTS:
        raise UnreadableAnswerError(f"the server ended the reply with finish_reason {reason!r}")
    refusal, calls = message.get("refusal"), message.get("tool_calls")
    text = message.get("content") or refusal or ""
    if not isinstance(text, str):
        raise UnreadableAnswerError(f"the message's content is a {type(text).__name__}")
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str) and "<think>" not in text:
        text = f"<think>{thought.strip()}</think>{text.lstrip()}"
    counted = _section(completion.get("usage"))
    counts = {name: counted.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return Reply(
        text,
        *_tokens(completion, choice),
        cut_off=reason == "length",
        finish_reason=printable(valid_text(reason), _LONGEST_REASON) if isinstance(reason, str) else None,
        refused=bool(refusal),
        tool_calls=len(calls) if isinstance(calls, list) else 0,
        usage={name: count for name, count in counts.items() if _is_number(count) and 0 <= count <= _MOST},
    )


def model_list(body: bytes) -> list[dict[str, Any]]:
    """The models that a server lists, each with its ``id``; empty if the answer is not such a list."""
    try:
        models = _section(read_json(body)).get("data")
    except UnreadableAnswerError:
        return []
    listed = models if isinstance(models, list) else []
    return [model for model in listed if isinstance(model, dict) and isinstance(model.get("id"), str)]


def _no_choice(completion: Mapping[str, Any]) -> UnreadableAnswerError:
    """The error for an answer without a choice, in the server's words if it answers 200 with an error."""
    error = completion.get("error")
    if error is None:
        return UnreadableAnswerError("there is no choice with a message in it")
    said = error.get("message") if isinstance(error, dict) else error
    code = error.get("code") if isinstance(error, dict) else None
    passing = not isinstance(code, int) or not 400 <= code < 500 or code in _RETRIED_STATUS
    return UnreadableAnswerError(f"it is an error: {said if isinstance(said, str) else json.dumps(error)}", passing)


def _section(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tokens(completion: Any, choice: Any) -> tuple[list[int] | None, list[float] | None, list[int] | None]:
    """The reply's tokens, their log-probabilities, and the prompt's tokens, as vLLM sends them.

    The client's tokens of a chat may differ from the server's, so a reply's tokens are useless without the prompt's.
    """
    reply, prompt = choice.get("token_ids"), completion.get("prompt_token_ids")
    if not _are_ids(reply) or not _are_ids(prompt):
        return None, None, None
    steps = _section(choice.get("logprobs")).get("content")
    log_probs = [_section(step).get("logprob") for step in steps] if isinstance(steps, list) else []
    return reply, log_probs if len(log_probs) == len(reply) and _are_log_probs(log_probs) else None, prompt


def _are_ids(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list) and bool(value) and all(type(token) is int and 0 <= token <= _MOST for token in value)
    )


def _are_log_probs(values: list[Any]) -> TypeGuard[list[float]]:
    return all(_is_number(value) and -_MOST <= value <= _ROUNDING for value in values)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


# What may go wrong


@dataclass(frozen=True)
class Failure:
    """Why a request failed.

    Attributes:
        reason: The reason, for messages.
        passing: Whether another try may succeed.
        wait: Seconds until the server wants another try; None if it did not say.
        has_arrived: Whether the server received the request; None if unknown, since no answer came.
    """

    reason: str
    passing: bool
    wait: float | None = None
    has_arrived: bool | None = True


def diagnose(error: Exception) -> Failure:
    """Why a try failed, and whether another one may succeed."""
    library = http_library()
    bottom = _bottom(error)
    is_unsent = isinstance(bottom, library.ConnectError | library.ConnectTimeout | ConnectionRefusedError)
    has_arrived = False if is_unsent else None
    if isinstance(bottom, AnswerTooLongError | UnreadableAnswerError):
        passing = isinstance(bottom, AnswerTooLongError) or bottom.passing
        return Failure(f"the server's answer cannot be read: {one_line(bottom)}", passing)
    if isinstance(error, TimeoutError | APITimeoutError):
        return Failure("the server did not answer in time", passing=True, has_arrived=has_arrived)
    if isinstance(error, APIConnectionError):
        reason = f"the connection failed: {cause_of(error)}"
        return Failure(reason, passing=True, has_arrived=has_arrived)
    if isinstance(error, APIStatusError):
        status, code = error.status_code, error.code
        if target := redirect_of(error):
            return Failure(
                f"HTTP {status}: the server redirects to {target}; redirects are not followed", passing=False
            )
        passing = (status in _RETRIED_STATUS or status >= 500) and code != "insufficient_quota"
        return Failure(f"HTTP {status}: {_said(error)}", passing, _retry_after(error))
    if isinstance(error, UNREADABLE):
        return Failure(f"the server's answer cannot be read: {one_line(error)}", passing=True)
    return Failure(f"{type(error).__name__}: {one_line(error)}", passing=False)


def redirect_of(error: APIStatusError) -> str:
    """The redirect's target, without credentials, query and fragment; empty if the answer is no redirect."""
    if not 300 <= error.status_code < 400:
        return ""
    return shown_address(error.response.headers.get("location", "")) or "another address"


def _said(error: APIStatusError) -> str:
    body = error.body.get("message") if isinstance(error.body, Mapping) else None
    return " ".join(str(body or error.message).split())


def _retry_after(error: APIStatusError) -> float | None:
    """The seconds of a ``Retry-After`` header, in either of its forms (RFC 9110): a number of them, or a date."""
    value = error.response.headers.get("retry-after", "")
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time()


def cause_of(error: BaseException) -> str:
    """The root cause of a connection's failure."""
    return "it took too long" if isinstance(error, TimeoutError | APITimeoutError) else one_line(_bottom(error))


def _bottom(error: BaseException) -> BaseException:
    """The first exception in the chain of causes that is this package's or the HTTP library's, else the last."""
    library = http_library()
    known = (AnswerTooLongError, UnreadableAnswerError, library.ConnectError, library.ConnectTimeout)
    while error.__cause__ is not None and not isinstance(error, known):
        error = error.__cause__
    return error
