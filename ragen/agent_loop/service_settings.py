"""What ``agent_loop`` says of the environment service: how many environments, and how long anybody waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.loading import setting
from ragen.llm_agent.config.reading import count, number


@dataclass(frozen=True)
class ServiceSettings:
    """Limits of a service; times in seconds.

    Attributes:
        max_sessions: Most environments that are open at a time in one service.
        queue_timeout: What a request may wait for its lane, beside the time that its turn or reset may take.
        service_timeout: How long a service may leave a sign of life unanswered before another takes its place.
        cpus: What a service's actor asks Ray for.
        step_timeout, reset_timeout: What a turn or a reset may take, see :class:`~ragen.parallel.settings.Settings`.
    """

    max_sessions: int = 16384
    queue_timeout: float = 600.0
    service_timeout: float = 60.0
    cpus: float = 0.0
    step_timeout: float = 60.0
    reset_timeout: float = 120.0

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> ServiceSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has a value that cannot work.
        """
        return cls(
            max_sessions=count(config, "agent_loop.max_sessions", 16384, low=1),
            queue_timeout=_seconds(config, "agent_loop.queue_timeout", 600.0),
            service_timeout=_seconds(config, "agent_loop.service_timeout", 60.0),
            cpus=number(config, "agent_loop.service_cpus", 0.0, 0),
            step_timeout=setting(config, "es_manager.step_timeout", float, 60.0),
            reset_timeout=setting(config, "es_manager.reset_timeout", float, 120.0),
        )

    @property
    def open_limit(self) -> float:
        """Seconds after which whoever opens an environment has an answer, whatever it is."""
        return self.reset_timeout + self.queue_timeout

    @property
    def play_limit(self) -> float:
        """Seconds after which whoever plays a turn has an answer, whatever it is."""
        return self.step_timeout + self.queue_timeout


def _seconds(config: Any, key: str, default: float) -> float:
    value = setting(config, key, float, default)
    if value <= 0:
        raise ConfigError(f"configuration key {key!r} is {value:g}; expected a number of seconds greater than 0.")
    return value
