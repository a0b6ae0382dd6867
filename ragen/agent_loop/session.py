"""A trajectory's environment as seen by its agent loop, and the choice of the service that owns it.

With Ray there is one service per node (:mod:`ragen.agent_loop.ray_service`), which the node's agent loops share. If a
service's process or node is lost, each session reopens its environment on another service, and replays its recorded
turns. The results are compared, so that the agent loop notices no difference.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ragen.agent_loop.ray_service import RemoteService
from ragen.agent_loop.service import EnvService, Opened, SessionKey
from ragen.errors import DivergenceError, ServiceTimeoutError, SessionLostError
from ragen.llm_agent.config.environments import read_config
from ragen.parallel.episode.turn import RAGEN, Turn, TurnResult, digest_observation, state_hash
from ragen.settings import choice

log = logging.getLogger(__name__)

T = TypeVar("T")
KINDS = ("ray", "local")
PAUSES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # seconds to wait after each consecutive loss of a service


class Service(Protocol):
    """The interface of a service to sessions; see :class:`~ragen.agent_loop.service.EnvService`."""

    async def open(self, tag: str, seed: int, mode: str = "train", *, is_again: bool = False) -> Opened:
        """Build and reset an environment; ``is_again`` if it was open in a service that was lost."""

    async def play(self, session: SessionKey, turn: int, actions: Sequence[str], actions_left: int) -> TurnResult:
        """Play one turn."""

    async def close(self, session: SessionKey) -> float:
        """Close an environment; returns the seconds spent inside it."""


class Session:
    """An environment for the length of one episode.

    Attributes:
        rebuilt: Number of times it was reopened.
        busy_s: Seconds spent inside it, known once it is closed; after a lost service, those of the replay.
    """

    def __init__(self, service: Service, tag: str, seed: int, mode: str = "train") -> None:
        """Set the environment; :meth:`open` builds it."""
        self._service = service
        self._order = (tag, seed, mode)
        self._key: SessionKey | None = None
        self._is_known = True  # whether the environment's state is known
        self._first: Any = None
        self._played: list[tuple[Turn, tuple[Any, ...]]] = []
        self.rebuilt = 0
        self.busy_s = 0.0

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
        """Build and reset the environment."""
        opened = await self._persist(self._opened)
        self._first = state_hash(digest_observation(opened.observation))
        return opened

    async def play(self, actions: Sequence[str], actions_left: int) -> TurnResult:
        """Play the next turn.

        Args:
            actions: The model's actions.
            actions_left: Actions that the episode still allows.

        Raises:
            RagenError: See :meth:`~ragen.agent_loop.service.EnvService.play`.
            DivergenceError: The service was lost, and the environment's replay differed.
            ServiceTimeoutError: The turn has no result in time. It may be retried, on a reopened environment.
        """
        turn, index = Turn(tuple(actions), actions_left), len(self._played)
        if not self._is_known:
            await self.close()
        try:
            result = await self._persist(lambda: self._play(index, turn))
        except (asyncio.CancelledError, ServiceTimeoutError):
            self._is_known = False
            raise
        self._played.append((turn, _recorded(result)))
        return result

    async def close(self) -> None:
        """Close the environment, if there is one and its service is alive."""
        key, self._key = self._key, None
        if key is None:
            return
        try:
            self.busy_s += await self._service.close(key)
        except (SessionLostError, ServiceTimeoutError):
            log.info("environment %d had gone with its service when it was to be closed", key.number)

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, on a rebuilt environment if the service has lost it."""
        for pause in PAUSES:
            try:
                return await call()
            except SessionLostError as error:
                log.warning("the environment service was lost (%s); %s is played again", error, self._order)
                self._key = None
            await asyncio.sleep(pause)
        return await call()

    async def _opened(self) -> Opened:
        opened = await self._service.open(*self._order, is_again=self.rebuilt > 0)
        self._key = opened.session
        return opened

    async def _play(self, index: int, turn: Turn) -> TurnResult:
        if self._key is None:
            await self._rebuild()
        assert self._key is not None
        return await self._service.play(self._key, index, turn.actions, turn.actions_left)

    async def _rebuild(self) -> None:
        """Reopen the environment and replay its turns."""
        self.rebuilt += 1
        again = await self._opened()
        self._is_known = True
        self._compare("at its reset", self._first, state_hash(digest_observation(again.observation)))
        for index, (turn, recorded) in enumerate(self._played):
            self._compare(f"at turn {index}", recorded, _recorded(await self._play(index, turn)))

    def _compare(self, moment: str, first: Any, again: Any) -> None:
        if first != again:
            tag, seed, _ = self._order
            raise DivergenceError(
                f"the environment of tag {tag!r} and seed {seed}, played again after its service was lost, showed "
                f"something else {moment}; it is not deterministic, so its trajectory cannot go on."
            )


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


async def close_quietly(session: Session) -> None:
    """Close a session completely, even if the trajectory is being canceled."""
    await asyncio.shield(session.close())
