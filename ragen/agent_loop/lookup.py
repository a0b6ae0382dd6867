"""How a service's actor is named, found, made where there is none, and ended; what Ray says of one that is gone."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ragen.agent_loop.service_actor import ServiceActor
from ragen.agent_loop.service_settings import ServiceSettings
from ragen.errors import SessionLostError

log = logging.getLogger(__name__)

_CONCURRENCY = 10_000  # calls of the actor at a time; each caller has two


def find_service(config: Mapping[str, Any], limits: ServiceSettings, node: str | None = None, misses: int = 0) -> Any:
    """The handle of a service's actor, which is made now if there is none.

    Args:
        config: RAGEN's whole configuration as plain dicts.
        limits: What it says of services.
        node: Ray's id of the node that it is to be on; this process's own if left out.
        misses: How often in a row this has led to no service that answers. From the second time on other nodes are
            tried as well, in turns.
    """
    import ray

    wanted = node or ray.get_runtime_context().get_node_id()
    living = sorted(each["NodeID"] for each in ray.nodes() if each["Alive"])
    nodes = [each for each in living if each == wanted] + [each for each in living if each != wanted]
    place = 0 if misses < 2 else (misses - 1) % len(nodes)
    if nodes[place] != wanted:
        log.warning("node %s has no environment service; the one of node %s is taken", wanted[:8], nodes[place][:8])
    return node_actor(config, nodes[place], limits.cpus)


def node_actor(config: Mapping[str, Any], node: str | None = None, cpus: float = 0.0) -> Any:
    """The handle of a node's service, which is made now if there is none.

    Args:
        config: RAGEN's whole configuration as plain dicts.
        node: Ray's id of the node; this process's own if left out.
        cpus: What the actor asks Ray for.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = node or ray.get_runtime_context().get_node_id()
    return (
        ray.remote(ServiceActor)
        .options(
            name=actor_name(config, node),
            namespace=namespace(),
            get_if_exists=True,
            lifetime="detached",
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            num_cpus=cpus,
            max_concurrency=_CONCURRENCY,
            max_restarts=0,  # a look-up makes another one, if there is still somebody who asks
        )
        .remote(config)
    )


def actor_name(config: Mapping[str, Any], node: str) -> str:
    """The actor's name: one for each node and configuration."""
    told = json.dumps(config, sort_keys=True, default=str)
    return f"ragen_environments_{hashlib.sha256(told.encode()).hexdigest()[:8]}_{node}"


def namespace() -> str:
    """Where services' names stand: a job's own, so that no job ever finds those of another."""
    import ray

    return f"ragen_{ray.get_runtime_context().get_job_id()}"


def kill(actor: Any) -> None:
    """End an actor, if it is there."""
    import ray

    with suppress(Exception):
        ray.kill(actor)


def gone() -> tuple[type[BaseException], ...]:
    """The exceptions that say that an actor is not there, will not be, or does not answer."""
    from ray.exceptions import ActorUnschedulableError, RayActorError, RaySystemError

    return (TimeoutError, SessionLostError, RayActorError, ActorUnschedulableError, RaySystemError)


def told(error: BaseException) -> str:
    """An exception in a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
