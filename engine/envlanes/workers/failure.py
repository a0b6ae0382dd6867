"""Failures of workers to reply."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from envlanes.workers.handle import Ending

_FROM_OUTSIDE = (None, -signal.SIGTERM, -getattr(signal, "SIGKILL", signal.SIGTERM))  # exit statuses


class Cause(Enum):
    """Causes of a worker's loss."""

    DIED = "died"
    TIMEOUT = "timeout"  # an item was overdue, and it was killed for it
    START = "start"  # it never came up
    REPLACED = "replaced"  # another engine's failure has replaced it meanwhile


@dataclass(frozen=True)
class WorkerFailure:
    """A worker's process is gone, and with it the replies that were due.

    Attributes:
        cause: The cause of the worker's loss.
        worker: Name of the worker.
        ending: The worker's end.
        index: Position in the batch of the item it was at; the batch's length if it was through; None if at none.
        seconds: The deadline, where one was missed.
        stacks: Stacks of the worker's threads, if available.
    """

    cause: Cause
    worker: str
    ending: Ending
    index: int | None = None
    seconds: float = 0.0
    stacks: str = ""

    @property
    def may_come_from_outside(self) -> bool:
        """Whether another process may have killed the worker or its supervisor: no deadline was missed."""
        return not self.seconds and self.ending.status in _FROM_OUTSIDE

    def describe(self) -> str:
        """The failure in words."""
        is_known = self.cause in (Cause.TIMEOUT, Cause.DIED) and self.ending.where
        return f"{self.worker}{f' ({self.ending.where})' if is_known else ''} {self.what}"

    @property
    def what(self) -> str:
        """The failure in words, without the worker's name."""
        if self.cause is Cause.TIMEOUT:
            return f"missed a deadline of {self.seconds:g} s and was killed"
        if self.cause is Cause.START and self.seconds:
            return f"did not start within {self.seconds:g} s and was killed"
        if self.cause is Cause.START:
            return f"did not start: its process {self.ending.describe()}"
        if self.cause is Cause.REPLACED:
            return "was restarted for another engine"
        return self.ending.describe()
