"""Requests to workers, and the replies as they come.

No thread is used. The steps, and what can go wrong at each:

1. ``claim`` locks the workers that are to be asked.
2. ``send``: ``Worker.begin`` starts its process if there is none, packs the request and begins to send it. (A request
   that cannot be pickled is found before anything is sent. A dead worker shows as a failed send: see 5.)
3. While workers work, the caller does its own share, and then calls ``listen``.
4. ``replies`` waits for all, or for what is urgent, never longer than to the next deadline. Deadlines are per item
   and start when work on the item starts, which the worker's position shows; so it looks again before an item that
   began meanwhile is due. Each worker is checked when its reply arrives and when it may be overdue, but not when others
   answer: the cost of a reply must not grow with the number of workers.
5. A worker whose connection ends has died: its handle returns how, and at which item.
6. A worker whose item is overdue writes its stacks, is killed, and only then is its position read: it cannot move any
   more. Nothing is left computing, and its late reply died with its connection.
7. A worker that has answered, or has failed, may be asked again while others work: one that has lost its process
   rebuilds its environments meanwhile.
8. Whatever interrupts the wait (Ctrl-C, which is held back everywhere but in the caller's share and in 4), workers with
   an unread reply are ended on the way out: a worker is either idle or gone, so that no later request can meet an older
   reply. Each reply also repeats its request's number.

Several threads may ask at once. A thread waits for another's worker only while it has no worker under way itself, and
locks workers in one order: none waits for a thread that waits for it.
"""

from __future__ import annotations

import contextlib
import heapq
import selectors
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from operator import attrgetter
from selectors import EVENT_READ, EVENT_WRITE
from typing import NamedTuple

from envlanes.episode.clock import Spent
from envlanes.episode.outcome import Batch, Outcome
from envlanes.episode.pickled import CannotTravel
from envlanes.interrupts import interrupts_held, interrupts_let_through
from envlanes.workers.failure import WorkerFailure
from envlanes.workers.worker import Request, Worker


class Answer(NamedTuple):
    """A worker's reply.

    Attributes:
        outcomes: In the order of the request's items.
        spent: The time they took, by tag.
        generation: The worker that sent it.
    """

    outcomes: list[Outcome]
    spent: Mapping[str, Spent]
    generation: int


Reply = Answer | WorkerFailure

_Selector = getattr(
    selectors, "PollSelector", selectors.SelectSelector
)  # poll needs no descriptor of its own, unlike epoll; Windows has select alone
_BOTH = EVENT_READ | EVENT_WRITE
_LONGEST_WAIT = 600.0  # seconds of one wait, which the system counts in milliseconds
_in_order = attrgetter("order")  # every thread locks workers in this order
# Seconds between looks for an interrupt while another thread has the worker. To let one through while the lock is being
# acquired could leave it locked for good: the interrupt may come right after, before anybody knows who has it.
_LOCK_PATIENCE = 0.2


