"""The queue of requests for one lane, the thread that passes them to the engine, and their time-outs.

The cost of a batch, above all waking up its worker, is paid once: a batch is sent when no more requests arrive
(:data:`GATHER`), and requests that arrive while the lane is busy form the next one.

A request has a single deadline from its arrival. When that has passed, the error states where the time went: *in the
queue* (the request is withdrawn, and had no effect) or *at work* (the lane had begun the request's batch; its outcome
is unknown).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from ragen.agent_loop.service_stats import ServiceStats
from ragen.errors import ServiceTimeoutError
from ragen.parallel.env_set import EnvSet
from ragen.parallel.environments import EnvFailed
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import Observation, Turn, failed_turn
from ragen.parallel.failures import OnFailure
from ragen.parallel.settings import Settings

GATHER = 0.001  # seconds to wait for further requests; repeated while some arrive
MOST_GATHERS = 8  # per batch
RESETS = 32  # resets per call, or as many as turns, plus the rest of their groups, so that turns do not wait long


class _Job:
    """A pending request."""

    __slots__ = ("asked", "due", "future", "is_kept", "item", "started", "verb")

    def __init__(self, verb: str, item: Any, future: asyncio.Future[Any], limit: float) -> None:
        self.verb, self.item, self.future = verb, item, future
        self.asked = time.monotonic()
        self.due = self.asked + limit
        self.started: float | None = None
        self.is_kept = verb == "close"  # carried out even if its caller has given up


class ServedEnvs(EnvSet):
    """The environments of a service, opened and closed one by one; different ones may be used by several threads.

    Values are what the engine returns, failures among them, in the order of what was asked.
    """

    holder = "environment service"

    def __init__(self, settings: Settings, on_failure: OnFailure) -> None:
        """Begin empty; environments are put into lanes one by one."""
        self._hold([], replace(settings, use_lanes=False), on_failure=on_failure)
        self._engine.stats_book.keeps_each = True
        self.raises = self._raises

    def open(self, asked: Sequence[tuple[EnvSpec, int, str]], lane: int | None) -> list[Any]:
        """Add environments, given with seed and mode, to a lane (None: the main process), and reset them."""
        for spec, _, _ in asked:
            self._engine.add(spec, lane)
        found: dict[int, Any] = {}
        for mode in {mode for _, _, mode in asked}:
            seeds = {spec.env_id: seed for spec, seed, its_mode in asked if its_mode == mode}
            found |= self._engine.reset(seeds, {"mode": mode})
        return [found[spec.env_id] for spec, _, _ in asked]

    def play(self, items: Sequence[tuple[int, Turn]]) -> list[Any]:
        """Play turns of environments, given by number."""
        found = self._engine.play(dict(items))
        self._engine.readmit(number for number, value in found.items() if not isinstance(value, EnvFailed))
        return [found[number] for number, _ in items]

    def last_shown(self, number: int) -> Observation:
        """The last observation of an environment."""
        return self._engine.records[number].observation

    def remove(self, numbers: Sequence[int]) -> list[float]:
        """Close environments; returns the seconds that were spent inside each."""
        self._engine.remove(numbers)
        return self._engine.stats_book.take_each(numbers)


class LaneQueue:
    """Requests for one lane, or for the service's own process; used in one event loop.

    Attributes:
        name: The lane's name, or ``"home"``.
        counts: Statistics of this queue.
    """

    def __init__(self, envs: ServedEnvs, lane: int | None) -> None:
        """Begin empty.

        Args:
            envs: The environments of all queues.
            lane: Index of the lane; None for the service's own process.
        """
        self._envs = envs
        self._lane = lane
        self.counts = ServiceStats()
        self.name = "main" if lane is None else f"worker {lane}"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"ragen {self.name}")
        self._waiting: list[_Job] = []
        self._at_work: list[_Job] = []
        self._server: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None  # one timer, for the earliest deadline

    def __len__(self) -> int:
        """The number of waiting requests."""
        return len(self._waiting)

    async def ask(self, verb: str, item: Any, limit: float) -> Any:
        """Add a request to the next batch, and wait for its result.

        Args:
            verb: ``"open"``, ``"play"`` or ``"close"``.
            item: The argument of the verb.
            limit: Deadline in seconds.

        Raises:
            ServiceTimeoutError: There was no result by then.
        """
        job = self.post(verb, item, limit)
        self._watch_until(job.due)
        return await job.future

    def post(self, verb: str, item: Any, limit: float = math.inf) -> _Job:
        """Add a request to the next batch."""
        loop = asyncio.get_running_loop()
        job = _Job(verb, item, loop.create_future(), limit)
        self._waiting.append(job)
        if self._server is None or self._server.done():
            self._server = loop.create_task(self._serve())
        return job

    async def shut_down(self, patience: float) -> None:
        """End the thread after its current work, waiting at most ``patience`` seconds."""
        for job in self._waiting:
            job.future.cancel()
        self._waiting.clear()
        if self._watch is not None:
            self._watch.cancel()
        ended = asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        await asyncio.wait([ended], timeout=patience)

    def _watch_until(self, due: float) -> None:
        """Schedule a check for overdue requests at this time of the monotonic clock, or earlier."""
        loop = asyncio.get_running_loop()
        if self._watch is not None:
            if self._watch.when() <= due:
                return
            self._watch.cancel()
        self._watch = loop.call_at(due, self._look)

    def _look(self) -> None:
        """Give up overdue requests."""
        self._watch = None
        now = time.monotonic()
        asked = [job for job in (*self._waiting, *self._at_work) if not job.future.done()]
        for job in asked:
            if job.due <= now:
                self._give_up(job, now)
        soonest = min((job.due for job in asked if job.due > now), default=math.inf)
        if soonest < math.inf:
            self._watch_until(soonest)

    def _give_up(self, job: _Job, now: float) -> None:
        at_work = len(self._at_work)
        if job.started is None:
            self.counts.late_in_queue += 1
            if not job.is_kept:
                self._waiting.remove(job)
            text = (
                f"waited {now - job.asked:.1f} s in the queue of {self.name}, which is at {at_work} others and "
                f"has {len(self._waiting)} waiting; the worker never started it and nothing has happened. Add workers "
                "(es_manager.max_workers), or increase agent_loop.queue_timeout"
            )
        else:
            self.counts.late_at_work += 1
            text = (
                f"waited {job.started - job.asked:.1f} s in the queue of {self.name} and was then at work for "
                f"{now - job.started:.1f} s, with {at_work - 1} others. Look for an environment that hangs, or "
                "raise es_manager.step_timeout or reset_timeout"
            )
        job.future.set_exception(ServiceTimeoutError(f"a request to {job.verb} {text}."))

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await self._gather()
            batch = self._take()
            started = time.monotonic()
            for job in batch:
                job.started = started
                self.counts.queued.add(started - job.asked)
            self._at_work = batch
            asked = [(job.verb, job.item) for job in batch]
            try:
                answers = await loop.run_in_executor(self._thread, self._work, asked)
            except RuntimeError:  # shut_down has ended the thread: this batch had no effect
                for job in batch:
                    job.future.cancel()
                return
            self._at_work = []
            self.counts.worked.add(time.monotonic() - started, len(batch))
            _settle(batch, answers)

    async def _gather(self) -> None:
        """Wait while further requests arrive."""
        for _ in range(MOST_GATHERS):
            before = len(self._waiting)
            await asyncio.sleep(GATHER)
            if len(self._waiting) == before:
                return

    def _take(self) -> list[_Job]:
        """The next batch: all waiting requests, but of many resets only the first ones and their groups."""
        batch: list[_Job] = []
        later: list[_Job] = []
        groups: set[Any] = set()
        resets, most = 0, max(RESETS, sum(job.verb == "play" for job in self._waiting))
        for job in self._waiting:
            if job.future.done() and not job.is_kept:
                continue
            if job.verb == "open":
                spec, *what = job.item
                group = (spec.group_id, *what)
                if resets >= most and group not in groups:
                    later.append(job)
                    continue
                groups.add(group)
                resets += 1
            batch.append(job)
        self._waiting = later
        return batch

    def _work(self, batch: list[tuple[str, Any]]) -> list[Any]:
        """In the lane's thread: carry out a batch, one engine call per kind; exceptions are returned as results."""
        answers: list[Any] = [None] * len(batch)
        for verb, work in (("open", self._open), ("play", self._play), ("close", self._close)):
            places = [place for place, (asked, _) in enumerate(batch) if asked == verb]
            if places:
                for place, answer in zip(places, _caught(work, [batch[place][1] for place in places]), strict=True):
                    answers[place] = answer
        return answers

    def _close(self, numbers: list[int]) -> list[float]:
        """Close environments; returns the seconds that were spent inside each."""
        seconds = self._envs.remove(numbers)
        self.counts.inside_s += sum(seconds)
        return seconds

    def _open(self, asked: list[tuple[EnvSpec, int, str]]) -> list[Any]:
        """The observations after resets; for a failed environment "", or its error if it cannot be built."""
        values = self._envs.open(asked, self._lane)
        return [
            self._answer(value, value.error if value.phase == "build" else "")
            if isinstance(value, EnvFailed)
            else value
            for value in values
        ]

    def _play(self, items: list[tuple[int, Turn]]) -> list[Any]:
        self.counts.turns += len(items)
        self.counts.batches += 1
        self.counts.largest = max(self.counts.largest, len(items))
        return [
            self._answer(value, failed_turn(value.text, self._envs.last_shown(number)))
            if isinstance(value, EnvFailed)
            else value
            for (number, _), value in zip(items, self._envs.play(items), strict=True)
        ]

    def _answer(self, failed: EnvFailed, otherwise: Any) -> Any:
        self.counts.failed += 1
        return failed.error if self._envs.raises else otherwise


def _caught(work: Callable[[list[Any]], list[Any]], items: list[Any]) -> list[Any]:
    """The results of a batch; an exception is the result of every item."""
    try:
        return work(items)
    except Exception as error:
        return [error] * len(items)


def _settle(batch: Sequence[_Job], answers: Sequence[Any]) -> None:
    """Set the result of each job, unless its caller has given up."""
    for job, answer in zip(batch, answers, strict=True):
        if job.future.done():
            continue
        if isinstance(answer, BaseException):
            job.future.set_exception(answer)
        else:
            job.future.set_result(answer)
