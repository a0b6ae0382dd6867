"""Backends that answer requests one by one, such as those of servers, so that each trajectory runs at its own pace."""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from ragen.llm_agent.backends.base import Activity, Backend, Reply, Request, Sampling


@runtime_checkable
class StreamingBackend(Backend, Protocol):
    """A backend that answers each request as soon as it can, so that each trajectory can run at its own pace.

    Attributes:
        activity: The activity of this run.
        grace: Maximum seconds that :meth:`settle` waits.
    """

    activity: Activity
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

    @abstractmethod
    def settle(self) -> None:
        """Stop sending submitted requests, wait for the replies under way, and cancel the rest."""