def wait_readable(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Wait at most this many seconds until descriptors are readable; returns the readable ones."""
    with _Selector() as watched:
        for descriptor in descriptors:
            watched.register(descriptor, EVENT_READ)
        if not watched.get_map():  # Windows refuses to wait for none
            return []
        return [key.fd for key, _ in watched.select(max(0.0, seconds))]


def ask(requests: Mapping[Worker, Request]) -> dict[Worker, Reply]:
    """Send each worker its request, and wait for all replies, in the order of the requests."""
    found: dict[Worker, Reply] = {}
    if requests:
        with interrupts_held(), Exchange() as exchange:
            exchange.claim(requests)
            exchange.send(requests)
            exchange.listen()
            while len(found) < len(requests):
                found.update(exchange.replies())
    return {worker: found[worker] for worker in requests}


@contextlib.contextmanager
def locked(workers: Iterable[Worker]) -> Iterator[None]:
    """Lock workers with interrupts held back, except while waiting for another thread's worker."""
    with interrupts_held(), contextlib.ExitStack() as locks:
        for worker in sorted(workers, key=_in_order):
            _lock(worker)
            locks.callback(worker.lock.release)
        yield


def _lock(worker: Worker) -> None:
    while not worker.lock.acquire(timeout=_LOCK_PATIENCE):
        with interrupts_let_through():
            pass


def end_all(workers: Iterable[Worker]) -> None:
    """End workers; if one cannot be ended, its error is raised after all others were ended."""
    with contextlib.ExitStack() as ends:
        for worker in workers:
            ends.callback(worker.end)


class Exchange:
    """Requests that are under way; a context manager that leaves none under way.

    Interrupts must be held back by its user; it lets them through while it waits.

    Attributes:
        has_failed: Whether a failure is here, so that :meth:`replies` returns at once.
        starting_s: Seconds spent waiting while workers were starting.
    """

    def __init__(self) -> None:
        self._under_way: dict[Worker, int] = {}  # with the descriptor that is watched, -1 before that
        self._claimed: set[Worker] = set()  # their locks are held by this thread
        self._watched = _Selector()
        self._looks: list[
            tuple[float, int, Worker]
        ] = []  # a heap of times to look at a worker's position; some have answered
        self._arrived: dict[Worker, Reply] = {}
        self._starting: list[Worker] = []
        self.has_failed = False
        self.starting_s = 0.0

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._under_way:
                end_all(self._under_way)  # interrupted: an unread reply must not meet a later request
        finally:
            for worker in self._claimed:
                worker.lock.release()
            self._watched.close()

    def claim(self, workers: Iterable[Worker]) -> list[Worker]:
        """Lock the workers that are to be asked next; each is released by its reply.

        Returns:
            All of them, after waiting for other threads; or those that are free, if requests are under way.
        """
        may_wait, claimed = not self._under_way, []
        for worker in sorted(workers, key=_in_order):
            if not worker.lock.acquire(blocking=False):
                if not may_wait:
                    continue
                _lock(worker)
            self._claimed.add(worker)
            claimed.append(worker)
        return claimed

    def send(self, requests: Mapping[Worker, Request]) -> None:
        """Begin to send each claimed worker its request."""
        for worker, request in requests.items():
            # Before anything is sent: if this raises, `__exit__` ends the worker, which may have half a request.
            self._under_way[worker] = -1
            try:
                given: Batch | WorkerFailure | None = worker.begin(request)
            except CannotTravel as unfit:
                given = Batch([Outcome(env_id, raised) for env_id, raised in unfit.failed.items()])
            if given is not None:
                self._finish(worker, given)

    def listen(self) -> None:
        """Begin to wait, after :meth:`send` and the caller's own share."""
        self._starting.clear()
        for worker, descriptor in self._under_way.items():
            handle = worker.handle
            assert handle is not None
            if not handle.is_up:
                self._starting.append(worker)
            first_look = worker.listen()
            if descriptor < 0:
                self._under_way[worker] = descriptor = worker.descriptor
                self._watched.register(descriptor, _BOTH if handle.unsent else EVENT_READ, worker)
                heapq.heappush(self._looks, (first_look, worker.order, worker))

    def replies(self, urgent: Set[Worker] = frozenset()) -> dict[Worker, Reply]:
        """Wait for all replies, or until a worker has failed or an urgent one has answered; what is here by then.

        Never waits longer than the deadlines allow.
        """
        while self._under_way and not self.has_failed and urgent.isdisjoint(self._arrived):
            self._wait()
        arrived, self._arrived, self.has_failed = self._arrived, {}, False
        return arrived

    def _finish(self, worker: Worker, given: Batch | WorkerFailure) -> None:
        descriptor = self._under_way.pop(worker)
        if descriptor >= 0:
            self._watched.unregister(descriptor)
        if isinstance(given, WorkerFailure):
            self._arrived[worker], self.has_failed = given, True
        else:
            self._arrived[worker] = Answer(*given, worker.generation)
        self._claimed.remove(worker)
        worker.lock.release()

    def _wait(self) -> None:
        """Wait for the next thing to happen: a reply, an end, or a deadline."""
        start = time.monotonic()
        with interrupts_let_through():  # nothing but the wait: an interrupt leaves workers to `__exit__`
            ready = self._watched.select(max(0.0, min(self._looks[0][0] - start, _LONGEST_WAIT)))
        now = time.monotonic()
        if self._starting:
            self.starting_s += now - start
        for key, _ in ready:
            worker = key.data
            if (given := worker.advance()) is not None:
                self._finish(worker, given)
            elif worker.handle is not None:
                self._watched.modify(key.fd, _BOTH if worker.handle.unsent else EVENT_READ, worker)
        while self._looks and self._looks[0][0] <= now:
            worker = heapq.heappop(self._looks)[2]
            if worker in self._under_way:
                self._look(worker)
        if self._starting:
            self._starting = [worker for worker in self._starting if worker in self._under_way and not worker.is_up]

    def _look(self, worker: Worker) -> None:
        """End a worker if it is overdue, or look again when it may be."""
        if worker.deadline() < time.monotonic():
            self._finish(worker, worker.expire())
        else:
            heapq.heappush(self._looks, (worker.next_look(), worker.order, worker))
