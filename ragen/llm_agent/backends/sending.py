"""One try of a request, and the moment in which it leaves: only what has left is counted, as the server counts it.

A client prepares a request for milliseconds, in which a run may be killed. So that the journal knows of a request
neither too early nor too late, it is told when the last byte has been handed to the connection. Only a kill in that
very moment may leave one uncounted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from openai import DefaultAsyncHttpxClient

from ragen.llm_agent.backends.base import Reply, Request
from ragen.llm_agent.backends.journal import ReplyJournal

_LEFT = "send_request_body.complete"
_current: ContextVar[Sending | None] = ContextVar("sending", default=None)


class Sending:
    """One try of a request, as a journal is told of it; nothing is told where there is none."""

    def __init__(self, journal: ReplyJournal | None, key: str, request: Request) -> None:
        """Begin; see :class:`~ragen.llm_agent.backends.journal.ReplyJournal`."""
        self._journal, self._key, self._request = journal, key, request
        self._start = time.perf_counter()
        self._attempt = 0

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """What a client of :func:`new_http_client` sends in the block, in this task, is this try."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def left(self) -> None:
        """The request has left; may be told again."""
        if self._journal is not None and not self._attempt:
            self._attempt = self._journal.sent(self._key, self._request)

    def answered(self, reply: Reply) -> None:
        """A reply came."""
        self.left()
        if self._journal is not None:
            seconds = time.perf_counter() - self._start
            self._journal.answered(self._key, self._request, self._attempt, reply, seconds)

    def failed(self, reason: str, is_given_up: bool) -> None:
        """It failed, perhaps before it had left."""
        if self._journal is not None:
            self._journal.failed(self._key, self._request, self._attempt, reason, is_given_up)


def new_http_client() -> Any:
    """The client of HTTP: as many connections as requests are let through, and tries told when they have left."""
    base = next(each for each in DefaultAsyncHttpxClient.__mro__ if each.__name__ == "AsyncClient")
    library = import_module(base.__module__.partition(".")[0])  # httpx, or what this openai has in its place
    unbounded = library.Limits(max_connections=None, max_keepalive_connections=None)
    return DefaultAsyncHttpxClient(limits=unbounded, event_hooks={"request": [_watch]})


async def _watch(request: Any) -> None:
    sending = _current.get()
    if sending is None:
        return

    async def trace(event: str, _: Mapping[str, Any]) -> None:
        if event.endswith(_LEFT):
            sending.left()

    request.extensions = {**request.extensions, "trace": trace}
