"""The keys of ``agent_loop`` for the environment service: its capacity and time-outs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ragen.settings import key


@dataclass(frozen=True)
class ServiceSettings:
    """Limits of a service; times in seconds.

    Attributes:
        max_sessions: Maximum number of environments that are open at a time in one service.
        queue_timeout: Time that a request may wait for its lane, in addition to that of its turn or reset.
        service_timeout: Time after which a service that leaves a call unanswered is replaced.
        cpus: Processors that a service's actor claims from Ray.
        step_timeout, reset_timeout: Time-outs of a turn and a reset, see :class:`~ragen.parallel.settings.Settings`.
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
        """Seconds within which opening an environment is answered."""
        return self.reset_timeout + self.queue_timeout

    @property
    def play_limit(self) -> float:
        """Seconds within which a turn is answered."""
        return self.step_timeout + self.queue_timeout
