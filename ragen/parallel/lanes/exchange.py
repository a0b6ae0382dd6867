"""One exchange with lanes: send a request to each, do the caller's own work, and collect all replies.

No thread is used. The steps, and what can go wrong at each:

0. A worker that ended while it was idle is found before anything is sent, so that the others do not work through a turn
   before its environments are rebuilt.
1. ``Lane.begin`` starts the worker if the lane has none, packs the request and begins to send it. (A request that
   cannot be pickled is found before anything is sent. A dead worker shows as a failed send: see 4.)
2. While lanes work, the caller does its own share (``meanwhile``).
3. ``poll`` waits for replies, never longer than to the next deadline. Deadlines are per item and start when work on the
   item starts, which the worker's position shows; so ``poll`` looks again before an item that began meanwhile is due.
   Each lane is checked when its reply arrives and when it may be overdue, but not when others answer: the cost of a
   reply must not grow with the number of lanes.
4. A lane whose connection ends has died: its handle returns how, and at which item.
5. A lane whose item is overdue writes its stacks, is killed, and only then is its position read: it cannot move any
   more. Nothing is left computing, and its late reply died with its connection.
6. Whatever interrupts the wait (Ctrl-C, which is held back everywhere but in 2 and 3), lanes with an unread reply are
   ended on the way out: a lane is either idle or gone, so that no later request can meet an older reply. Each reply
   also repeats its request's number.

Results are delivered once, as the return value of :func:`exchange`; there are no callbacks.
"""

from __future__ import annotations

import contextlib
import heapq
import selectors
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from selectors import EVENT_READ, EVENT_WRITE
from typing import NamedTuple, TypeVar

from ragen.parallel.episode.clock import Spent
from ragen.parallel.episode.outcome import Batch, Outcome
from ragen.parallel.episode.pickled import CannotTravel
from ragen.parallel.interrupts import interrupts_held, interrupts_let_through
from ragen.parallel.lanes.failure import LaneFailure
from ragen.parallel.lanes.lane import Lane, Request

Share = TypeVar("Share")


class Answer(NamedTuple):
    """A lane's reply.

    Attributes:
        outcomes: In the order of the request's items.
        spent: The time they took, by tag.
        generation: The worker that sent it.
    """

    outcomes: list[Outcome]
    spent: Mapping[str, Spent]
    generation: int


Reply = Answer | LaneFailure

_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # no descriptor of its own, where it can be
_LONGEST_WAIT = 600.0  # seconds of one wait, which the system counts in milliseconds
_LOCK_PATIENCE = 0.2  # seconds between looks for an interrupt while another thread has the lane


def exchange(
    requests: Mapping[Lane, Request], meanwhile: Callable[[], Share]
) -> tuple[Share | None, dict[Lane, Reply], float]:
    """Send each lane its request, call ``meanwhile``, and wait for all replies.

    If a worker has ended since it was last asked, nothing is sent to any lane and ``meanwhile`` is not called.

    Args:
        requests: At most one for each lane.
        meanwhile: This process's own share; its long operations let interrupts through.

    Returns:
        The result of ``meanwhile``, None if it was not called; for each lane its outcomes, in the order of the
        request's items, or its failure (failures alone if nothing was sent); and the seconds spent idle. Never waits
        longer than the deadlines allow.
    """
    if not requests:
        return meanwhile(), {}, 0.0
    with locked(requests):
        begun = _Exchange()
        ended = begun.find_ended(requests)
        return (None, ended, 0.0) if ended else begun.run(requests, meanwhile)


