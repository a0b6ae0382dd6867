"""One trajectory's environment, as its agent loop has it, and how the service that owns it is found.

With Ray there is one service on each node, a named actor that the agent loops of the node share: it is made by whoever
asks first. Should its process die, Ray starts it again, empty, and each session opens its environment again and plays
the turns it remembers: what the agent loop sees is the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ragen.agent_loop.service import EnvService, Opened, SessionKey
from ragen.errors import ConfigError, DivergenceError, SessionLostError
from ragen.llm_agent.config.loading import setting
from ragen.parallel.episode.turn import Observation, Turn, TurnResult, digest_observation

log = logging.getLogger(__name__)

T = TypeVar("T")
KINDS = ("ray", "local")
PAUSES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # seconds to wait each time that a call finds its service dead
_CONCURRENCY = 100_000  # coroutines of the actor at a time; each only waits


class Service(Protocol):
    """What a session needs of a service; see :class:`~ragen.agent_loop.service.EnvService`."""

    async def open(self, tag: str, seed: int, mode: str = "train") -> Opened:
        """Build and reset an environment."""

    async def play(self, session: SessionKey, turn: int, actions: Sequence[str], actions_left: int) -> TurnResult:
        """Play one turn."""

    async def close(self, session: SessionKey) -> None:
        """Close an environment."""


class Session:
    """An environment for the length of one episode."""

    def __init__(self, service: Service, tag: str, seed: int, mode: str = "train") -> None:
        """Know which environment is meant; :meth:`open` builds it."""
        self._service = service
        self._order = (tag, seed, mode)
        self._key: SessionKey | None = None
        self._first: Observation = ""
        self._played: list[tuple[Turn, TurnResult]] = []

    async def open(self) -> Opened:
        """Build and reset the environment."""
        opened = await self._persist(self._opened)
        self._first = opened.observation
        return opened

    async def play(self, actions: Sequence[str], actions_left: int) -> TurnResult:
        """Play the next turn.

        Args:
            actions: What the model asked for.
            actions_left: Actions that the episode still allows.

        Raises:
            RagenError: See :meth:`~ragen.agent_loop.service.EnvService.play`.
            DivergenceError: The service was lost, and the environment gave other things when it was played again.
        """
        turn, index = Turn(tuple(actions), actions_left), len(self._played)
        result = await self._persist(lambda: self._play(index, turn))
        self._played.append((turn, result))
        return result

    async def close(self) -> None:
        """Close the environment, if there is one and its service lives."""
        key, self._key = self._key, None
        if key is None:
            return
        try:
            await self._service.close(key)
        except _lost():
            log.info("environment %d had gone with its service when it was to be closed", key.number)

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, on a rebuilt environment if the service has lost it."""
        for pause in PAUSES:
            try:
                return await call()
            except _lost() as error:
                log.warning("the environment service was lost (%s); %s is played again", error, self._order)
                self._key = None
            await asyncio.sleep(pause)
        return await call()

    async def _opened(self) -> Opened:
        opened = await self._service.open(*self._order)
        self._key = opened.session
        return opened

    async def _play(self, index: int, turn: Turn) -> TurnResult:
        if self._key is None:
            await self._rebuild()
        assert self._key is not None
        return await self._service.play(self._key, index, turn.actions, turn.actions_left)

    async def _rebuild(self) -> None:
        """Open the environment again and play what was played."""
        self._compare("at its reset", self._first, (await self._opened()).observation)
        for index, (turn, result) in enumerate(self._played):
            again = await self._play(index, turn)
            self._compare(f"at turn {index}", result.observation, again.observation)

    def _compare(self, moment: str, first: Observation, again: Observation) -> None:
        if digest_observation(first) != digest_observation(again):
            tag, seed, _ = self._order
            raise DivergenceError(
                f"the environment of tag {tag!r} and seed {seed}, played again after its service was lost, showed "
                f"something else {moment}; it is not deterministic, so its trajectory cannot go on."
            )


class RemoteService:
    """A service in a Ray actor."""

    def __init__(self, actor: Any) -> None:
        """Speak to this actor."""
        self.actor = actor

    async def open(self, tag: str, seed: int, mode: str = "train") -> Opened:
        """See :class:`Service`."""
        return await self.actor.open.remote(tag, seed, mode)

    async def play(self, session: SessionKey, turn: int, actions: Sequence[str], actions_left: int) -> TurnResult:
        """See :class:`Service`."""
        return await self.actor.play.remote(session, turn, actions, actions_left)

    async def close(self, session: SessionKey) -> None:
        """See :class:`Service`."""
        await self.actor.close.remote(session)


def connect(config: Mapping[str, Any]) -> Service:
    """The service to use: this node's actor, or with ``agent_loop.service: local`` one in this process.

    Args:
        config: RAGEN's whole configuration as plain dicts.

    Raises:
        ConfigError: ``agent_loop.service`` is neither ``ray`` nor ``local``.
    """
    kind = service_kind(config)
    return EnvService(config) if kind == "local" else RemoteService(node_actor(config))


def service_kind(config: Any) -> str:
    """``agent_loop.service``, checked."""
    kind = setting(config, "agent_loop.service", str, "ray")
    if kind not in KINDS:
        raise ConfigError(f"configuration key 'agent_loop.service' is {kind!r}; expected one of {', '.join(KINDS)}.")
    return kind


def node_actor(config: Mapping[str, Any]) -> Any:
    """The handle of this node's service, which is made now if there is none."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    return (
        ray.remote(EnvService)
        .options(
            name=actor_name(config, node),
            get_if_exists=True,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            num_cpus=setting(config, "agent_loop.service_cpus", float, 0.0),
            max_concurrency=_CONCURRENCY,
            max_restarts=-1,
        )
        .remote(config)
    )


def actor_name(config: Mapping[str, Any], node: str) -> str:
    """The actor's name: one for each node and configuration."""
    told = json.dumps(config, sort_keys=True, default=str)
    return f"ragen_environments_{hashlib.sha256(told.encode()).hexdigest()[:8]}_{node}"


def _lost() -> tuple[type[BaseException], ...]:
    """The exceptions that say that a service has forgotten its environments."""
    lost: tuple[type[BaseException], ...] = (SessionLostError,)
    if "ray" in sys.modules:
        from ray.exceptions import ActorDiedError, ActorUnavailableError

        lost += (ActorDiedError, ActorUnavailableError)
    return lost


async def close_quietly(session: Session) -> None:
    """Close a session to the end, also where the trajectory is being cancelled."""
    await asyncio.shield(session.close())
