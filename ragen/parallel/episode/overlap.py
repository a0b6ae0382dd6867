"""Environments that wait at the same time: each has its own thread, in which all its operations run.

An environment that waits for a network, a browser or a sandbox leaves the processor to others. If its tag sets
``overlap_waits``, a worker runs the batch's items in their environments' threads at the same time. Each environment
returns what it would return alone, as long as the environments share no mutable state.

The main process sees one position per worker. Here it is that of the environment that has been running longest:
whenever any environment is overdue, that one is.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

Mark = Callable[..., None]


class Job(NamedTuple):
    """One item of work on one environment.

    Attributes:
        place: Its index in the batch.
        env_id: The environment.
        work: The function to run; raises nothing.
    """

    place: int
    env_id: int
    work: Callable[[], Any]


class Done(NamedTuple):
    """The result of a job.

    Attributes:
        value: What ``work`` returned.
        seconds: Its share of the time of the whole batch.
    """

    value: Any
    seconds: float


class Overlap:
    """The threads of a worker's environments; none until the first job."""

    def __init__(self, mark: Mark | None) -> None:
        self._mark = mark
        self._threads: dict[int, SimpleQueue[Callable[[], None] | None]] = {}
        self._here = threading.local()

    def run(self, jobs: Sequence[Job]) -> dict[int, Done]:
        """Run all jobs, each in its environment's thread; returns their results by index."""
        if not jobs:
            return {}
        clock, found, all_done = _Clock(self._mark), list[tuple[int, Any, float]](), threading.Event()

        def do(job: Job) -> None:
            found.append(self._done(job, clock))
            if len(found) == len(jobs):  # the last one alone: each thread that wakes up takes time from all others
                all_done.set()

        begin = time.perf_counter()
        for job in jobs:
            self._queue(job.env_id).put(partial(do, job))
        all_done.wait()
        passed, worked = time.perf_counter() - begin, sum(seconds for _, _, seconds in found)
        scale = min(1.0, passed / worked) if worked else 1.0
        return {index: Done(value, seconds * scale) for index, value, seconds in found}

    def restart_clock(self) -> bool:
        """Restart the deadline of the calling thread's job; returns whether the thread is one of ours."""
        restart = getattr(self._here, "restart", None)
        if restart is not None:
            restart()
        return restart is not None

    def end(self, env_id: int, close: Callable[[], None]) -> None:
        """Close an environment in its thread, and end the thread."""
        queue, closed = self._queue(env_id), threading.Event()
        del self._threads[env_id]

        def finish() -> None:
            try:
                close()
            finally:
                closed.set()

        queue.put(finish)
        queue.put(None)
        closed.wait()

    def _queue(self, env_id: int) -> SimpleQueue[Callable[[], None] | None]:
        if env_id not in self._threads:
            queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
            threading.Thread(target=_serve, args=[queue], name=f"ragen env {env_id}", daemon=True).start()
            self._threads[env_id] = queue
        return self._threads[env_id]

    def _done(self, job: Job, clock: _Clock) -> tuple[int, Any, float]:
        clock.start(job.place)
        self._here.restart = lambda: clock.start(job.place)
        begin = time.perf_counter()
        value: Any = None
        try:
            value = job.work()
        finally:
            self._here.restart = None
            clock.finish(job.place)
        return job.place, value, time.perf_counter() - begin


class _Clock:
    """Tracks which of several jobs has been running longest."""

    def __init__(self, mark: Mark | None) -> None:
        self._mark = mark
        self._lock = threading.Lock()
        self._since: OrderedDict[int, float] = OrderedDict()  # since when, the oldest first
        self._logged: tuple[int, float] | None = None

    def start(self, index: int) -> None:
        with self._lock:
            self._since[index] = time.monotonic()
            self._since.move_to_end(index)
            self._mark_oldest()

    def finish(self, index: int) -> None:
        with self._lock:
            del self._since[index]
            self._mark_oldest()

    def _mark_oldest(self) -> None:
        oldest = next(iter(self._since.items()), None)
        if self._mark is not None and oldest not in (None, self._logged):
            self._logged = oldest
            self._mark(*oldest)


def _serve(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := queue.get()) is not None:
        work()
