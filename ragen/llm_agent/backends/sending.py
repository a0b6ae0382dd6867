"""One try of a request, and the moment in which it leaves: only what has left is counted, as the server counts it.

A client prepares a request for milliseconds, in which a run may be killed. So that the journal knows of a request
neither too early nor too late, it is told when the last byte has been handed to the connection. Only a kill in that
very moment may leave one uncounted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ragen.llm_agent.backends.base import Reply, Request
from ragen.llm_agent.backends.journal import ReplyJournal

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
        """What is sent in the block, in this task, is this try: see :func:`leaving`."""
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


def leaving() -> Callable[[], None] | None:
    """What is to be told when what this task sends now has left; None where it is no try of a request."""
    sending = _current.get()
    return None if sending is None else sending.left