def wait_readable(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Wait at most this many seconds until descriptors are readable; returns the readable ones."""
    with _Selector() as watched:
        for descriptor in descriptors:
            watched.register(descriptor, EVENT_READ)
        if not watched.get_map():  # which Windows does not wait for
            return []
        return [key.fd for key, _ in watched.select(max(0.0, seconds))]


def ask(requests: Mapping[Lane, Request]) -> dict[Lane, Reply]:
    """Send each lane its request, whatever became of the others' workers, and wait for all replies."""
    if not requests:
        return {}
    with locked(requests):
        return _Exchange().run(requests, lambda: None)[1]


@contextlib.contextmanager
def locked(lanes: Iterable[Lane]) -> Iterator[None]:
    """Lock lanes with interrupts held back, except while waiting for another thread's lane."""
    with interrupts_held(), contextlib.ExitStack() as locks:
        for lane in sorted(lanes, key=attrgetter("order")):
            while not lane.lock.acquire(timeout=_LOCK_PATIENCE):
                with interrupts_let_through():
                    pass
            locks.callback(lane.lock.release)
        yield


def end_all(lanes: Iterable[Lane]) -> None:
    """End the workers of lanes; if one cannot be ended, its error is raised after all others were ended."""
    with contextlib.ExitStack() as ends:
        for lane in lanes:
            ends.callback(lane.end)


class _Exchange:
    def __init__(self) -> None:
        self._waiting: dict[Lane, int] = {}  # and the descriptor that is watched, -1 before that
        self._watched = _Selector()
        self._looks: list[tuple[float, int, Lane]] = []  # a heap: when to look where a lane is; some have answered
        self._replies: dict[Lane, Reply] = {}
        self._idle_s = 0.0

    def find_ended(self, lanes: Iterable[Lane]) -> dict[Lane, Reply]:
        """Failures of the lanes whose worker has ended since it was last asked, where that shows already."""
        for lane in lanes:
            if lane.handle is not None:
                self._waiting[lane] = lane.handle.fileno()
                self._watched.register(self._waiting[lane], EVENT_READ, lane)
        ended: dict[Lane, Reply] = {}
        for key, _ in self._watched.select(0.0) if self._waiting else ():  # Windows does not wait for none
            if (failure := key.data.look()) is not None:
                ended[key.data] = failure
        if ended:
            self._watched.close()
        return ended

    def run(
        self, requests: Mapping[Lane, Request], meanwhile: Callable[[], Share]
    ) -> tuple[Share, dict[Lane, Reply], float]:
        try:
            for lane, request in requests.items():
                self._begin(lane, request)
            share = meanwhile()
            for lane in self._waiting:
                self._follow(lane)
                heapq.heappush(self._looks, (lane.listen(), lane.order, lane))
            while self._waiting:
                self._wait()
        finally:
            if self._waiting:
                end_all(self._waiting)  # interrupted: an unread reply must not meet a later request
            self._watched.close()
        return share, {lane: self._replies[lane] for lane in requests}, self._idle_s

    def _begin(self, lane: Lane, request: Request) -> None:
        self._waiting.setdefault(lane, -1)
        try:
            given: Batch | LaneFailure | None = lane.begin(request)
        except CannotTravel as unfit:
            given = Batch([Outcome(env_id, raised) for env_id, raised in unfit.failed.items()])
        if given is not None:
            self._finish(lane, given)

    def _finish(self, lane: Lane, given: Batch | LaneFailure) -> None:
        descriptor = self._waiting.pop(lane)
        if descriptor >= 0:
            self._watched.unregister(descriptor)
        self._replies[lane] = given if isinstance(given, LaneFailure) else Answer(*given, lane.generation)

    def _follow(self, lane: Lane) -> None:
        """Watch the descriptor of the lane's worker for reading, and for writing if needed."""
        assert lane.handle is not None
        events = EVENT_READ | EVENT_WRITE if lane.handle.unsent() else EVENT_READ
        if self._waiting[lane] >= 0:
            self._watched.modify(self._waiting[lane], events, lane)
            return
        self._waiting[lane] = lane.handle.fileno()
        self._watched.register(self._waiting[lane], events, lane)

    def _wait(self) -> None:
        """Wait for the next thing to happen: a reply, an end, or a deadline."""
        start = time.monotonic()
        with interrupts_let_through():
            ready = self._watched.select(max(0.0, min(self._looks[0][0] - start, _LONGEST_WAIT)))
        now = time.monotonic()
        self._idle_s += now - start
        for key, _ in ready:
            lane = key.data
            if (given := lane.advance()) is not None:
                self._finish(lane, given)
            else:
                self._follow(lane)
        while self._looks and self._looks[0][0] <= now:
            lane = heapq.heappop(self._looks)[2]
            if lane in self._waiting:
                self._look(lane)

    def _look(self, lane: Lane) -> None:
        """End a lane's worker if it is overdue, or look again when it may be."""
        if lane.deadline() < time.monotonic():
            self._finish(lane, lane.expire())
        else:
            heapq.heappush(self._looks, (lane.next_look(), lane.order, lane))
