"""Metrics of a cluster's environment services since the last reading, for a trainer's log.

A trainer, or any process of the same Ray job, creates a :class:`ServiceMeter` and reads it once per step::

    meter = ServiceMeter(config)
    logger.log({**metrics, **meter.read()}, step=step)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen.agent_loop.ray_service import actor_name, namespace
from ragen.agent_loop.service_stats import ServiceStats, together


class ServiceMeter:
    """Reads all services of a configuration, one per node; creates none."""

    def __init__(self, config: Mapping[str, Any], patience: float = 10.0) -> None:
        """Begin; the first reading includes what running services have done before.

        Args:
            config: RAGEN's whole configuration as plain dicts, the same that the agent loops have.
            patience: Total seconds to wait for services; one that does not answer is skipped.
        """
        self._config = config
        self._patience = patience
        self._last: dict[str, ServiceStats] = {}

    def read(self) -> dict[str, float]:
        """Metrics since the last reading; names begin with ``env_service/``, times are in seconds.

        The activity of a service that has ended since the last reading is lost.
        """
        steps = []
        for stats in all_stats(self._config, self._patience):
            steps.append(stats.since(self._last.get(stats.service, ServiceStats())))
            self._last[stats.service] = stats
        return together(steps)


def all_stats(config: Mapping[str, Any], patience: float = 10.0) -> list[ServiceStats]:
    """The statistics of all nodes' services since their creation; those that do not answer are skipped.

    Args:
        config: RAGEN's whole configuration as plain dicts.
        patience: Total seconds to wait.
    """
    import ray
    from ray.exceptions import RayError

    references: list[Any] = []
    for node in ray.nodes():
        if node["Alive"]:
            try:
                actor = ray.get_actor(actor_name(config, node["NodeID"]), namespace())
            except ValueError:  # the node has no service
                continue
            references.append(actor.stats.remote())
    ready, _ = ray.wait(references, num_returns=len(references), timeout=patience) if references else ([], [])
    found = []
    for reference in ready:
        try:
            found.append(ray.get(reference))
        except RayError:  # it has just ended
            continue
    return found
