"""What ``agent_loop`` says of the environment service: how many environments, and how long anybody waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ragen.settings import key


@dataclass(frozen=True)
class ServiceSettings:
    """Limits of a service; times in seconds.

    Attributes:
        max_sessions: Maximum number of environments that are open at a time in one service.
        queue_timeout: What a request may wait for its lane, beside the time that its turn or reset may take.
        service_timeout: How long a service may leave a call unanswered before another takes its place.
        cpus: What a service's actor asks Ray for.
        step_timeout, reset_timeout: What a turn or a reset may take, see :class:`~ragen.parallel.settings.Settings`.
    """

    SECTION: ClassVar[str] = "agent_loop"
    max_sessions: int = key(16384, low=1)
    queue_timeout: float = key(600.0, is_seconds=True)
    service_timeout: float = key(60.0, is_seconds=True)
    cpus: float = key(0.0, "agent_loop.service_cpus", low=0)
    step_timeout: float = key(60.0, "es_manager.step_timeout")
    reset_timeout: float = key(120.0, "es_manager.reset_timeout")

    @property
    def open_limit(self) -> float:
        """Seconds after which the caller that opens an environment has an answer, whatever it is."""
        return self.reset_timeout + self.queue_timeout

    @property
    def play_limit(self) -> float:
        """Seconds after which the caller that plays a turn has an answer, whatever it is."""
        return self.step_timeout + self.queue_timeout
