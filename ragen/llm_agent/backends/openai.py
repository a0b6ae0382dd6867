"""The backend for servers with OpenAI's chat completions API: OpenAI, vLLM, Ollama, llama.cpp, a proxy.

::

    submit(request) --> a task --> [semaphore] --> openai client --> server
                                                       ^   |
                                                       +---+ its own retries, with its own waits

Requests are independent: one that still fails after the client's retries gets a reply with ``error``, which ends its
trajectory and no other. The key comes from an environment variable, and is removed from every message. Redirects are
not followed. vLLM's server sends its tokens if ``actor.openai.request`` has ``{return_token_ids: true, logprobs:
true}``; training batches then consist of them, so ``actor.tokenizer`` must be the model's own.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from base64 import b64encode
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from openai import APIConnectionError, APIError, APIStatusError, AsyncOpenAI, AuthenticationError
from openai._constants import INITIAL_RETRY_DELAY

from ragen.config.loading import as_config, refused
from ragen.config.schema import OpenAI as Settings
from ragen.errors import ConfigError, one_line
from ragen.files import valid_text
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
from ragen.output import LOOKS_SECRET, SECRET_NAME, printable, shown_address

if TYPE_CHECKING:
    from ragen.config.schema import Config

OPENAI_URL = "https://api.openai.com/v1"
CHECK_S = 10.0  # seconds that a server has to answer the initial check
_LONGEST_REASON = 300  # characters
_LONGEST_NAME = 100  # characters of a model's name in a message
_LISTED = 5  # models that a message names
_SHORTEST_SECRET = 4  # characters; a shorter one, such as ``x``, is a placeholder for local servers
_SET_HERE = {"messages": None, "model": None, "stream": False, "n": 1}
_USER_WITHIN = re.compile(r"://[^\s/@]*@")


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
        model: The model's name on the server.
        base_url: The server's address, without user and query.
        settings: The keys of ``actor.openai``.
        activity: The activity of this run.
        grace: Maximum seconds that :meth:`settle` waits.
    """

    def __init__(self, model: str | None, url: str, settings: Settings | None = None, key: str | None = None) -> None:
        """Store the settings; nothing is sent yet.

        Args:
            model: The model's name on the server; None until :meth:`checked_model`.
            url: The server's address, with its ``/v1``, and ``user:password@`` or a query that go with each request.
            settings: The keys of ``actor.openai``; None for the defaults.
            key: The server's key; None for a server that needs none.
        """
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        basic = b64encode(unquote(user).encode()).decode("ascii")
        self.model, self.settings = model, settings or Settings()
        self.base_url = parts._replace(netloc=host, query="", fragment="").geturl()
        self.activity = Activity()
        self.grace = self.settings.grace
        self._key, self._headers = key, {"Authorization": f"Basic {basic}"} if user else {}
        self._query = dict(parse_qsl(parts.query, keep_blank_values=True))
        secrets = {key or "", basic, unquote(user.partition(":")[2] or user), *self._query.values()}
        self._secrets = sorted((each for each in secrets if len(each) >= _SHORTEST_SECRET), key=len, reverse=True)
        self._slots = asyncio.Semaphore(self.settings.max_concurrency)
        self._threads = LoopThread("ragen-openai")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sending: set[asyncio.Task[Any]] = set()
        self._is_settling = False
        self._client: AsyncOpenAI | None = None

    def __repr__(self) -> str:
        """A representation without the key."""
        return f"OpenAIBackend(model={self.model!r}, base_url={self.base_url!r})"

    @property
    def title(self) -> str:
        """The model and its server, for display."""
        return self.shown(f"{self.model} at {self.base_url}")

    @classmethod
    def from_config(cls, config: Any, tokenizer: Any = None) -> Self:
        """See :meth:`Backend.from_config`; the keys are those of ``actor`` and ``actor.openai``.

        The server is queried for its models, which detects a server that is down, refuses the key, or lacks the model.
        """
        whole = as_config(config)
        keys, url = whole.actor.openai, read_address(whole)
        check_request(keys.request)
        backend = cls(whole.actor.model, url, keys, read_key(keys.api_key_env or "", needed=url == OPENAI_URL))
        backend.model = backend.checked_model(whole.actor_rollout_ref.rollout.max_model_len)
        return backend

    def checked_model(self, wanted_context: int | None = None) -> str:
        """The configured model, or the only one of the server, which is asked.

        Args:
            wanted_context: Minimum context length of the model in tokens; None if unlimited.

        Raises:
            ConfigError: The server cannot be reached, redirects elsewhere or refuses the key; or no model is configured
                and the server has several; or it does not list the model, or the model's context is too short.
        """
        models = asyncio.run(self._models())
        names = [model["id"] for model in models]
        has = ", ".join(self.shown(name)[:_LONGEST_NAME] for name in names[:_LISTED]) + ", .." * (len(names) > _LISTED)
        model = names[0] if self.model is None and len(names) == 1 else self.model
        if model is None:
            raise ConfigError(
                f"actor.model is missing: expected the name of a model of the server at {self.base_url}"
                + (f", which has: {has}." if names else ".")
            )
        if names and self.settings.check_model and not {model, f"{model}:latest"} & set(names):  # as Ollama writes it
            raise ConfigError(
                f"configuration key 'actor.model' is {model!r}, which the server at {self.base_url} does not list. It "
                f"has: {has}. 'actor.openai.check_model=false' skips this check."
            )
        context = next((each.get("max_model_len") for each in models if each["id"] == model), None)  # vLLM
        check_context(wanted_context, context if isinstance(context, int) else None, model)
        return model

    async def _models(self) -> list[dict[str, Any]]:
        """The server's models; empty if it does not list them."""
        try:
            async with self._new_client(CHECK_S, max_retries=0) as client:
                return model_list((await client.models.with_raw_response.list()).content)
        except AuthenticationError as error:
            raise ConfigError(
                f"the server at {self.base_url} refuses the key of environment variable {self.settings.api_key_env!r}: "
                f"{self.shown(one_line(error))}"
            ) from None
        except APIConnectionError as error:
            raise ConfigError(
                f"configuration key 'actor.base_url' is {self.base_url!r}, but no server answers there: "
                f"{self.shown(cause_of(error)).rstrip('.')}. Start it, or correct the address."
            ) from None
        except APIStatusError as error:
            if target := redirect_of(error):
                raise ConfigError(
                    f"configuration key 'actor.base_url' is {self.base_url!r}, and the server there redirects to "
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
                api_key=self._key or "none",
                default_headers=self._headers,
                default_query=self._query,
                base_url=self.base_url,
                timeout=timeout,
                max_retries=max_retries,
                http_client=HttpClient(timeout, read_completion, lambda: not self._is_settling),
            )
            client.backoff = self.settings.backoff
            return client
        except Exception as error:  # such as an environment variable with an invalid proxy
            raise ConfigError(
                f"no client can be made for the server at {self.base_url}: {self.shown(one_line(error))}"
            ) from None

    async def _answer(self, request: Request, sampling: Sampling) -> Reply:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._client is None:
            self._client = self._new_client(self.settings.timeout, self.settings.max_retries)
        messages, body = api_messages(request.messages), self._body(sampling)
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
                model=str(self.model), messages=messages, extra_body=body
            )
        except Exception as error:  # of any kind: it fails this request and no other
            failed = diagnose(error)
            reason, used = self.shown(failed.reason), {"requests": 1 + failed.retries, "retries": failed.retries}
            if failed.is_out_of_context:
                return Reply("", out_of_context=reason, usage=used)
            self.activity.failure = reason
            tries = f" ({1 + failed.retries} tries)" if failed.retries else ""
            return Reply("", error=f"{reason}{tries}", usage=used | {"failed_requests": 1})
        reply: Reply = answer.http_response.extensions["read"]
        retries, counts = answer.retries_taken, dict(reply.usage)
        if not all(name in counts for name in TOKENS):
            counts["uncounted_replies"] = 1
        price = dict(self.settings.price)
        if any(price.values()) and reply.usage:
            counts["cost"] = sum((price[kind] or 0) * counts.get(f"{kind}_tokens", 0) for kind in price) / 1e6
        return replace(reply, usage={"requests": 1 + retries, "retries": retries} | counts)

    def _body(self, sampling: Sampling) -> dict[str, Any]:
        """The fields of a request, except the model and the chat."""
        fields: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
        }
        if not sampling.greedy and sampling.top_p < 1:
            fields["top_p"] = sampling.top_p
        if not sampling.greedy and sampling.top_k > 0:
            fields["top_k"] = sampling.top_k  # not OpenAI's, but most compatible servers have it
        return {name: value for name, value in (fields | self.settings.request).items() if value is not None}

    def shown(self, reason: str) -> str:
        """A reason for display, redacted before it is shortened, since a key cut in half would not be found."""
        for secret in self._secrets:
            reason = reason.replace(secret, "***")
        reason = LOOKS_SECRET.sub("***", _USER_WITHIN.sub("://***@", reason))
        return printable(valid_text(reason)[:_LONGEST_REASON])

    def close(self) -> None:
        """See :meth:`Backend.close`."""
        client, self._client = self._client, None
        if client is not None and self._threads.started:
            self._threads.run(client.close())
        self._threads.close()


