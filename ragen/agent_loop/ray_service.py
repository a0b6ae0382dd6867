"""The environment service behind Ray: an actor on each node, and how processes that play find it and ask it.

    a process that plays                              ServiceActor, one a node
    RemoteService                                       EnvService
      exchange(requests 1-40)   ------------------>       a task for each request
                                <------------------       answers 3, 7, 8: what is there after a moment
      exchange(requests 41-44)  ------------------>
                                <------------------       answers 1, 2, 4, 5, ...

There is nothing between the two but this one call of Ray's. It brings requests and waits for answers, to these or to
earlier ones; the next call of the same process sends the one before home with what there is. So a call carries a
handful of turns, a slow environment holds up no one's answers, and at most one call of a process waits. What is asked
within :data:`PACE` of the last call travels together: a call costs both processes a good part of a millisecond.

The actor is detached: it is made by whichever process asks first, under a name that all on the node work out alike, and
outlives it. A process that plays, or has played, always has a call under way; one that has not called for :data:`ALIVE`
is gone, and its environments are closed. An actor without callers ends after :data:`LINGER`.

A service that is gone, or that leaves a call unanswered for ``agent_loop.service_timeout`` and
is ended for that, is looked up again, which makes another one, empty, on this node or on another; trajectories play
their environments again there (:mod:`ragen.agent_loop.session`).
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

PACE = 0.02  # seconds from one call of a process to the next: what is asked meanwhile travels together
SETTLE = 0.005  # seconds that a first answer waits for others to come along
POLL = 10.0  # seconds that a call waits for answers at most
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
    """A process that plays here."""

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
        if self.outbox:  # no other call has taken it meanwhile
            self.wake()

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    async def collect(self, patience: float) -> list[Answer]:
        """The answers that are there, or come first; none if the next call is there first, or after so many seconds."""
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
    """An :class:`~ragen.agent_loop.service.EnvService`, its callers, and what ends it."""

    def __init__(
        self, config: Mapping[str, Any], end: Callable[[], None] | None = None, linger: float = LINGER
    ) -> None:
        """Make the service.

        Args:
            config: RAGEN's whole configuration as plain dicts.
            end: Ends this process; Ray's actor of this process is ended if left out.
            linger: Seconds without a caller after which the service ends.

        Raises:
            ConfigError: The configuration cannot work.
        """
        self._service = EnvService(config)
        self._callers: dict[str, _Caller] = {}
        self._is_ending = False
        self._end = end or _end_actor
        self._linger = linger
        self._deserted = time.monotonic() + max(FIRST - linger, 0)  # when the last caller was there
        self._watching: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        """Part with callers that are gone, and end where there is none; the first call begins it."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def exchange(self, name: str, packed: bytes, patience: float) -> bytes:
        """Take requests, wait for answers.

        Args:
            name: The caller's, which no other has.
            packed: A list of requests, pickled.
            patience: Seconds to wait at most.

        Returns:
            A list of answers, pickled, in the order in which they came.

        Raises:
            SessionLostError: The service is about to end; nothing was begun.
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
        """Close what a caller has left open, and forget it; the last one's leaving is the service's end, in a while."""
        await self._part_with(name, was_lost=False)

    async def stats(self) -> ServiceStats:
        """What this service has done so far."""
        return await self._service.stats()

    async def shut_down(self) -> None:
        """Close everything; the process is left to its maker."""
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
            caller.tasks.discard(asyncio.current_task())  # type: ignore[arg-type]  # it is one
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
            stood_still = max(now - before - 5 * WATCH, 0.0)  # this process did not run: no caller could be heard
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
    """Answers as bytes; one that cannot travel is replaced by an error that says so."""
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


# In a process that plays


class RemoteService:
    """A node's service, for all who play in this process; see :class:`~ragen.agent_loop.session.Service`."""

    def __init__(self, config: Mapping[str, Any], node: str | None = None) -> None:
        """Know which service is meant; the first request looks it up.

        Args:
            config: RAGEN's whole configuration as plain dicts.
            node: Ray's id of the node whose service is asked first; this process's own if left out.

        Raises:
            ConfigError: A key of ``agent_loop`` has an invalid value.
        """
        self.limits = read(ServiceSettings, config)
        self._config = config
        self._node = node
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None
        self._misses = 0  # look-ups in a row that led to no service that answers

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
        """Leave the service; when all have left, it ends."""
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
        """Look a service up, or make one, and wait until it answers."""
        if self._connection is not None and not self._connection.has_answered:
            self._misses += 1
        actor = None
        try:
            actor = await asyncio.to_thread(find_service, self._config, self.limits, self._node, self._misses)
            await asyncio.wait_for(_result(actor.watch.remote()), START)
        except _gone() as error:
            self._misses += 1
            if isinstance(error, TimeoutError) and actor is not None:
                _kill(actor)  # it may wait for its node to have room, and nothing would end it
            raise SessionLostError(f"the environment service could not be reached: {_in_a_line(error)}") from error
        self._misses, self._connection = 0, _Connection(actor, self.limits)
        return self._connection


class _Connection:
    """What goes to one actor from one event loop, until either is gone.

    Attributes:
        loop: The event loop.
        error: Why nothing can be asked any more; None while it can.
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
            with suppress(*_gone()):
                await asyncio.wait_for(_result(self.actor.leave.remote(self._name)), self._limits.service_timeout)

    def fail(self, text: str) -> None:
        """Have all requests fail: the service is gone."""
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
        """Have what is unsent sent, no sooner than :data:`PACE` after what was sent last."""
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
        """Bring requests, hand out the answers that come back, and wait for others with the next call."""
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
        if len(self._calls) == 1:  # none is under way after this one
            self._schedule()


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
            max_restarts=0,  # a look-up makes another one, if there is still a process that asks
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


def _kill(actor: Any) -> None:
    """End an actor, if it is there."""
    import ray

    with suppress(Exception):
        ray.kill(actor)


def _gone() -> tuple[type[BaseException], ...]:
    """The exceptions that say that an actor is not there, will not be, or does not answer."""
    from ray.exceptions import ActorUnschedulableError, RayActorError, RaySystemError

    return (TimeoutError, SessionLostError, RayActorError, ActorUnschedulableError, RaySystemError)


def _in_a_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def _result(reference: Any) -> Coroutine[Any, Any, Any]:
    """What Ray's reference stands for, as a coroutine."""

    async def awaited() -> Any:
        return await reference

    return awaited()
