"""OpenAI's chat completions: building requests, reading answers, and classifying failures."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeGuard

from openai import APIConnectionError, APIStatusError, APITimeoutError, DefaultAsyncHttpxClient

from ragen.errors import one_line
from ragen.files import valid_text
from ragen.llm_agent.backends.base import Reply
from ragen.output import printable, shown_address

_RETRIES = "x-stainless-retry-count"  # a header in which openai's client counts
_BEGIN = 4096  # bytes of an unreadable answer

_base = next(each for each in DefaultAsyncHttpxClient.__mro__ if each.__name__ == "AsyncClient")
http: Any = import_module(_base.__module__.partition(".")[0])
"""``httpx``, or the library that the installed ``openai`` uses instead."""


class UnreadableAnswerError(http.RemoteProtocolError):  # type: ignore[misc]
    """An answer is not a chat completion, or was broken off by the server."""


class HttpClient(DefaultAsyncHttpxClient):
    """The client below openai's: bounds every try of a request, and reads its answer before it is accepted.

    openai's client retries lost connections and statuses such as 429 and 503. An answer that cannot be read is raised
    here as a connection that failed, and an error that is sent with status 200 gets the status that it names; both are
    thereby retried by the same rules. Redirects are not followed, since requests carry a key, and the user chose the
    address. Connections are not limited, since the backend limits concurrent requests.
    """

    def __init__(self, timeout: float, read: Callable[[dict[str, Any]], Any], may_retry: Callable[[], bool]) -> None:
        """Create the client.

        Args:
            timeout: Seconds for one try, from the first byte sent to the last one received.
            read: Reads a JSON answer to a POST, which is kept in the response's ``extensions["read"]``; raises
                UnreadableAnswerError.
            may_retry: Whether requests are tried again; a first try was recorded as sent, and so is sent.
        """
        limits = http.Limits(max_connections=None, max_keepalive_connections=None)
        super().__init__(limits=limits, follow_redirects=False)
        self._timeout_s, self._read, self._may_retry = timeout, read, may_retry

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request and receive the whole answer."""
        if request.headers.get(_RETRIES, "0") != "0" and not self._may_retry():
            raise asyncio.CancelledError
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await super().send(request, **{**options, "stream": False})
        except TimeoutError as error:
            raise http.ReadTimeout("the server did not answer in time", request=request) from error
        if request.method == "POST" and answer.is_success:
            found = read_json(answer.content)
            if (fault := found.get("error")) and not found.get("choices"):
                code = fault.get("code") if isinstance(fault, dict) else None
                answer.status_code = code if isinstance(code, int) and 400 <= code < 600 else 502
            else:
                answer.extensions["read"] = self._read(found)
        return answer


def read_json(body: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        UnreadableAnswerError: It is none, or is nested too deeply.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        begin = " ".join(body[:_BEGIN].decode("utf-8", "replace").split())  # shortened once keys are removed
        raise UnreadableAnswerError(f"{one_line(error)}; it begins with: {begin}") from None
    return found if isinstance(found, dict) else {}


_MOST = 2**31 - 1  # no vocabulary, no answer and no log-probability is larger
_ROUNDING = 1e-3  # tolerance for log-probabilities above 0
_LONGEST_REASON = 40  # characters of a finish_reason
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


# Requests


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


# Replies


def read_completion(completion: dict[str, Any]) -> Reply:
    """The text, the token counts and, if the server sends them, the tokens of a chat completion.

    Some servers return a reasoning model's thoughts separately; they are put back before the text, as a thought.

    Args:
        completion: The server's answer.

    Raises:
        UnreadableAnswerError: It is not a chat completion, or the server broke the reply off.
    """
    choices = completion.get("choices")
    choice = _section(choices[0] if isinstance(choices, list) and choices else None)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise UnreadableAnswerError("there is no choice with a message in it")
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
        models = read_json(body).get("data")
    except UnreadableAnswerError:
        return []
    listed = models if isinstance(models, list) else []
    return [model for model in listed if isinstance(model, dict) and isinstance(model.get("id"), str)]


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


# Failures


class RequestFailure(NamedTuple):
    """The failure of a request.

    Attributes:
        reason: The reason, for messages.
        retries: Number of times it was tried again.
        is_out_of_context: Whether the prompt does not fit the model's context.
    """

    reason: str
    retries: int = 0
    is_out_of_context: bool = False


def diagnose(error: Exception) -> RequestFailure:
    """The failure of a request, from the client's exception."""
    if not isinstance(error, APIConnectionError | APIStatusError):
        return RequestFailure(f"{type(error).__name__}: {one_line(error)}")
    retries = int(error.request.headers.get(_RETRIES, 0))
    if isinstance(error, APIConnectionError):
        if isinstance(error.__cause__, UnreadableAnswerError):
            return RequestFailure(f"the server's answer cannot be read: {one_line(error.__cause__)}", retries)
        if isinstance(error, APITimeoutError):
            return RequestFailure("the server did not answer in time", retries)
        return RequestFailure(f"the connection failed: {cause_of(error)}", retries)
    status = error.status_code
    if target := redirect_of(error):
        return RequestFailure(f"HTTP {status}: the server redirects to {target}; redirects are not followed", retries)
    said = error.body.get("message") if isinstance(error.body, Mapping) else error.body
    reason = f"HTTP {status}: {' '.join(str(said or error.message).split())}"
    words = f"{error.message} {error.body}"  # codes and types may say more than the message
    if status == 413 or (status in (400, 422, 500) and _OUT_OF_CONTEXT.search(words)):
        return RequestFailure(reason, retries, is_out_of_context=True)
    refused = isinstance(error.body, Mapping) and error.body.get("param")
    return RequestFailure(
        f"{reason} To leave it out: 'actor.openai.request={{{refused}: null}}'" if refused else reason, retries
    )


def redirect_of(error: APIStatusError) -> str:
    """The redirect's target, without credentials, query and fragment; empty if the answer is no redirect."""
    if not 300 <= error.status_code < 400:
        return ""
    return shown_address(error.response.headers.get("location", "")) or "another address"


def cause_of(error: BaseException) -> str:
    """The root cause of a connection's failure."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(error)
