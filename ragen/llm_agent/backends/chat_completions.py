"""OpenAI's chat completions: building requests, reading answers, and classifying failures."""

from __future__ import annotations

import base64
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
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
_THOUGHT = re.compile("think|reason|summary")
_CUT_OFF = ("length", "model_context_window_exceeded")
_OUT_OF_CONTEXT = re.compile(
    r"context[ _-]?(?:length|window|size|limit)"
    r"|max(?:imum)?[ _](?:(?:allowed|model|input|prompt|sequence)[ _])+(?:length|len|tokens)\b"
    r"|too many (?:input |prompt )?tokens|reduce the (?:length|size) of|`inputs`[^.]* (?:less than|<=)"
    r"|\b(?:prompt|inputs?|messages|conversation|request)\b[^.]{0,80} (?:is|are) too (?:long|large)"
    r"|\b(?:prompt|inputs?|messages|conversation|request)\b[^.]{0,80}\b(?:tokens?|length)\b[^.]{0,80}"
    r"(?:exceed|too (?:long|large)|longer than)",
    re.IGNORECASE,
)
_SERVER_FAULTS = frozenset({"error", "abort"})
"""Values of ``finish_reason`` with which the server, not the model, ended the reply (OpenRouter; vLLM, SGLang)."""

UNREADABLE = (APIError, ValueError, TypeError, AttributeError)
"""Exceptions that the client may raise for an answer in an unknown format."""


class UnreadableAnswerError(Exception):
    """A server's answer is not a chat completion, or the server failed while it wrote a reply.

    Attributes:
        passing: Whether another try may succeed.
        said: The error that the server sent; empty if it sent none.
    """

    def __init__(self, message: str, passing: bool = True, said: str = "") -> None:
        """See the class."""
        super().__init__(message)
        self.passing = passing
        self.said = said


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
    content = message.get("content") or refusal or ""
    if not isinstance(content, str | list | dict):
        raise UnreadableAnswerError(f"the message's content is a {type(content).__name__}")
    parts = list(_parts(content))
    beside = list(_parts(message.get("reasoning_content") or message.get("reasoning"), is_thought=True))
    text = "".join(said for is_thought, said in parts if not is_thought)
    thought = "".join(said for is_thought, said in beside or parts if is_thought)
    if thought and "<think>" not in text:
        text = f"<think>{thought.strip()}</think>{text.lstrip()}"
    counted = _section(completion.get("usage"))
    counts = {name: counted.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return Reply(
        text,
        *_tokens(completion, choice),
        cut_off=reason in _CUT_OFF,
        finish_reason=printable(valid_text(reason), _LONGEST_REASON) if isinstance(reason, str) else None,
        refused=bool(refusal),
        tool_calls=len(calls) if isinstance(calls, list) else 0,
        usage={name: count for name, count in counts.items() if _is_number(count) and 0 <= count <= _MOST},
    )


def _parts(value: Any, is_thought: bool = False) -> Iterator[tuple[bool, str]]:
    """The texts of a message's content, in order, each with whether it is a thought.

    A content is a text, a part, or a list of these. A part has a type and, by its type, a text or further parts.
    """
    if isinstance(value, str):
        yield is_thought, value
    elif isinstance(value, list):
        for each in value:
            yield from _parts(each, is_thought)
    elif isinstance(value, dict):
        is_thought = is_thought or _THOUGHT.search(str(value.get("type"))) is not None
        for name in ("thinking", "reasoning", "summary", "text", "content", "refusal", "value"):
            yield from _parts(value.get(name), is_thought or _THOUGHT.search(name) is not None)


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
    words = said if isinstance(said, str) else json.dumps(error)
    return UnreadableAnswerError(f"it is an error: {words}", passing, json.dumps(error))


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
        is_out_of_context: Whether the prompt does not fit the model's context.
        cure: The key that settles it, for messages; may be empty.
    """

    reason: str
    passing: bool
    wait: float | None = None
    has_arrived: bool | None = True
    is_out_of_context: bool = False
    cure: str = ""


def diagnose(error: Exception, fields: Mapping[str, Any] | None = None) -> Failure:
    """Why a try failed, and whether another one may succeed.

    Args:
        error: What the client raised.
        fields: The fields of the request, of which the server may refuse one.
    """
    library = http_library()
    bottom = _bottom(error)
    is_unsent = isinstance(bottom, library.ConnectError | library.ConnectTimeout | ConnectionRefusedError)
    has_arrived = False if is_unsent else None
    if isinstance(bottom, AnswerTooLongError | UnreadableAnswerError):
        passing = isinstance(bottom, AnswerTooLongError) or bottom.passing
        if isinstance(bottom, UnreadableAnswerError) and _OUT_OF_CONTEXT.search(bottom.said):
            return Failure(one_line(bottom), passing=False, is_out_of_context=True)
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
        reason = f"HTTP {status}: {_said(error)}"
        if status == 413 or (status in (400, 422, 500) and _OUT_OF_CONTEXT.search(_words(error))):
            return Failure(reason, passing=False, is_out_of_context=True)
        if status in (400, 422):
            return Failure(reason, passing=False, cure=_cure(error, fields or {}))
        passing = (status in _RETRIED_STATUS or status >= 500) and code != "insufficient_quota"
        return Failure(reason, passing, _retry_after(error))
    if isinstance(error, UNREADABLE):
        return Failure(f"the server's answer cannot be read: {one_line(error)}", passing=True)
    return Failure(f"{type(error).__name__}: {one_line(error)}", passing=False)


def _words(error: APIStatusError) -> str:
    """All that a server says: the message, and codes and types, which may say more."""
    return f"{error.message} {error.body}"


def _cure(error: APIStatusError, fields: Mapping[str, Any]) -> str:
    """The key that leaves out the fields which the server refuses, as far as it names them."""
    words = _words(error)
    named = [name for name in fields if name == error.param or re.search(rf"(?<!\w){name}(?!\w)", words)]
    changes = dict.fromkeys([error.param] if error.param in named else named, "null")
    if "max_tokens" in changes and "max_completion_tokens" in words:
        changes["max_completion_tokens"] = str(fields["max_tokens"])
    told = ", ".join(f"{name}: {value}" for name, value in changes.items())
    return f"; to send a request without it: 'actor.openai.request={{{told}}}'" if told else ""


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
