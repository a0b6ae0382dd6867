"""The service in a Ray actor: how it is found, spoken to, and found again when it is gone.

There is one on each node, a detached actor under a name that everybody on the node works out alike: it is made by
whoever asks first, belongs to nobody, and ends when nobody plays there any more
(:mod:`ragen.agent_loop.service_actor`). A service that dies is looked up again, which makes another one, empty. If
that cannot be on this node, another node's is taken.

All requests of a process go through one :class:`_Channel`: what is asked in one round of the event loop travels in one
frame of a line to the service (:mod:`ragen.agent_loop.line`), or in one call of Ray where that is on another machine. A
thread asks for a sign of life every few seconds. A service that leaves one unanswered for
``agent_loop.service_timeout`` seconds, and then a second one, is ended, so that another takes its place.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import secrets
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ragen.agent_loop.heartbeat import Heartbeat
from ragen.agent_loop.line import Line, connected
from ragen.agent_loop.lookup import find_service, gone, kill, told
from ragen.agent_loop.service import Opened, SessionKey
from ragen.agent_loop.service_actor import Answer, Request, Sign
from ragen.agent_loop.service_settings import ServiceSettings
from ragen.agent_loop.service_stats import ServiceStats
from ragen.agent_loop.whose import this_process
from ragen.errors import ServiceTimeoutError, SessionLostError
from ragen.parallel.episode.turn import TurnResult
from ragen.settings import read

log = logging.getLogger(__name__)

START = 120.0  # seconds that a service may take to start
FLYING = 2  # calls under way; what is asked meanwhile travels with the next one


class RemoteService:
    """A node's service, for all who play in this process; see :class:`~ragen.agent_loop.session.Service`."""

    def __init__(self, config: Mapping[str, Any], node: str | None = None) -> None:
        """Know which service is meant; the first request looks it up.

        Args:
            config: RAGEN's whole configuration as plain dicts.
            node: Ray's id of the node whose service is asked first; this process's own if left out.

        Raises:
            ConfigError: A key of ``agent_loop`` has a value that cannot work.
        """
        self.limits = read(ServiceSettings, config)
        self._config = config
        self._node = node
        self._channel: _Channel | None = None
        self._connecting: asyncio.Task[_Channel] | None = None
        self._misses = 0  # look-ups in a row that led to no service that answers

    async def open(self, tag: str, seed: int, mode: str = "train", *, is_again: bool = False) -> Opened:
        """See :meth:`ragen.agent_loop.service.EnvService.open`."""
        channel = await self._connected()
        return await channel.ask("open", (tag, seed, mode), {"is_again": is_again}, self.limits.open_limit)

    async def play(self, session: SessionKey, turn: int, actions: Sequence[str], actions_left: int) -> TurnResult:
        """See :meth:`ragen.agent_loop.service.EnvService.play`."""
        channel = await self._connected()
        return await channel.ask("play", (session, turn, actions, actions_left), {}, self.limits.play_limit)

    async def close(self, session: SessionKey) -> float:
        """See :meth:`ragen.agent_loop.service.EnvService.close`."""
        channel = await self._connected()
        seconds: float = await channel.ask("close", (session,), {}, self.limits.play_limit)
        return seconds

    async def stats(self) -> ServiceStats:
        """See :meth:`ragen.agent_loop.service.EnvService.stats`."""
        channel = await self._connected()
        stats: ServiceStats = await channel.ask("stats", (), {}, self.limits.service_timeout)
        return stats

    async def shut_down(self) -> None:
        """Leave the service; when all have left, it ends."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.leave()

    async def _connected(self) -> _Channel:
        loop = asyncio.get_running_loop()
        channel = self._channel
        if channel is not None and channel.loop is loop and channel.error is None:
            return channel
        connecting = self._connecting
        if connecting is None or connecting.done() or connecting.get_loop() is not loop:
            connecting = self._connecting = loop.create_task(self._connect())
        return await asyncio.shield(connecting)

    async def _connect(self) -> _Channel:
        """Look a service up, or make one, and wait until it has given a sign of life."""
        if self._channel is not None and not self._channel.has_answered:
            self._misses += 1
        try:
            actor = await asyncio.to_thread(find_service, self._config, self.limits, self._node, self._misses)
            channel = _Channel(actor, self.limits)
            await channel.greet()
        except gone() as error:
            self._misses += 1
            raise SessionLostError(f"the environment service could not be reached: {told(error)}") from error
        self._misses, self._channel = 0, channel
        return channel


class _Channel:
    """What goes to one actor from one event loop, until either is gone.

    Attributes:
        loop: The event loop.
        error: Why nothing can be asked any more; None while it can.
        has_answered: Whether the actor has ever answered a request.
        sign: Its first sign of life.
    """

    def __init__(self, actor: Any, limits: ServiceSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.error: str | None = None
        self.has_answered = False
        self.sign: Sign | None = None
        self._actor = actor
        self._limits = limits
        self._me = secrets.token_hex(8), this_process()
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._unsent: list[Request] = []
        self._flying = 0
        self._is_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = threading.Event()
        self._line: Line | None = None

    async def greet(self) -> None:
        """Wait until the actor has given a sign of life, and ask for one every few seconds from then on."""
        try:
            sign = await asyncio.wait_for(_result(self._actor.beat.remote(*self._me)), START)
        except TimeoutError:
            kill(self._actor)  # it may wait for its node to have room, and nobody would end it
            raise
        self.sign = sign
        self._line = await connected(sign.door, self._me[0])
        if self._line is not None:
            self._keep(self._listen(self._line))
        watch = Heartbeat(self._actor, self._me, sign, self._limits.service_timeout)
        told = self.loop, self._stop, self.fail
        threading.Thread(target=watch.run, args=told, name="ragen heartbeat", daemon=True).start()

    async def ask(self, verb: str, arguments: tuple[Any, ...], keywords: dict[str, Any], limit: float) -> Any:
        """Ask for something; what comes of it.

        Args:
            verb: Method of the service.
            arguments: Its arguments.
            keywords: Its keyword arguments.
            limit: Seconds within which the service answers, if it can: that it is late, too, is an answer.

        Raises:
            SessionLostError: The service is gone.
            ServiceTimeoutError: The service lives, and has not answered.
            RagenError: What the method has raised.
        """
        if self.error is not None:
            raise SessionLostError(self.error)
        number = next(self._numbers)
        future = self._pending[number] = self.loop.create_future()
        self._unsent.append((number, verb, arguments, keywords))
        self._schedule()
        patience = limit + self._limits.service_timeout
        timer = self.loop.call_later(patience, self._give_up, number, verb, patience)
        try:
            return await future
        finally:
            timer.cancel()
            self._pending.pop(number, None)

    async def leave(self) -> None:
        """Say goodbye, and ask nothing more."""
        is_first = self.error is None
        self.fail("this process has left its environment service.")
        if is_first:
            with suppress(*gone()):
                await asyncio.wait_for(_result(self._actor.leave.remote(self._me[0])), self._limits.service_timeout)

    def fail(self, text: str) -> None:
        """Have everybody know that the service is gone."""
        if self.error is not None:
            return
        self.error = text
        self._stop.set()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(SessionLostError(text))
        if self._line is not None:
            self._line.close()
        for task in self._tasks:
            task.cancel()

    def _give_up(self, number: int, verb: str, patience: float) -> None:
        future = self._pending.get(number)
        if future is not None and not future.done():
            text = (
                f"a request to {verb} got no answer in {patience:g} s, not even that it was late, though the "
                "environment service gives signs of life. Look at its node."
            )
            future.set_exception(ServiceTimeoutError(text))

    def _schedule(self) -> None:
        if not self._is_scheduled and self._flying < FLYING:
            self._is_scheduled = True
            self.loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_scheduled = False
        if self.error is not None:
            return
        requests, self._unsent = self._unsent, []
        if self._line is None:
            self._flying += 1
            self._keep(self._exchange(requests))
            return
        try:
            self._line.send(pickle.dumps(requests, pickle.HIGHEST_PROTOCOL))
        except Exception as error:
            self.fail(f"a request could not be sent to the environment service: {told(error)}")

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Have a task until it is done, or the service gone."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, line: Line) -> None:
        """Hand out the answers that come on the line; its end is the service's."""
        try:
            while True:
                self._hand_out(pickle.loads(await line.receive()))
        except Exception as error:
            self.fail(f"the environment service is gone: {told(error)}")

    async def _exchange(self, requests: list[Request]) -> None:
        """Bring requests; hand the answers out that come back."""
        try:
            packed = pickle.dumps(requests, pickle.HIGHEST_PROTOCOL)
            answers: list[Answer] = pickle.loads(await _result(self._actor.exchange.remote(*self._me, packed)))
        except Exception as error:
            self.fail(f"the environment service is gone: {told(error)}")
            return
        finally:
            self._flying -= 1
        self._hand_out(answers)
        if self._unsent or (self._pending and not self._flying):
            self._schedule()

    def _hand_out(self, answers: list[Answer]) -> None:
        self.has_answered = self.has_answered or bool(answers)
        for number, is_result, value in answers:
            future = self._pending.get(number)
            if future is None or future.done():
                continue
            if is_result:
                future.set_result(value)
            else:
                future.set_exception(value)


def _result(reference: Any) -> Coroutine[Any, Any, Any]:
    """What Ray's reference stands for, as a coroutine."""

    async def awaited() -> Any:
        return await reference

    return awaited()
