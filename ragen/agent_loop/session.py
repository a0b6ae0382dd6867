"""A trajectory's environment as seen by its agent loop, and the choice of the service that owns it.

With Ray there is one service per node (:mod:`ragen.agent_loop.ray_service`). If it is lost, each session reopens its
environment on another one, and replays its recorded turns. The results are compared, so that the agent loop notices no
difference.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from envlanes.ragen.turn import TEXT, Turn, TurnResult, digest_observation, state_hash
from ragen.agent_loop.ray_service import RemoteService
from ragen.agent_loop.service import EnvService, Opened
from ragen.config.loading import as_config
from ragen.errors import DivergenceError, EnvError, ServiceTimeoutError, SessionLostError
from ragen.files import json_text
from ragen.llm_agent.environments import read_config

log = logging.getLogger(__name__)

T = TypeVar("T")
Played = tuple[Turn, str]


Service = EnvService | RemoteService


class Session:
    """An environment for the length of one episode.

    Attributes:
        first: The digest of the first observation.
        played: Each turn, and the digest of its result.
    """

    def __init__(
        self, service: Service, tag: str, seed: int, mode: str = "train", first: str = "", played: Iterable[Played] = ()
    ) -> None:
        """Set the environment; :meth:`open` builds it.

        Args:
            service: The service that owns it.
            tag: Key of ``custom_envs``.
            seed: Seed of its episode.
            mode: ``"train"`` or ``"val"``.
            first: :attr:`first` of an earlier session whose episode is continued: the next turn builds the environment,
                and replays the turns.
            played: :attr:`played` of it.
        """
        self._service = service
        self._order = (tag, seed, mode)
        self._name: str | None = None  # of the open environment
        self.first = first
        self.played = list(played)

    async def open(self) -> Opened:
        """Build and reset the environment.

        Raises:
            EnvError: It failed.
            ServiceTimeoutError: It was not opened in time.
        """
        opened = await self._persist(self._opened)
        self.first = _digest(opened)
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
        self.played.append((turn, _recorded(result)))
        return result

    async def rewind(self, turns: int) -> None:
        """Drop all turns but the first ones; the next turn rebuilds the environment."""
        del self.played[turns:]
        await self.close()

    async def close(self) -> None:
        """Close the environment, if there is one and its service is alive."""
        name, self._name = self._name, None
        if name is not None:
            try:
                await self._within(self._service.limits.play_s, self._service.close(name))
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
        opened = await self._within(self._service.limits.open_s, self._service.open(self._name, *self._order))
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
        return await self._within(self._service.limits.play_s, self._service.play(self._name, *turn))

    async def _rebuild(self) -> None:
        """Reopen the environment and replay its turns."""
        again = await self._opened()
        self._compare("at its reset", self.first, _digest(again))
        for index, (turn, recorded) in enumerate(self.played):
            self._compare(f"at turn {index}", recorded, _recorded(await self._turn(turn)))

    def _compare(self, moment: str, first: str, again: str) -> None:
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


def _digest(opened: Opened) -> str:
    return str(state_hash(digest_observation(opened.observation)))


def _recorded(result: TurnResult) -> str:
    """The digest of a result, in which NaN equals itself; that of a failed one has no observation."""
    *others, digest = TEXT.record(result)
    return json_text([*others, None if digest is None else state_hash(digest)])


def connect(config: Mapping[str, Any]) -> Service:
    """The service to use: this node's actor, or with ``agent_loop.service: local`` one in this process.

    Args:
        config: RAGEN's whole configuration as plain dicts.

    Raises:
        ConfigError: A key has an invalid value.
    """
    if as_config(config).agent_loop.service == "local":
        return EnvService(config)
    read_config(config, "train")  # raises here rather than in an actor that does not start
    return RemoteService(config)
