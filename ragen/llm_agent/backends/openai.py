"""The backend that asks a server which speaks OpenAI's chat completions: OpenAI, vLLM, Ollama, llama.cpp, a proxy.

::

    generate(requests) --> one task per request --> [slots] --> server
                                  ^                                |
                                  +-- wait, try again <-- 429, 5xx, time-out, cut connection, unreadable answer

Every request is on its own: one that still fails after its retries gives a reply with ``error``, which ends its
trajectory and no other. The key comes from an environment variable, and is taken out of every message.
"""

from __future__ import annotations

import asyncio
import base64
import io
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Self, TypeGuard

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI, AuthenticationError

from ragen.errors import ConfigError
from ragen.llm_agent.backends.base import Reply, Request, Sampling, valid_text
from ragen.llm_agent.backends.endpoint import Access, ApiSettings, read_settings
from ragen.llm_agent.backends.loop import LoopThread
from ragen.llm_agent.backends.tokens import MAX_MODEL_LEN, check_context
from ragen.llm_agent.config.loading import one_line, setting

CHECK_S = 10.0  # seconds that a server has to answer when it is looked for
LONGEST_WAIT_S = 60.0
_RETRIED_STATUS = frozenset({408, 409, 425, 429})
_LONGEST_REASON = 300  # characters
_MOST = 2**31 - 1  # no vocabulary, no answer and no log-probability is larger
_ROUNDING = 1e-3  # what a log-probability may be above 0

Pause = Callable[[float], Awaitable[Any]]


class UnreadableAnswerError(Exception):
    """A server answered with something that is not a chat completion."""


# What reading a body may raise: the client takes some bodies, such as a bare list, for what they should have been.
UNREADABLE = (UnreadableAnswerError, APIError, ValueError, TypeError, AttributeError)


@dataclass(frozen=True)
class Failure:
    """Why a request failed.

    Attributes:
        reason: In words.
        passing: Whether it may work the next time.
        wait: Seconds after which the server asks to be tried again; None if it did not say.
    """

    reason: str
    passing: bool
    wait: float | None = None


@dataclass
class Attempts:
    """One request's tries so far.

    Attributes:
        count: How many there were.
        failure: Why the last one failed.
    """

    count: int = 0
    failure: Failure = field(default_factory=lambda: Failure("not tried", passing=True))

    @property
    def usage(self) -> dict[str, float]:
        """Their counts."""
        return {"requests": 1, "retries": self.count - 1}


