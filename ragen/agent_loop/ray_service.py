"""The environment service behind Ray: an actor on each node, and the client with which processes call it.

    a process that plays                              ServiceActor, one a node
    RemoteService                                       EnvService
      exchange(requests 1-40)   ------------------>       a task for each request
                                <------------------       answers 3, 7, 8: what is there after a moment
      exchange(requests 41-44)  ------------------>
                                <------------------       answers 1, 2, 4, 5, ...

The two communicate only through this Ray call. It carries requests and waits for answers to these or earlier ones; the
process's next call makes the previous one return with the answers available. So a call carries several turns, a slow
environment delays no other answers, and at most one call per process waits. Requests within :data:`PACE` of the last
call are sent together, since a call costs both processes a good part of a millisecond.

The actor is detached: the first process that needs it creates it, under a name that all processes on the node derive
alike, and it outlives that process. A process that plays, or has played, always has a call in progress; one that has
not called for :data:`ALIVE` seconds is considered gone, and its environments are closed. An actor without callers ends
after :data:`LINGER` seconds.

If a service is gone, or was ended because it left a call unanswered for ``agent_loop.service_timeout``, the next
look-up creates another, empty one on this node or on another; trajectories replay their environments there
(:mod:`ragen.agent_loop.session`).
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import pickle
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ragen.agent_loop.service import EnvService, Opened, SessionKey
from ragen.agent_loop.service_settings import ServiceSettings
from ragen.agent_loop.service_stats import ServiceStats
from ragen.errors import RagenError, ServiceTimeoutError, SessionLostError
from ragen.parallel.episode.turn import TurnResult
from ragen.settings import read

log = logging.getLogger(__name__)

PACE = 0.02  # seconds between two calls of a process; requests in between are sent together
SETTLE = 0.005  # seconds that the first answer waits for others
POLL = 10.0  # maximum seconds that a call waits for answers
ALIVE = 60.0  # seconds after which a process that has not called is gone
LINGER = 30.0  # seconds without a caller after which the service ends
FIRST = 120.0  # the same, before the first caller has come
WATCH = 1.0  # seconds between two looks at the callers
START = 120.0  # seconds that a service may take to start
_CONCURRENCY = 10_000  # calls of the actor at a time

Request = tuple[int, str, tuple[Any, ...], dict[str, Any]]  # number, method of the service, its arguments
Answer = tuple[int, bool, Any]  # number, whether it is a result, result or exception


# On a node


@dataclass
class _Caller:
    """A process that uses this service."""

    name: str
    heard: float = field(default_factory=time.monotonic)
    outbox: list[Answer] = field(default_factory=list)
    waiting: asyncio.Future[None] | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def put(self, answer: Answer) -> None:
        self.outbox.append(answer)
        if not self.tasks:
            self.wake()
        elif len(self.outbox) == 1:
            asyncio.get_running_loop().call_later(SETTLE, self._settle)

    def _settle(self) -> None:
        if self.outbox:  # not yet taken by another call
            self.wake()

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    async def collect(self, patience: float) -> list[Answer]:
        """The available answers, or the next ones; empty if another call arrives first, or after ``patience`` s."""
        self.wake()
        if not self.outbox:
            mine = self.waiting = asyncio.get_running_loop().create_future()
            timer = mine.get_loop().call_later(patience, self.wake)
            try:
                await mine
            finally:
                timer.cancel()
        answers, self.outbox = self.outbox, []
        return answers


class ServiceActor:
    """An :class:`~ragen.agent_loop.service.EnvService` with its callers and its lifetime."""

    def __init__(
        self, config: Mapping[str, Any], end: Callable[[], None] | None = None, linger: float = LINGER
    ) -> None:
        """Create the service.

        Args:
            config: RAGEN's whole configuration as plain dicts.
            end: Ends this process; by default, ends its Ray actor.
            linger: Seconds without a caller after which the service ends.

        Raises:
            ConfigError: The configuration is invalid.
        """
        self._service = EnvService(config)
        self._callers: dict[str, _Caller] = {}
        self._is_ending = False
        self._end = end or _end_actor
        self._linger = linger
        self._deserted = time.monotonic() + max(FIRST - linger, 0)  # when the last caller was there
        self._watching: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        """Remove callers that are gone, and end without callers; started by the first call."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def exchange(self, name: str, packed: bytes, patience: float) -> bytes:
        """Accept requests, and wait for answers.

        Args:
            name: The caller's unique name.
            packed: A pickled list of requests.
            patience: Maximum seconds to wait.

        Returns:
            A pickled list of answers, in order of completion.

        Raises:
            SessionLostError: The service is about to end; nothing was started.
        """
        if self._is_ending:
            raise SessionLostError("this environment service has been idle for a while and is about to end.")
        await self.watch()
        caller = self._callers.setdefault(name, _Caller(name))
        caller.heard = time.monotonic()
        for request in pickle.loads(packed):
            task = asyncio.get_running_loop().create_task(self._answer(caller, request))
            caller.tasks.add(task)
        try:
            return _packed(await caller.collect(patience))
        finally:
            caller.heard = time.monotonic()

    async def leave(self, name: str) -> None:
        """Close a caller's environments, and forget it; after the last one has left, the service ends after a while."""
        await self._part_with(name, was_lost=False)

    async def stats(self) -> ServiceStats:
        """The service's statistics."""
        return await self._service.stats()

    async def shut_down(self) -> None:
        """Close everything, but do not end the process."""
        self._is_ending = True
        if self._watching is not None:
            self._watching.cancel()
        await self._service.shut_down()

    async def _answer(self, caller: _Caller, request: Request) -> None:
        number, verb, arguments, keywords = request
        if verb == "open":
            keywords = {**keywords, "caller": caller.name}
        try:
            answer: Answer = (number, True, await getattr(self._service, verb)(*arguments, **keywords))
        except Exception as error:
            answer = (number, False, error)
        finally:
            caller.tasks.discard(asyncio.current_task())  # type: ignore[arg-type]  # never None here
        caller.put(answer)

    async def _part_with(self, name: str, was_lost: bool = True) -> None:
        caller = self._callers.pop(name, None)
        if caller is None:
            return
        for task in list(caller.tasks):
            task.cancel()
        caller.wake()
        closed = self._service.close_all_of(name, was_lost)
        if closed and was_lost:
            log.warning("%d environments of a process that has not called for %g s are closed", closed, ALIVE)

    async def _watch(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(WATCH)
            now = time.monotonic()
            stood_still = max(now - before - 5 * WATCH, 0.0)  # this process was suspended, and could receive no call
            before = now
            self._deserted += stood_still
            for caller in list(self._callers.values()):
                caller.heard += stood_still
                if now - caller.heard > ALIVE:
                    await self._part_with(caller.name)
            if self._callers:
                self._deserted = now
            elif now - self._deserted > self._linger:
                log.info("the environment service is idle and ends")
                self._is_ending = True
                with suppress(Exception):
                    await asyncio.wait_for(self._service.shut_down(), 30.0)
                self._end()
                return


def _packed(answers: list[Answer]) -> bytes:
    """Answers as bytes; one that cannot be pickled is replaced by an error."""
    try:
        if all(is_result for _, is_result, _ in answers):
            return pickle.dumps(answers, pickle.HIGHEST_PROTOCOL)
    except Exception:
        log.debug("an answer does not travel; each is looked at", exc_info=True)
    return pickle.dumps([_travelling(answer) for answer in answers], pickle.HIGHEST_PROTOCOL)


def _travelling(answer: Answer) -> Answer:
    number, is_result, value = answer
    try:
        pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        text = f"{type(value).__name__}: {value}" if not is_result else f"a result cannot be pickled: {error!r}"
        kind = next((base for base in type(value).__mro__ if base.__module__ == RagenError.__module__), RagenError)
        return number, False, kind(text)
    return answer


def _end_actor() -> None:
    import ray

    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


# In a client process


class RemoteService:
    """The client of a node's service, for all of this process; see :class:`~ragen.agent_loop.session.Service`."""

    def __init__(self, config: Mapping[str, Any], node: str | None = None) -> None:
        """Set the service; the first request looks it up.

        Args:
            config: RAGEN's whole configuration as plain dicts.
            node: Ray's id of the node whose service is tried first; by default, this process's node.

        Raises:
            ConfigError: A key of ``agent_loop`` has an invalid value.
        """
        self.limits = read(ServiceSettings, config)
        self._config = config
        self._node = node
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None
        self._misses = 0  # consecutive look-ups without an answering service

    async def open(self, tag: str, seed: int, mode: str = "train", *, is_again: bool = False) -> Opened:
        """See :meth:`ragen.agent_loop.service.EnvService.open`."""
        opened: Opened = await self._ask("open", (tag, seed, mode), {"is_again": is_again}, self.limits.open_limit)
        return opened

    async def play(self, session: SessionKey, turn: int, actions: Sequence[str], actions_left: int) -> TurnResult:
        """See :meth:`ragen.agent_loop.service.EnvService.play`."""
        result: TurnResult = await self._ask("play", (session, turn, actions, actions_left), {}, self.limits.play_limit)
        return result

    async def close(self, session: SessionKey) -> float:
        """See :meth:`ragen.agent_loop.service.EnvService.close`."""
        seconds: float = await self._ask("close", (session,), {}, self.limits.play_limit)
        return seconds

    async def stats(self) -> ServiceStats:
        """See :meth:`ragen.agent_loop.service.EnvService.stats`."""
        stats: ServiceStats = await self._ask("stats", (), {}, self.limits.service_timeout)
        return stats

    async def shut_down(self) -> None:
        """Disconnect from the service, which ends after all clients have left."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.leave()

    async def _ask(self, verb: str, arguments: tuple[Any, ...], keywords: dict[str, Any], limit: float) -> Any:
        connection = await self._connected()
        return await connection.ask(verb, arguments, keywords, limit)

    async def _connected(self) -> _Connection:
        loop = asyncio.get_running_loop()
        connection = self._connection
        if connection is not None and connection.loop is loop and connection.error is None:
            return connection
        connecting = self._connecting
        if connecting is None or connecting.done() or connecting.get_loop() is not loop:
            connecting = self._connecting = loop.create_task(self._connect())
        return await asyncio.shield(connecting)

    async def _connect(self) -> _Connection:
        """Look up or create a service, and wait until it answers."""
        if self._connection is not None and not self._connection.has_answered:
            self._misses += 1
        actor = None
        try:
            actor = await asyncio.to_thread(find_service, self._config, self.limits, self._node, self._misses)
            await asyncio.wait_for(_result(actor.watch.remote()), START)
        except _gone() as error:
            self._misses += 1
            if isinstance(error, TimeoutError) and actor is not None:
                _kill(actor)  # it may wait for resources of its node, and nothing else would end it
            raise SessionLostError(f"the environment service could not be reached: {_in_a_line(error)}") from error
        self._misses, self._connection = 0, _Connection(actor, self.limits)
        return self._connection


class _Connection:
    """The connection of one event loop to one actor.

    Attributes:
        loop: The event loop.
        error: Why the connection is closed; None while it is open.
        has_answered: Whether the actor has ever answered a request.
        actor: The actor's handle.
    """

    def __init__(self, actor: Any, limits: ServiceSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.error: str | None = None
        self.has_answered = False
        self.actor = actor
        self._limits = limits
        self._name = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._unsent: list[Request] = []
        self._sent_at = 0.0
        self._is_scheduled = False
        self._calls: set[asyncio.Task[None]] = set()

    async def ask(self, verb: str, arguments: tuple[Any, ...], keywords: dict[str, Any], limit: float) -> Any:
        """Call a method of the service, and wait for its result.

        Args:
            verb: Method of the service.
            arguments: Its arguments.
            keywords: Its keyword arguments.
            limit: Seconds within which a live service answers, if only with a time-out error.

        Raises:
            SessionLostError: The service is gone.
            ServiceTimeoutError: The service is alive, but has not answered.
            RagenError: The method raised it.
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
        """Notify the service, and close the connection."""
        is_first = self.error is None
        self.fail("this process has left its environment service.")
        if is_first:
            with suppress(*_gone()):
                await asyncio.wait_for(_result(self.actor.leave.remote(self._name)), self._limits.service_timeout)

    def fail(self, text: str) -> None:
        """Fail all requests, since the service is gone."""
        if self.error is not None:
            return
        self.error = text
        for future in self._pending.values():
            if not future.done():
                future.set_exception(SessionLostError(text))
        for call in self._calls:
            call.cancel()

    def _give_up(self, number: int, verb: str, patience: float) -> None:
        future = self._pending.get(number)
        if future is not None and not future.done():
            text = (
                f"a request to {verb} got no answer in {patience:g} s, not even that it was late, though the "
                "environment service answers others. Look at its node."
            )
            future.set_exception(ServiceTimeoutError(text))

    def _schedule(self) -> None:
        """Schedule sending the unsent requests, at least :data:`PACE` seconds after the last ones."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_later(max(0.0, self._sent_at + PACE - self.loop.time()), self._send)

    def _send(self) -> None:
        self._is_scheduled, self._sent_at = False, self.loop.time()
        if self.error is None:
            requests, self._unsent = self._unsent, []
            call = self.loop.create_task(self._exchange(requests))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _exchange(self, requests: list[Request]) -> None:
        """Send requests, distribute the returned answers, and wait for others with the next call."""
        try:
            payload, poll = pickle.dumps(requests, pickle.HIGHEST_PROTOCOL), min(POLL, self._limits.service_timeout)
            call = self.actor.exchange.remote(self._name, payload, poll)
            packed = await asyncio.wait_for(_result(call), poll + self._limits.service_timeout)
            answers: list[Answer] = pickle.loads(packed)
        except TimeoutError:
            _kill(self.actor)
            self.fail(
                f"the environment service answered nothing for {self._limits.service_timeout:g} s "
                "(agent_loop.service_timeout) and was ended; another takes its place."
            )
            return
        except Exception as error:
            self.fail(f"the environment service is gone: {_in_a_line(error)}")
            return
        self.has_answered = self.has_answered or bool(answers)
        for number, is_result, value in answers:
            future = self._pending.get(number)
            if future is None or future.done():
                continue
            if is_result:
                future.set_result(value)
            else:
                future.set_exception(value)
        if len(self._calls) == 1:  # this is the last one in progress
            self._schedule()


def find_service(config: Mapping[str, Any], limits: ServiceSettings, node: str | None = None, misses: int = 0) -> Any:
    """The handle of a service's actor, which is created if needed.

    Args:
        config: RAGEN's whole configuration as plain dicts.
        limits: The limits of services.
        node: Ray's id of the actor's node; by default, this process's node.
        misses: Number of consecutive look-ups without an answering service. From the second on, other nodes are tried
            too, in turn.
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
    """The handle of a node's service, which is created if needed.

    Args:
        config: RAGEN's whole configuration as plain dicts.
        node: Ray's id of the node; by default, this process's node.
        cpus: Processors that the actor claims.
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
            max_restarts=0,  # the next look-up creates another one
        )
        .remote(config)
    )


def actor_name(config: Mapping[str, Any], node: str) -> str:
    """The actor's name: one for each node and configuration."""
    told = json.dumps(config, sort_keys=True, default=str)
    return f"ragen_environments_{hashlib.sha256(told.encode()).hexdigest()[:8]}_{node}"


def namespace() -> str:
    """The Ray namespace of services: one per job, so that jobs do not find each other's services."""
    import ray

    return f"ragen_{ray.get_runtime_context().get_job_id()}"


def _kill(actor: Any) -> None:
    """End an actor if it exists."""
    import ray

    with suppress(Exception):
        ray.kill(actor)


def _gone() -> tuple[type[BaseException], ...]:
    """The exceptions for an actor that is gone, cannot start, or does not answer."""
    from ray.exceptions import ActorUnschedulableError, RayActorError, RaySystemError

    return (TimeoutError, SessionLostError, RayActorError, ActorUnschedulableError, RaySystemError)


def _in_a_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def _result(reference: Any) -> Coroutine[Any, Any, Any]:
    """The value of a Ray reference, as a coroutine."""

    async def awaited() -> Any:
        return await reference

    return awaited()
