"""The backend that asks a server which speaks OpenAI's chat completions: OpenAI, vLLM, Ollama, llama.cpp, a proxy.

::

    submit(request) --> a task --> in the journal? --> [slots] --> server
                                        |                 ^           |
                              the reply that is kept      +-- wait, try again <-- 429, 5xx, time-out, cut connection,
                                                                                  unreadable answer

Every request is on its own: one that still fails after its retries gives a reply with ``error``, which ends its
trajectory and no other. With a journal, what was sent and what came is written down at once, and asked no second time.
The key comes from an environment variable, and is taken out of every message.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from openai import APIConnectionError, AsyncOpenAI, AuthenticationError

from ragen.errors import ConfigError
from ragen.llm_agent.backends.activity import Activity
from ragen.llm_agent.backends.base import Reply, Request, Sampling
from ragen.llm_agent.backends.completions import api_messages, read_completion
from ragen.llm_agent.backends.connections import new_http_client
from ragen.llm_agent.backends.endpoint import Access, ApiSettings, read_settings
from ragen.llm_agent.backends.faults import UNREADABLE, Attempts, cause_of, diagnose
from ragen.llm_agent.backends.journal import ReplyJournal, reply_key
from ragen.llm_agent.backends.loop import LoopThread
from ragen.llm_agent.backends.sending import Sending, leaving
from ragen.llm_agent.backends.slots import Slots
from ragen.llm_agent.backends.tokens import MAX_MODEL_LEN, check_context
from ragen.llm_agent.config.loading import one_line, setting

CHECK_S = 10.0  # seconds that a server has to answer when it is looked for
LONGEST_WAIT_S = 60.0
_LONGEST_REASON = 300  # characters

Pause = Callable[[float], Awaitable[Any]]


@dataclass(frozen=True)
class Call:
    """A request as it is sent.

    Attributes:
        request: The request.
        messages: Its chat, as the server takes it.
        body: What else is sent, but the model.
        key: What the journal knows it by.
    """

    request: Request
    messages: list[Any]
    body: dict[str, Any]
    key: str


class OpenAIBackend:
    """Asks a server, many prompts at a time.

    Attributes:
        thread_safe: True: callers share the slots.
        reads_chats: True: it makes nothing of the prompts' tokens.
        settings: What was configured.
        activity: What it is doing, and has done in this run.
        journal: Keeps what was sent and what came; None for no journal. To be set before the first request.
    """

    thread_safe: ClassVar[bool] = True
    reads_chats: ClassVar[bool] = True

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
        self._slots = Slots(settings.max_concurrency)
        self._threads = LoopThread("ragen-openai")
        self.activity = Activity()
        self.journal: ReplyJournal | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sending: set[asyncio.Task[Any]] = set()
        self._is_settling = False
        self._client: AsyncOpenAI | None = None

    def __repr__(self) -> str:
        """Without the key."""
        return f"OpenAIBackend(model={self.settings.model!r}, base_url={self.settings.base_url!r})"

    @property
    def title(self) -> str:
        """Who answers, for people."""
        return f"{self.settings.model} at {self.settings.base_url}"

    @classmethod
    def from_config(cls, config: Any, tokenizer: Any = None) -> Self:
        """See :meth:`Backend.from_config`; see :func:`~ragen.llm_agent.backends.endpoint.read_settings` for the keys.

        The server is asked for its models: one that is not there, that refuses the key, or that does not have the model
        is found out here.
        """
        backend = cls(*read_settings(config))
        backend.settings = backend.checked(setting(config, MAX_MODEL_LEN, int, None))
        return backend

    def checked(self, wanted_context: int | None = None) -> ApiSettings:
        """The settings, completed by what the server says of its models.

        Args:
            wanted_context: Tokens of a context that the model must have room for; None if unlimited.

        Raises:
            ConfigError: The server cannot be reached or refuses the key, it is not said which of its models to ask, it
                does not list the one that is said, or that model's context is too short.
        """
        models = asyncio.run(self._models())
        settings = self.settings.with_model(models)
        settings.check_listed(models)
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
                f"{self._shown(cause_of(error)).rstrip('.')}. Start it, or correct the address."
            ) from None
        except UNREADABLE:
            return []  # a server is there; not all of them list their models, or to everyone
        return [model for model in getattr(page, "data", None) or [] if isinstance(getattr(model, "id", None), str)]

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """See :meth:`Backend.generate`."""
        futures = [self.submit(request, sampling) for request in requests]
        try:
            return [future.result() for future in futures]
        except BaseException:
            if self.journal is None:  # else what is under way may still be kept: see settle
                for future in futures:
                    future.cancel()
            raise

    def submit(self, request: Request, sampling: Sampling) -> Future[Reply]:
        """Begin to answer a request, and come back at once; from any thread.

        Args:
            request: The request.
            sampling: How to draw the reply.

        Returns:
            What will hold the reply, one with ``error`` set where there is none; cancelled by :meth:`settle` where
            nothing was sent, or nothing came in time.
        """
        return self._threads.start(self._answer(request, sampling))

    def settle(self, grace: float | None = None) -> None:
        """Send nothing more of what was submitted, and wait for the replies that are under way; then cancel the rest.

        Args:
            grace: The longest wait, in seconds; a Ctrl-C ends it. None for ``settings.grace``.
        """
        if not self._threads.started:
            return
        try:
            self._threads.run(self._settle(self.settings.grace if grace is None else grace))
        except KeyboardInterrupt:
            self._threads.run(self._settle(0))

    async def _settle(self, grace: float) -> None:
        self._is_settling = True
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
            self._is_settling = False

    def _new_client(self) -> AsyncOpenAI:
        try:
            return AsyncOpenAI(
                api_key=self._access.key or "none",
                default_headers=self._access.headers,
                base_url=self.settings.base_url,
                timeout=self.settings.timeout,
                max_retries=0,  # done here, where it is counted and also done for answers that cannot be read
                http_client=new_http_client(leaving),
            )
        except Exception as error:  # such as an environment variable with a proxy that is none
            raise ConfigError(
                f"no client can be made for the server at {self.settings.base_url}: {self._shown(one_line(error))}"
            ) from None

    async def _answer(self, request: Request, sampling: Sampling) -> Reply:
        self._keep_track()
        call = self._call(request, sampling)
        if self.journal is not None and (kept := self.journal.find(call.key)) is not None:
            self.activity.answered(kept.usage, is_kept=True)
            return kept
        async with self._slots.one():
            reply = await self._tried(call)
        self.activity.answered(reply.usage, is_reply=reply.error is None)
        return reply

    def _keep_track(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._client is None:
            self._client = self._new_client()

    def _call(self, request: Request, sampling: Sampling) -> Call:
        messages, body = api_messages(request.messages), self.settings.body(sampling)
        if self.journal is None:
            return Call(request, messages, body, "")
        others = (self.settings.model, self.settings.base_url, body, messages)
        return Call(request, messages, body, reply_key(request, *others))

    async def _tried(self, call: Call) -> Reply:
        """The reply to a request, after as many attempts as it takes and as are allowed."""
        attempts = Attempts()
        while attempts.failure.passing and attempts.count <= self.settings.max_retries and not self._is_settling:
            if attempts.count:
                await self._pause(self._wait(attempts))
            attempts.count += 1
            sending = Sending(self.journal, call.key, call.request)
            try:
                return await self._ask(call, attempts, sending)
            except Exception as error:  # whatever it is, it is this request's and no other's
                attempts.failure = diagnose(error)
            self._note_failure(attempts, sending)
        tries = "" if attempts.count == 1 else f" ({attempts.count} tries)"
        reason = self._shown(attempts.failure.reason)
        return Reply("", error=f"{reason}{tries}", usage=attempts.usage | {"failed_requests": 1})

    def _note_failure(self, attempts: Attempts, sending: Sending) -> None:
        if attempts.failure.is_refusal:
            self._slots.pace.refused()
        is_last = not attempts.failure.passing or attempts.count > self.settings.max_retries
        sending.failed(self._shown(attempts.failure.reason), is_last)

    async def _ask(self, call: Call, attempts: Attempts, sending: Sending) -> Reply:
        with sending.noticed():
            reply = read_completion(await self._sent(call))
        reply = replace(reply, usage=dict(reply.usage) | self.settings.cost(reply.usage))
        sending.answered(reply)
        self._slots.answered()
        return replace(reply, usage=attempts.usage | dict(reply.usage))

    async def _sent(self, call: Call) -> Any:
        """What a server answers."""
        task = asyncio.current_task()
        assert self._client is not None and task is not None
        self._sending.add(task)
        try:
            with self.activity.asking():
                async with asyncio.timeout(self.settings.timeout):  # the client's own is for the gap between two bytes
                    # in extra_body: the client goes through `messages` item by item, for a quarter of its time
                    return await self._client.chat.completions.create(
                        model=str(self.settings.model), messages=[], extra_body={"messages": call.messages, **call.body}
                    )
        finally:
            self._sending.discard(task)

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
