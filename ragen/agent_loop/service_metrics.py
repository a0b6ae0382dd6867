"""What the services of a cluster have done since one last looked, for a trainer's log.

A trainer, or whatever process of the same Ray job, makes one :class:`ServiceMeter` and reads it once a step::

    meter = ServiceMeter(config)
    logger.log({**metrics, **meter.read()}, step=step)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen.agent_loop.ray_service import actor_name, namespace
from ragen.agent_loop.service_stats import ServiceStats, together


class ServiceMeter:
    """Reads all services of a configuration, one a node; makes none."""

    def __init__(self, config: Mapping[str, Any], patience: float = 10.0) -> None:
        """Begin with what is done from now on, and what running services have done before.

        Args:
            config: RAGEN's whole configuration as plain dicts, the same that the agent loops have.
            patience: Seconds to wait for services in all; one that does not answer is left out until it does.
        """
        self._config = config
        self._patience = patience
        self._last: dict[str, ServiceStats] = {}

    def read(self) -> dict[str, float]:
        """Numbers to log of what was done since the last time; names begin with ``env_service/``, times in seconds.

        A service that has ended in between takes what it did since the last time with it.
        """
        steps = []
        for stats in all_stats(self._config, self._patience):
            steps.append(stats.since(self._last.get(stats.service, ServiceStats())))
            self._last[stats.service] = stats
        return together(steps)


def all_stats(config: Mapping[str, Any], patience: float = 10.0) -> list[ServiceStats]:
    """What the services of all nodes have done, each since it was made; those that do not answer are left out.

    Args:
        config: RAGEN's whole configuration as plain dicts.
        patience: Seconds to wait for them in all.
    """
    import ray
    from ray.exceptions import RayError

    references: list[Any] = []
    for node in ray.nodes():
        if node["Alive"]:
            try:
                actor = ray.get_actor(actor_name(config, node["NodeID"]), namespace())
            except ValueError:  # no one plays there
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