class OpenAIBackend:
    """Asks a server, many prompts at a time.

    Attributes:
        thread_safe: True: callers share the slots.
        settings: What was configured.
    """

    thread_safe: ClassVar[bool] = True

    def __init__(
        self, settings: ApiSettings, access: Access | None = None, pause: Pause = asyncio.sleep, seed: int = 0
    ) -> None:
        """Take the settings; nothing is sent yet.

        Args:
            settings: Where to ask and how.
            access: The server's key; None for servers that want none.
            pause: Waits for some seconds between two tries.
            seed: Of the waits' jitter.
        """
        self.settings = settings
        self._access = access or Access()
        self._pause = pause
        self._jitter = random.Random(seed)
        self._slots = asyncio.Semaphore(settings.max_concurrency)
        self._threads = LoopThread("ragen-openai")
        self._client: AsyncOpenAI | None = None

    def __repr__(self) -> str:
        """Without the key."""
        return f"OpenAIBackend(model={self.settings.model!r}, base_url={self.settings.base_url!r})"

    @classmethod
    def from_config(cls, config: Any, tokenizer: Any = None) -> Self:
        """See :meth:`Backend.from_config`; see :func:`~ragen.llm_agent.backends.endpoint.read_settings` for the keys.

        The server is asked for its models: one that is not there, or that refuses the key, is found out here.
        """
        backend = cls(*read_settings(config))
        backend.settings = backend.checked(setting(config, MAX_MODEL_LEN, int, None))
        return backend

    def checked(self, wanted_context: int | None = None) -> ApiSettings:
        """The settings, completed by what the server says of its models.

        Args:
            wanted_context: Tokens of a context that the model must have room for; None if unlimited.

        Raises:
            ConfigError: The server cannot be reached or refuses the key, it is not said which of its models to ask,
                or that model's context is too short.
        """
        models = asyncio.run(self._models())
        settings = self.settings.with_model(models)
        described = next((model for model in models if model.id == settings.model), None)
        context = getattr(described, "max_model_len", None)  # vLLM tells it
        check_context(wanted_context, context if isinstance(context, int) else None, str(settings.model))
        return settings

    async def _models(self) -> list[Any]:
        """The server's models; empty where it does not tell."""
        url = self.settings.base_url
        client = self._new_client()
        try:
            async with asyncio.timeout(CHECK_S), client:
                page = await client.models.list()
        except AuthenticationError as error:
            raise ConfigError(
                f"the server at {url} refuses the key of environment variable {self.settings.api_key_env!r}: "
                f"{self._shown(one_line(error))}"
            ) from None
        except (APIConnectionError, TimeoutError) as error:
            raise ConfigError(
                f"configuration key 'actor.base_url' is {url!r}, and no server answers there: "
                f"{self._shown(_cause(error)).rstrip('.')}."
            ) from None
        except UNREADABLE:
            return []  # a server is there; not all of them list their models, or to everyone
        return [model for model in getattr(page, "data", None) or [] if isinstance(getattr(model, "id", None), str)]

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """See :meth:`Backend.generate`."""
        return self._threads.run(self._answer_all(requests, sampling)) if requests else []

    async def _answer_all(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        if self._client is None:
            self._client = self._new_client()
        return list(await asyncio.gather(*(self._answer(request, sampling) for request in requests)))

    def _new_client(self) -> AsyncOpenAI:
        try:
            return AsyncOpenAI(
                api_key=self._access.key or "none",
                default_headers=self._access.headers,
                base_url=self.settings.base_url,
                timeout=self.settings.timeout,
                max_retries=0,  # done here, where it is counted and also done for answers that cannot be read
            )
        except Exception as error:  # such as an environment variable with a proxy that is none
            raise ConfigError(
                f"no client can be made for the server at {self.settings.base_url}: {self._shown(one_line(error))}"
            ) from None

    async def _answer(self, request: Request, sampling: Sampling) -> Reply:
        attempts = Attempts()
        async with self._slots:
            while attempts.failure.passing and attempts.count <= self.settings.max_retries:
                if attempts.count:
                    await self._pause(self._wait(attempts))
                attempts.count += 1
                try:
                    return await self._ask(request, sampling, attempts)
                except Exception as error:  # whatever it is, it is this request's and no other's
                    attempts.failure = diagnose(error)
        tries = "" if attempts.count == 1 else f" ({attempts.count} tries)"
        reason = self._shown(attempts.failure.reason)
        return Reply("", error=f"{reason}{tries}", usage=attempts.usage | {"failed_requests": 1})

    async def _ask(self, request: Request, sampling: Sampling, attempts: Attempts) -> Reply:
        body = self.settings.body(sampling)
        assert self._client is not None
        async with asyncio.timeout(self.settings.timeout):  # the client's own is for the gap between two bytes
            completion = await self._client.chat.completions.create(
                model=str(self.settings.model), messages=api_messages(request.messages), extra_body=body
            )
        reply = read_completion(completion)
        return replace(reply, usage=attempts.usage | dict(reply.usage) | self.settings.cost(reply.usage))

    def _wait(self, attempts: Attempts) -> float:
        """Seconds until the next try: doubled each time, up to half of it at random, or what the server asks for."""
        doubled = self.settings.backoff * 2 ** (attempts.count - 1)
        wait = max(attempts.failure.wait or 0.0, doubled * self._jitter.uniform(0.5, 1.0))
        return min(wait, LONGEST_WAIT_S)

    def _shown(self, reason: str) -> str:
        """A reason as it may be told: cut only after the key is out, since half a key is no key to look for."""
        return self._access.redacted(reason)[:_LONGEST_REASON]

    def close(self) -> None:
        """See :meth:`Backend.close`."""
        client, self._client = self._client, None
        if client is not None and self._threads.started:
            self._threads.run(client.close())
        self._threads.close()


def diagnose(error: Exception) -> Failure:
    """Why a try failed, and whether another one may work."""
    if isinstance(error, TimeoutError | APITimeoutError):
        return Failure("the server did not answer in time", passing=True)
    if isinstance(error, APIConnectionError):
        return Failure(f"the connection failed: {_cause(error)}", passing=True)
    if isinstance(error, APIStatusError):
        status, code = error.status_code, getattr(error, "code", None)
        passing = (status in _RETRIED_STATUS or status >= 500) and code != "insufficient_quota"
        return Failure(f"HTTP {status}: {_said(error)}", passing, _retry_after(error))
    if isinstance(error, UNREADABLE):
        return Failure(f"the server's answer cannot be read: {one_line(error)}", passing=True)
    return Failure(f"{type(error).__name__}: {one_line(error)}", passing=False)


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


def _cause(error: BaseException) -> str:
    """What is at the bottom of a connection's failure."""
    if isinstance(error, TimeoutError | APITimeoutError):
        return "it took too long"
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(error)


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
