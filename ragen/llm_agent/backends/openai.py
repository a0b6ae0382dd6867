"""The backend for servers with OpenAI's chat completions API: OpenAI, vLLM, Ollama, llama.cpp, a proxy.

::

    submit(request) --> a task --> [semaphore] --> openai client --> server
                                                       ^   |
                                                       +---+ its own retries, with its own waits

Requests are independent: one that still fails after the client's retries gets a reply with ``error``, which ends its
trajectory and no other. The key comes from an environment variable, and is removed from every message.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Self

from openai import APIConnectionError, APIError, APIStatusError, AsyncOpenAI, AuthenticationError
from openai._constants import INITIAL_RETRY_DELAY

from ragen.config.loading import as_config
from ragen.errors import ConfigError, one_line
from ragen.llm_agent.backends.base import (
    TOKENS,
    Activity,
    Reply,
    Request,
    Sampling,
    StreamingBackend,
    check_context,
)
from ragen.llm_agent.backends.chat_completions import (
    HttpClient,
    api_messages,
    cause_of,
    diagnose,
    model_list,
    read_completion,
    redirect_of,
)
from ragen.llm_agent.backends.openai_settings import Access, ApiSettings, read_settings
from ragen.output import printable, valid_text

CHECK_S = 10.0  # seconds that a server has to answer the initial check
_LONGEST_REASON = 300  # characters


class _Client(AsyncOpenAI):
    """OpenAI's client, whose waits between tries grow from another first one."""

    backoff = INITIAL_RETRY_DELAY

    def _calculate_retry_timeout(self, remaining_retries: int, options: Any, response_headers: Any = None) -> float:
        seconds = super()._calculate_retry_timeout(remaining_retries, options, response_headers)
        is_told = any(name in (response_headers or ()) for name in ("retry-after", "retry-after-ms"))
        return seconds if is_told else seconds * self.backoff / INITIAL_RETRY_DELAY


class OpenAIBackend(StreamingBackend):
    """Sends many prompts to a server concurrently. ``generate`` may be called from several threads.

    Attributes:
        settings: The configured settings.
        activity: The activity of this run.
        grace: Maximum seconds that :meth:`settle` waits.
    """

    def __init__(self, settings: ApiSettings, access: Access | None = None) -> None:
        """Store the settings; nothing is sent yet.

        Args:
            settings: The server and how to call it.
            access: The server's credentials; None for servers that need none.
        """
        self.settings = settings
        self.activity = Activity()
        self.grace = settings.grace
        self._access = access or Access()
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
        backend.settings = backend.checked(as_config(config).actor_rollout_ref.rollout.max_model_len)
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
        except ConfigError as error:  # the message names the models that the server lists
            raise ConfigError(self._access.redacted(str(error))) from None
        context = next((model.get("max_model_len") for model in models if model["id"] == settings.model), None)  # vLLM
        check_context(wanted_context, context if isinstance(context, int) else None, str(settings.model))
        return settings

    async def _models(self) -> list[dict[str, Any]]:
        """The server's models; empty if it does not list them."""
        url = self.settings.base_url
        client = self._new_client(CHECK_S, max_retries=0)
        try:
            async with client:
                answer = await client.models.with_raw_response.list()
                return model_list(answer.content)
        except AuthenticationError as error:
            raise ConfigError(
                f"the server at {url} refuses the key of environment variable {self.settings.api_key_env!r}: "
                f"{self.shown(one_line(error))}"
            ) from None
        except APIConnectionError as error:
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
        except APIError:
            return []

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """See :meth:`Backend.generate`."""
        futures = [self.submit(request, sampling) for request in requests]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def submit(self, request: Request, sampling: Sampling) -> Future[Reply]:
        """See :meth:`StreamingBackend.submit`.

        Returns:
            A future of the reply, which has ``error`` set if the request failed. :meth:`settle` cancels it if the
            request was not sent, or not answered in time.
        """
        return self._threads.start(self._answer(request, sampling))

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

    def _new_client(self, timeout: float, max_retries: int) -> AsyncOpenAI:
        """A client of the server.

        Raises:
            ConfigError: No client can be made.
        """
        try:
            client = _Client(
                api_key=self._access.key or "none",
                default_headers=self._access.headers,
                default_query=dict(self._access.query),
                base_url=self.settings.base_url,
                timeout=timeout,
                max_retries=max_retries,
                http_client=HttpClient(timeout, read_completion, lambda: not self._is_settling),
            )
            client.backoff = self.settings.backoff
            return client
        except Exception as error:  # such as an environment variable with an invalid proxy
            raise ConfigError(
                f"no client can be made for the server at {self.settings.base_url}: {self.shown(one_line(error))}"
            ) from None

    async def _answer(self, request: Request, sampling: Sampling) -> Reply:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._client is None:
            self._client = self._new_client(self.settings.timeout, self.settings.max_retries)
        messages, body = api_messages(request.messages), self.settings.body(sampling)
        async with self._slots:
            if self._is_settling:
                raise asyncio.CancelledError
            self._sending.add(task)
            try:
                with self.activity.asking():
                    reply = await self._asked(self._client, messages, body)
            finally:
                self._sending.discard(task)
        self.activity.answered(reply.usage, is_reply=reply.is_answer)
        return reply

    async def _asked(self, client: AsyncOpenAI, messages: list[Any], body: dict[str, Any]) -> Reply:
        try:
            answer = await client.chat.completions.with_raw_response.create(
                model=str(self.settings.model), messages=messages, extra_body=body
            )
        except Exception as error:  # of any kind: it fails this request and no other
            failure = diagnose(error, body)
            failure = replace(failure, reason=self.shown(failure.reason))
            used = {"requests": 1 + failure.retries, "retries": failure.retries}
            if failure.is_out_of_context:
                return Reply("", out_of_context=failure.reason, usage=used)
            self.activity.failure = failure.reason
            tries = f" ({1 + failure.retries} tries)" if failure.retries else ""
            return Reply("", error=f"{failure.reason}{failure.cure}{tries}", usage=used | {"failed_requests": 1})
        reply: Reply = answer.http_response.extensions["read"]
        retries, counts = answer.retries_taken, dict(reply.usage)
        if not all(name in counts for name in TOKENS):
            counts["uncounted_replies"] = 1
        used = {"requests": 1 + retries, "retries": retries}
        return replace(reply, usage=used | counts | self.settings.cost(reply.usage))

    def shown(self, reason: str) -> str:
        """A reason for display, redacted before it is shortened, since a key cut in half would not be found."""
        return printable(valid_text(self._access.redacted(reason))[:_LONGEST_REASON])

    def close(self) -> None:
        """See :meth:`Backend.close`."""
        client, self._client = self._client, None
        if client is not None and self._threads.started:
            self._threads.run(client.close())
        self._threads.close()


_CLOSE_S = 5.0


class LoopThread:
    """Runs coroutines for callers in any thread; the thread starts with the first of them.

    It is a daemon: a process that forgets to close it ends all the same.
    """

    def __init__(self, name: str) -> None:
        """Give the thread its name."""
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine, wait for it, and return what it returns; Ctrl-C in the caller cancels it."""
        future = self.start(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine, and return a future for its result at once."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    @property
    def started(self) -> bool:
        """Whether the thread runs."""
        return self._loop is not None

    def close(self) -> None:
        """Cancel what still runs, and end the thread; may be called twice."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(_CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE_S)
        if not thread.is_alive():
            loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=_CLOSE_S / 2) if others else None
