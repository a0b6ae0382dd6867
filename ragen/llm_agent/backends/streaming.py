"""A backend that answers requests one by one, such as a server's: each trajectory then goes at its own pace."""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from ragen.llm_agent.backends.base import Activity, Backend, Reply, Request, Sampling
from ragen.llm_agent.backends.journal import ReplyJournal


@runtime_checkable
class StreamingBackend(Backend, Protocol):
    """A backend that answers each request as soon as it can, so that each trajectory can go at its own pace.

    Attributes:
        activity: What it is doing now, and has done in this run.
        journal: Keeps what was sent and what came; None for no journal. To be set before the first request.
        grace: The longest that :meth:`settle` waits, in seconds.
    """

    activity: Activity
    journal: ReplyJournal | None
    grace: float

    @abstractmethod
    def submit(self, request: Request, sampling: Sampling) -> Future[Reply]:
        """Begin to answer a request, and come back at once; from any thread.

        Args:
            request: The request.
            sampling: How to draw the reply.

        Returns:
            What will hold the reply, one with ``error`` set where there is none.
        """

    @abstractmethod
    def settle(self) -> None:
        """Send nothing more of what was submitted, wait for the replies that are under way, and cancel the rest."""
