"""The environment service in a Ray actor: one on each node, which all agent loops of the node share.

The actor is looked up by a name that all processes of the node derive alike; the first one creates it. It ends with
that process, as verl's trainer does if an agent loop worker is lost. If it is lost alone, the next call creates
another, empty one, where sessions play their environments again (:mod:`ragen.agent_loop.session`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from envlanes.ragen.turn import TurnResult
from ragen.agent_loop.service import EnvService, Opened, ServiceLimits
from ragen.errors import RagenError, SessionLostError, one_line


class RemoteService:
    """The client of a node's service; see :class:`~ragen.agent_loop.service.EnvService`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Set the service; the first request looks it up.

        Args:
            config: RAGEN's whole configuration as plain dicts.

        Raises:
            ConfigError: A key of ``agent_loop`` has an invalid value.
        """
        self.limits = ServiceLimits.read(config)
        self._config = config
        self._actor: Any = None  # kept, since an actor ends when its creator holds no handle of it

    async def open(self, name: str, tag: str, seed: int, mode: str = "train") -> Opened:
        """See :meth:`ragen.agent_loop.service.EnvService.open`."""
        opened: Opened = await self._ask("open", name, tag, seed, mode)
        return opened

    async def play(self, name: str, actions: Sequence[str], actions_left: int) -> TurnResult:
        """See :meth:`ragen.agent_loop.service.EnvService.play`."""
        result: TurnResult = await self._ask("play", name, actions, actions_left)
        return result

    async def close(self, name: str) -> None:
        """See :meth:`ragen.agent_loop.service.EnvService.close`."""
        await self._ask("close", name)

    async def _ask(self, verb: str, *arguments: Any) -> Any:
        from ray.exceptions import RayActorError, RayTaskError

        actor = self._actor = self._actor or node_actor(self._config)
        try:
            return await getattr(actor, verb).remote(*arguments)
        except RayActorError as error:
            if self._actor is actor:  # else another session has noticed it before
                self._actor = None
            raise SessionLostError(f"the environment service is lost: {one_line(error)}") from error
        except RayTaskError as error:
            if isinstance(error.cause, RagenError):
                raise error.cause from error
            raise


def node_actor(config: Mapping[str, Any]) -> Any:
    """The handle of this node's service, which is created if needed."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()
    return (
        ray.remote(EnvService)
        .options(
            name=f"ragen_environments_{digest[:8]}_{node}",
            get_if_exists=True,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            num_cpus=0,
        )
        .remote(config)
    )
