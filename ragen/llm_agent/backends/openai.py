"""The backend for servers with OpenAI's chat completions API: OpenAI, vLLM, Ollama, llama.cpp, a proxy.

::

    submit(request) --> a task --> in the journal? --> [semaphore] --> server
                                        |                   ^             |
                              the reply that is kept        +-- wait, try again <-- 429, 5xx, time-out, cut connection,
                                                                                    unreadable answer

Requests are independent: one that still fails after its retries gets a reply with ``error``, which ends its trajectory
and no other. With a journal, requests and replies are recorded immediately, and an answered request is never sent
again. The key comes from an environment variable, and is removed from every message.

Connections are pooled by the openai client. Retries are made here rather than by the client, so that they are counted,
recorded, and made for unreadable answers too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from openai import APIConnectionError, APIStatusError, AsyncOpenAI, AuthenticationError

from ragen.errors import ConfigError, StorageError
from ragen.llm_agent.backends.base import Activity, Reply, Request, Sampling, valid_text
from ragen.llm_agent.backends.chat_completions import (
    UNREADABLE,
    Failure,
    api_messages,
    cause_of,
    diagnose,
    model_list,
    read_completion,
    redirect_of,
)
from ragen.llm_agent.backends.event_loop import LoopThread
from ragen.llm_agent.backends.http_client import new_http_client
from ragen.llm_agent.backends.journal import ReplyJournal, reply_key
from ragen.llm_agent.backends.openai_settings import Access, ApiSettings, read_settings
from ragen.llm_agent.backends.streaming import StreamingBackend
from ragen.llm_agent.backends.tokens import MAX_MODEL_LEN, check_context
from ragen.output import printable
from ragen.settings import one_line, setting

CHECK_S = 10.0  # seconds that a server has to answer the initial check
LONGEST_WAIT_S = 60.0
_LONGEST_REASON = 300  # characters

Pause = Callable[[float], Awaitable[Any]]


@dataclass(frozen=True)
class Call:
    """A request as it is sent.

    Attributes:
        request: The request.
        messages: Its chat in the server's format.
        body: The other fields of the body, except the model.
        key: Its key in the journal.
    """

    request: Request
    messages: list[Any]
    body: dict[str, Any]
    key: str


class OpenAIBackend(StreamingBackend):
    """Sends many prompts to a server concurrently. ``generate`` may be called from several threads.

    Attributes:
        settings: The configured settings.
        activity: The activity of this run.
        journal: Records requests and replies; None for no journal. Set it before the first request.
        grace: Maximum seconds that :meth:`settle` waits.
    """

    thread_safe: ClassVar[bool] = True

    def __init__(
        self, settings: ApiSettings, access: Access | None = None, pause: Pause = asyncio.sleep, seed: int = 0
    ) -> None:
        """Store the settings; nothing is sent yet.

        Args:
            settings: The server and how to call it.
            access: The server's credentials; None for servers that need none.
            pause: Sleeps for some seconds between two tries.
            seed: Seed of the jitter of waits.
        """
        self.settings = settings
        self.activity = Activity()
        self.journal: ReplyJournal | None = None
        self.grace = settings.grace
        self._access = access or Access()
        self._pause = pause
        self._jitter = random.Random(seed)
        self._slots = asyncio.Semaphore(settings.max_concurrency)
        self._threads = LoopThread("ragen-openai")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sending: set[asyncio.Task[Any]] = set()
        self._is_settling = False
        self._client: AsyncOpenAI | None = None

    def __repr__(self) -> str:
        """A representation without the key."""
        return f"OpenAIBackend(model={self.settings.model!r}, base_url={self.settings.base_url!r})"

    @property
    def title(self) -> str:
        """The model and its server, for display."""
        return self.shown(f"{self.settings.model} at {self.settings.base_url}")

    @classmethod
    def from_config(cls, config: Any, tokenizer: Any = None) -> Self:
        """See :meth:`Backend.from_config`; :mod:`~ragen.llm_agent.backends.openai_settings` has the keys.

        The server is queried for its models, which detects a server that is down, refuses the key, or lacks the model.
        """
        backend = cls(*read_settings(config))
        backend.settings = backend.checked(setting(config, MAX_MODEL_LEN, int, None))
        return backend

    def checked(self, wanted_context: int | None = None) -> ApiSettings:
        """The settings, completed by the server's list of models.

        Args:
            wanted_context: Minimum context length of the model in tokens; None if unlimited.

        Raises:
            ConfigError: The server cannot be reached, redirects elsewhere or refuses the key; or no model is configured
                and the server has several; or it does not list the model, or the model's context is too short.
        """
        models = asyncio.run(self._models())
        names = [model["id"] for model in models]
        try:
            settings = self.settings.with_model(names)
            settings.check_listed(names)
        except ConfigError as error:  # which names what the server lists
            raise ConfigError(self._access.redacted(str(error))) from None
        context = next((model.get("max_model_len") for model in models if model["id"] == settings.model), None)  # vLLM
        check_context(wanted_context, context if isinstance(context, int) else None, str(settings.model))
        return settings

    async def _models(self) -> list[dict[str, Any]]:
        """The server's models; empty if it does not list them."""
        url = self.settings.base_url
        client = self.new_client()
        try:
            async with asyncio.timeout(CHECK_S), client:
                answer = await client.models.with_raw_response.list()
                return model_list(answer.content)
        except AuthenticationError as error:
            raise ConfigError(
                f"the server at {url} refuses the key of environment variable {self.settings.api_key_env!r}: "
                f"{self.shown(one_line(error))}"
            ) from None
        except (APIConnectionError, TimeoutError) as error:
            raise ConfigError(
                f"configuration key 'actor.base_url' is {url!r}, but no server answers there: "
                f"{self.shown(cause_of(error)).rstrip('.')}. Start it, or correct the address."
            ) from None
        except APIStatusError as error:
            if target := redirect_of(error):
                raise ConfigError(
                    f"configuration key 'actor.base_url' is {url!r}, and the server there redirects to "
                    f"{self.shown(target)}; redirects are not followed, since requests carry a key. Set "
                    f"'actor.base_url' to the address that is meant."
                ) from None
            return []  # the server is up, but does not list its models, or not to this user
        except UNREADABLE:
            return []

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """See :meth:`Backend.generate`."""
        futures = [self.submit(request, sampling) for request in requests]
        try:
            return [future.result() for future in futures]
        except BaseException:
            if self.journal is None:  # otherwise replies under way may still be recorded: see settle
                for future in futures:
                    future.cancel()
            raise

    def submit(self, request: Request, sampling: Sampling) -> Future[Reply]:
        """See :meth:`StreamingBackend.submit`.

        Returns:
            A future of the reply, which has ``error`` set if the request failed. :meth:`settle` cancels it if the
            request was not sent, or not answered in time. It raises StorageError if the journal cannot be written.
        """
        return self._threads.start(self._answer(request, sampling))

    def cost(self, usage: Mapping[str, float]) -> dict[str, float]:
        """See :meth:`StreamingBackend.cost`."""
        return self.settings.cost(usage)

    def settle(self) -> None:
        """See :meth:`StreamingBackend.settle`; a Ctrl-C ends the wait."""
        if not self._threads.started:
            return
        self._is_settling = True  # here, since the loop may hear of it only after other tasks have sent something
        try:
            self._threads.run(self._settle(self.grace))
        except KeyboardInterrupt:
            self._threads.run(self._settle(0))
        finally:
            self._is_settling = False

    async def _settle(self, grace: float) -> None:
        try:
            for task in self._tasks - self._sending:
                task.cancel()
            if grace and self._sending:
                await asyncio.wait(set(self._sending), timeout=grace)
        finally:
            left = set(self._tasks)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=1.0)

    def new_client(self) -> AsyncOpenAI:
        """A client of the server, which retries nothing.

        Raises:
            ConfigError: No client can be made.
        """
        try:
            return AsyncOpenAI(
                api_key=self._access.key or "none",
                default_headers=self._access.headers,
                default_query=dict(self._access.query),
                base_url=self.settings.base_url,
                timeout=self.settings.timeout,
                max_retries=0,
                http_client=new_http_client(),
            )
        except Exception as error:  # such as an environment variable with an invalid proxy
            raise ConfigError(
                f"no client can be made for the server at {self.settings.base_url}: {self.shown(one_line(error))}"
            ) from None

    async def _answer(self, request: Request, sampling: Sampling) -> Reply:
        self._keep_track()
        call = self._call(request, sampling)
        if self.journal is not None and (kept := self.journal.find(call.key)) is not None:
            self.activity.answered(kept.usage, is_kept=True)
            return kept
        async with self._slots:
            reply = await self._tried(call)
        self.activity.answered(reply.usage, is_reply=reply.is_answer)
        return reply

    def _keep_track(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._client is None:
            self._client = self.new_client()

    def _call(self, request: Request, sampling: Sampling) -> Call:
        messages, body = api_messages(request.messages), self.settings.body(sampling)
        if self.journal is None:
            return Call(request, messages, body, "")
        others = (self.settings.model, self.settings.base_url, body, messages)
        return Call(request, messages, body, reply_key(request, *others))

    async def _tried(self, call: Call) -> Reply:
        """The reply to a request, after as many attempts as needed and allowed."""
        count = 0
        while not self._is_settling:
            count += 1
            used = {"requests": count, "retries": count - 1}
            number = self.journal.sent(call.key, call.request) if self.journal is not None else 0
            try:
                reply = await self._ask(call, number)
                return replace(reply, usage=used | dict(reply.usage))
            except StorageError:
                raise
            except Exception as error:  # of any kind: it fails this request and no other
                failure = diagnose(error, call.body)
            is_last = not failure.passing or count > self.settings.max_retries
            reason = self._note_failure(call, failure, number, is_last)
            if failure.is_out_of_context:
                return Reply("", out_of_context=reason, usage=used)
            if is_last:
                tries = "" if count == 1 else f" ({count} tries)"
                return Reply("", error=f"{reason}{tries}", usage=used | {"failed_requests": 1})
            if not self._is_settling:
                await self._pause(self._wait(count, failure))
        raise asyncio.CancelledError

    def _note_failure(self, call: Call, failure: Failure, number: int, is_last: bool) -> str:
        """Record a failed attempt; returns the reason as it may be shown."""
        reason = self.shown(failure.reason)
        if not failure.is_out_of_context:
            self.activity.failure = reason
        if self.journal is not None:
            kind = "out of context: " if failure.is_out_of_context else ""
            is_given_up = is_last and not failure.is_out_of_context
            self.journal.failed(call.key, call.request, number, kind + reason, is_given_up, failure.has_arrived)
        return reason + failure.cure

    async def _ask(self, call: Call, number: int) -> Reply:
        start = time.perf_counter()
        reply = read_completion(await self._sent(call))
        reply = replace(reply, usage=dict(reply.usage) | self.cost(reply.usage))
        if self.journal is not None:
            self.journal.answered(call.key, call.request, number, reply, time.perf_counter() - start)
        return reply

    async def _sent(self, call: Call) -> bytes:
        """The body of the server's answer."""
        task = asyncio.current_task()
        assert self._client is not None and task is not None
        self._sending.add(task)
        try:
            with self.activity.asking():
                async with asyncio.timeout(self.settings.timeout):  # the client's own timeout limits gaps between bytes
                    answer = await self._client.chat.completions.with_raw_response.create(
                        model=str(self.settings.model), messages=call.messages, extra_body=call.body
                    )
                    return answer.content
        finally:
            self._sending.discard(task)

    def _wait(self, count: int, failure: Failure) -> float:
        """Seconds until the next try: doubled each time, half of it random, or the server's ``Retry-After``."""
        doubled = self.settings.backoff * 2 ** (count - 1)
        wait = max(failure.wait or 0.0, doubled * self._jitter.uniform(0.5, 1.0))
        return min(wait, LONGEST_WAIT_S)

    def shown(self, reason: str) -> str:
        """A reason for display, redacted before it is shortened, since a key cut in half would not be found."""
        return printable(valid_text(self._access.redacted(reason))[:_LONGEST_REASON])

    def close(self) -> None:
        """See :meth:`Backend.close`."""
        client, self._client = self._client, None
        if client is not None and self._threads.started:
            self._threads.run(client.close())
        self._threads.close()