# The configuration


def read_address(config: Config) -> str:
    """The server's address.

    Raises:
        ConfigError: It is not an address.
    """
    url = config.actor.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
    try:
        parts = urlsplit(url)
        works = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # an invalid port, an unmatched bracket
        works = False
    if not works or not url.isprintable() or " " in url:
        raise refused("actor.base_url", shown_address(url), "an address such as http://localhost:8000/v1")
    return url


def read_key(variable: str, needed: bool) -> str | None:
    """The server's key from the environment; None for a server that needs none.

    Raises:
        ConfigError: It is missing, or has characters that are not allowed in a header.
    """
    key = os.environ.get(variable, "").strip()
    if key and not re.fullmatch("[!-~]+", key):
        raise ConfigError(
            f"environment variable {variable!r} does not contain a key: there is a line break, a space or a "
            f"character that is not ASCII in it."
        )
    if not key and needed:
        raise ConfigError(
            f"the server at {OPENAI_URL} needs a key, and the environment variable {variable!r} is not set; set it, "
            "or name another one in 'actor.openai.api_key_env'."
        )
    return key or None


def check_request(fields: Mapping[str, Any]) -> None:
    """Check ``actor.openai.request``, which is written to files.

    Raises:
        ConfigError: A field looks like a key, or is set by this backend.
    """
    for name, value in fields.items():
        where = f"configuration key 'actor.openai.request.{name}'"
        if SECRET_NAME.search(str(name)):
            raise ConfigError(f"{where} looks like a key; set the variable that 'actor.openai.api_key_env' names.")
        if name in _SET_HERE and value not in (None, _SET_HERE[name]):
            raise ConfigError(f"{where} cannot be set: each request asks 'actor.model' for one whole reply.")


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
