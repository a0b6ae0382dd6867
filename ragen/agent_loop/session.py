"""A trajectory's environment as seen by its agent loop, and the choice of the service that owns it.

With Ray there is one service per node (:mod:`ragen.agent_loop.ray_service`). If it is lost, each session reopens its
environment on another one, and replays its recorded turns. The results are compared, so that the agent loop notices no
difference.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ragen.agent_loop.ray_service import RemoteService
from ragen.agent_loop.service import EnvService, Opened, ServiceSettings
from ragen.errors import DivergenceError, EnvError, ServiceTimeoutError, SessionLostError
from ragen.llm_agent.config.environments import read_config
from ragen.parallel.episode.turn import RAGEN, Turn, TurnResult, digest_observation, state_hash
from ragen.settings import choice

log = logging.getLogger(__name__)

T = TypeVar("T")
KINDS = ("ray", "local")


class Service(Protocol):
    """The interface of a service to sessions; see :class:`~ragen.agent_loop.service.EnvService`."""

    limits: ServiceSettings

    async def open(self, name: str, tag: str, seed: int, mode: str = "train") -> Opened:
        """Build and reset an environment."""

    async def play(self, name: str, actions: Sequence[str], actions_left: int) -> TurnResult:
        """Play one turn."""

    async def close(self, name: str) -> None:
        """Close an environment."""


class Session:
    """An environment for the length of one episode."""

    def __init__(self, service: Service, tag: str, seed: int, mode: str = "train") -> None:
        """Set the environment; :meth:`open` builds it."""
        self._service = service
        self._order = (tag, seed, mode)
        self._name: str | None = None  # of the open environment
        self._first: Any = None
        self._played: list[tuple[Turn, tuple[Any, ...]]] = []

    @classmethod
    def resumed(
        cls, service: Service, order: tuple[str, int, str], first: Any, played: Sequence[tuple[Turn, Sequence[Any]]]
    ) -> Session:
        """A session that continues an earlier episode; its next turn builds the environment and replays its turns.

        Args:
            service: The service of the environment.
            order: Its tag, seed and mode.
            first: :attr:`first` of the session that played it.
            played: :attr:`played` of it.
        """
        session = cls(service, *order)
        session._first = first
        session._played = [(turn, tuple(recorded)) for turn, recorded in played]
        return session

    @property
    def first(self) -> str:
        """The digest of the first observation."""
        return self._first

    @property
    def played(self) -> Sequence[tuple[Turn, tuple[Any, ...]]]:
        """Each turn, and its reward, whether the game was over, and the digest of the observation."""
        return self._played

    async def open(self) -> Opened:
        """Build and reset the environment.

        Raises:
            EnvError: It failed.
            ServiceTimeoutError: It was not opened in time.
        """
        opened = await self._persist(self._opened)
        self._first = state_hash(digest_observation(opened.observation))
        return opened

    async def play(self, actions: Sequence[str], actions_left: int) -> TurnResult:
        """Play the next turn.

        Args:
            actions: The model's actions.
            actions_left: Actions that the episode still allows.

        Raises:
            DivergenceError: The service was lost, and the environment's replay differed.
            ServiceTimeoutError: The turn has no result in time. It may be retried, on a reopened environment.
        """
        turn = Turn(tuple(actions), actions_left)
        try:
            result = await self._persist(lambda: self._play(turn))
        except (asyncio.CancelledError, ServiceTimeoutError):
            await asyncio.shield(self.close())  # whether it was played is not known
            raise
        self._played.append((turn, _recorded(result)))
        return result

    async def close(self) -> None:
        """Close the environment, if there is one and its service is alive."""
        name, self._name = self._name, None
        if name is not None:
            try:
                await self._within(self._service.limits.play_limit, self._service.close(name))
            except (SessionLostError, ServiceTimeoutError):
                log.info("an environment had gone with its service when it was to be closed")

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, on a rebuilt environment if the service has lost it."""
        for _ in range(self._service.limits.max_restarts):
            try:
                return await call()
            except SessionLostError as error:
                log.warning("%s; %s is played again", error, self._order)
                self._name = None
        return await call()

    async def _opened(self) -> Opened:
        self._name = secrets.token_hex(8)
        opened = await self._within(self._service.limits.open_limit, self._service.open(self._name, *self._order))
        if opened.env_error:
            await self.close()
            raise EnvError(opened.env_error)
        return opened

    async def _play(self, turn: Turn) -> TurnResult:
        if self._name is None:
            await self._rebuild()
        return await self._turn(turn)

    async def _turn(self, turn: Turn) -> TurnResult:
        assert self._name is not None
        return await self._within(self._service.limits.play_limit, self._service.play(self._name, *turn))

    async def _rebuild(self) -> None:
        """Reopen the environment and replay its turns."""
        again = await self._opened()
        self._compare("at its reset", self._first, state_hash(digest_observation(again.observation)))
        for index, (turn, recorded) in enumerate(self._played):
            self._compare(f"at turn {index}", recorded, _recorded(await self._turn(turn)))

    def _compare(self, moment: str, first: Any, again: Any) -> None:
        if first != again:
            tag, seed, _ = self._order
            raise DivergenceError(
                f"the environment of tag {tag!r} and seed {seed}, played again after its service was lost, showed "
                f"something else {moment}; it is not deterministic, so its trajectory cannot go on."
            )

    async def _within(self, limit: float, call: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(call, limit)
        except TimeoutError as error:
            tag, seed, _ = self._order
            raise ServiceTimeoutError(
                f"the environment of tag {tag!r} and seed {seed} did not answer within {limit:g} s, waiting for its "
                "worker included; add workers (es_manager.max_workers), raise agent_loop.queue_timeout, or look for "
                "an environment that hangs."
            ) from error


def _recorded(result: TurnResult) -> tuple[Any, ...]:
    """The compact record of a turn; the digest of a failed one is None."""
    *others, digest = RAGEN.record(result)
    return (*others, None if digest is None else state_hash(digest))


def connect(config: Mapping[str, Any]) -> Service:
    """The service to use: this node's actor, or with ``agent_loop.service: local`` one in this process.

    Args:
        config: RAGEN's whole configuration as plain dicts.

    Raises:
        ConfigError: ``agent_loop.service`` is neither ``ray`` nor ``local``, or no service could be made of this.
    """
    kind = service_kind(config)
    if kind == "local":
        return EnvService(config)
    read_config(config, "train")  # raises here rather than in an actor that does not start
    return RemoteService(config)


def service_kind(config: Any) -> str:
    """``agent_loop.service``, checked."""
    return choice(config, "agent_loop.service", "ray", KINDS)
