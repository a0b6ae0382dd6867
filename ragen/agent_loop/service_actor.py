"""The service as a Ray actor: many requests in one call, answers as they come, and an end when nobody is left.

    caller (one in each process that plays)               ServiceActor
    exchange(requests 1-40)   ------------------>          a task for each request
                              <------------------          answers 3, 7, 8: all that are there by then
    exchange(requests 41-44)  ------------------>
                              <------------------          answers 1, 2, 4, 5, ...

A call of :meth:`ServiceActor.exchange` brings requests and waits for answers, to these or to earlier ones. The next
call of the same caller sends the one before home with what there is. So there is a call for each handful of turns, a
slow environment holds up nobody's answers, and at most one call of a caller waits. Callers of the same machine have a
line of their own (:mod:`ragen.agent_loop.line`), on which requests and answers go as they come, without these calls.

Nobody owns the actor: it is detached, so that it outlives whoever asked for it first. It ends by itself when no caller
has been there for ``linger`` seconds. Callers are there as long as their signs of life come. Where this process can see
theirs, it knows at once that it has ended, and is patient while it runs. The environments of one that is gone are
closed.

The class knows of Ray only how to end itself, which it is given, so that it is tested without.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ragen.agent_loop.line import Door, Line
from ragen.agent_loop.service import EnvService
from ragen.agent_loop.service_stats import ServiceStats
from ragen.agent_loop.whose import ProcessId, can_see, is_running, this_process
from ragen.errors import RagenError, SessionLostError

log = logging.getLogger(__name__)

WATCH = 1.0  # seconds between two looks at the callers
POLL = 20.0  # seconds that a call waits for answers
ALIVE = 45.0  # seconds after which a caller that left no sign of life, and whose process cannot be seen, is gone
SILENT = 180.0  # the same, where its process can be seen and runs: it has begun anew under another name, or is stopped
LINGER = 30.0  # seconds without a caller after which the service ends
FIRST = 120.0  # the same, before the first caller has come

Request = tuple[int, str, tuple[Any, ...], dict[str, Any]]  # number, method of the service, its arguments
Answer = tuple[int, bool, Any]  # number, whether it is a result, result or exception


class Sign(NamedTuple):
    """A service's sign of life.

    Attributes:
        process: Where it runs.
        door: Where callers of the same machine may have a line of their own; "" for nowhere.
    """

    process: ProcessId
    door: str = ""


@dataclass
class _Caller:
    """Somebody who plays here."""

    name: str
    process: ProcessId
    heard: float = field(default_factory=time.monotonic)
    outbox: list[Answer] = field(default_factory=list)
    waiting: asyncio.Future[None] | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    line: Line | None = None
    is_answering: bool = False

    def is_there(self, now: float) -> bool:
        if can_see(self.process):
            return now - self.heard < SILENT and is_running(self.process)
        return now - self.heard < ALIVE

    def put(self, answer: Answer) -> None:
        self.outbox.append(answer)
        if self.line is None:
            self.wake()
        elif not self.is_answering:
            self.is_answering = True
            asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        """Send what is there by now."""
        self.is_answering = False
        answers, self.outbox = self.outbox, []
        if self.line is not None:  # else there is nobody who waits for them any more
            self.line.send(_packed(answers))

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    async def collect(self) -> list[Answer]:
        """The answers that are there, or come first; none if the next call is there first, or after a while."""
        self.wake()
        if not self.outbox:
            mine = self.waiting = asyncio.get_running_loop().create_future()
            timer = mine.get_loop().call_later(POLL, self.wake)
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
        """Make the service, and look after the callers from now on.

        Args:
            config: RAGEN's whole configuration as plain dicts.
            end: Ends this process; Ray's actor of this process is ended if left out.
            linger: Seconds without a caller after which the service ends.

        Raises:
            ConfigError: The configuration cannot work.
        """
        self._service = EnvService(config)
        self._process = this_process()
        self._door = Door(self._serve)
        self._callers: dict[str, _Caller] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ending = False
        self._end = end or _end_actor
        self._linger = linger
        self._deserted = time.monotonic() + max(FIRST - linger, 0)  # when the last caller was there
        self._stop = threading.Event()
        threading.Thread(target=self._watch, name="ragen callers", daemon=True).start()

    async def beat(self, name: str, process: ProcessId) -> Sign:
        """Hear a sign of life, and give one.

        Args:
            name: The caller's, which nobody else has.
            process: Where the caller is.

        Raises:
            SessionLostError: The service is about to end.
        """
        self._hear(name, process)
        return Sign(self._process, await self._door.open())

    async def exchange(self, name: str, process: ProcessId, packed: bytes) -> bytes:
        """Take requests, wait for answers.

        Args:
            name: The caller's.
            process: Where the caller is.
            packed: A list of requests, pickled.

        Returns:
            A list of answers, pickled, in the order in which they came.

        Raises:
            SessionLostError: The service is about to end; nothing was begun.
        """
        caller = self._hear(name, process)
        self._begin(caller, packed)
        return _packed(await caller.collect())

    async def leave(self, name: str) -> None:
        """Close what a caller has left open, and forget it; the last one's leaving is the service's end, in a while."""
        if self._callers.get(name) is not None:
            await self._part_with(name, was_lost=False)

    async def stats(self) -> ServiceStats:
        """What this service has done so far."""
        return await self._service.stats()

    async def shut_down(self) -> None:
        """Close everything; the process is left to whoever has made it."""
        self._stop.set()
        self._door.close()
        await self._service.shut_down()

    def _hear(self, name: str, process: ProcessId) -> _Caller:
        if self._is_ending:
            raise SessionLostError("nobody had played here for a while, and this environment service is about to end.")
        self._loop = asyncio.get_running_loop()
        caller = self._callers.get(name)
        if caller is None:
            caller = self._callers[name] = _Caller(name, process)
        caller.heard = self._deserted = time.monotonic()
        return caller

    async def _serve(self, line: Line, name: str) -> None:
        """Take requests from a line until it ends; what becomes of the caller then shows by its signs of life."""
        caller = self._callers.get(name)
        if caller is None or caller.line is not None:
            return
        caller.line = line
        try:
            while True:
                packed = await line.receive()
                caller.heard = time.monotonic()
                self._begin(caller, packed)
        except EOFError:
            caller.line = None

    def _begin(self, caller: _Caller, packed: bytes) -> None:
        requests: list[Request] = pickle.loads(packed)
        loop = asyncio.get_running_loop()
        for request in requests:
            task = loop.create_task(self._answer(caller, request))
            caller.tasks.add(task)
            task.add_done_callback(caller.tasks.discard)

    async def _answer(self, caller: _Caller, request: Request) -> None:
        number, verb, arguments, keywords = request
        if verb == "open":
            keywords = {**keywords, "caller": caller.name}
        try:
            result = await getattr(self._service, verb)(*arguments, **keywords)
        except Exception as error:
            caller.put((number, False, error))
        else:
            caller.put((number, True, result))

    async def _part_with(self, name: str, was_lost: bool = True) -> None:
        caller = self._callers.pop(name, None)
        if caller is None:
            return
        for task in list(caller.tasks):
            task.cancel()
        caller.wake()
        if caller.line is not None:
            caller.line.close()
        closed = self._service.close_all_of(name, was_lost)
        if closed and was_lost:
            log.warning("%d environments of process %d, which is gone, are closed", closed, caller.process.pid)

    def _watch(self) -> None:
        """In a thread: part with callers that are gone, and end where there is nobody left."""
        before = time.monotonic()
        while not self._stop.wait(WATCH):
            now = time.monotonic()
            stood_still = max(now - before - 5 * WATCH, 0.0)  # this process did not run: nobody could be heard
            before = now
            self._deserted += stood_still
            for caller in list(self._callers.values()):
                caller.heard += stood_still
                if not caller.is_there(now):
                    self._run(self._part_with(caller.name))
            if self._callers:
                self._deserted = now
            elif now - self._deserted > self._linger:
                self._finish()

    def _finish(self) -> None:
        log.info("nobody plays here any more; the environment service ends")
        self._stop.set()
        self._is_ending = True
        if self._loop is not None:
            self._run(self._service.shut_down())
        self._end()

    def _run(self, work: Any) -> None:
        """In the thread: have something done by the event loop, and wait for it, but not for ever."""
        assert self._loop is not None
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30.0)
        except Exception as error:
            log.warning("the environment service could not be tidied: %r", error)


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
