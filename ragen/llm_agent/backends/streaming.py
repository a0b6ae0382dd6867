"""Backends that answer requests one by one, such as those of servers, so that each trajectory runs at its own pace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from ragen.llm_agent.backends.base import Activity, Backend, Reply, Request, Sampling
from ragen.llm_agent.backends.journal import ReplyJournal


@runtime_checkable
class StreamingBackend(Backend, Protocol):
    """A backend that answers each request as soon as it can, so that each trajectory can run at its own pace.

    Attributes:
        activity: The activity of this run.
        journal: Records requests and replies; None for no journal. Set it before the first request.
        grace: Maximum seconds that :meth:`settle` waits.
    """

    activity: Activity
    journal: ReplyJournal | None
    grace: float

    @abstractmethod
    def submit(self, request: Request, sampling: Sampling) -> Future[Reply]:
        """Submit a request without waiting; from any thread.

        Args:
            request: The request.
            sampling: The sampling parameters.

        Returns:
            A future of the reply, which has ``error`` set if the request failed.
        """

    def cost(self, usage: Mapping[str, float]) -> dict[str, float]:
        """``{"cost": dollars}`` of a reply's usage; empty if prices or token counts are unknown."""
        return {}

    @abstractmethod
    def settle(self) -> None:
        """Stop sending submitted requests, wait for the replies under way, and cancel the rest."""
