"""Workers: one long-lived process at a time each, the arithmetic of their deadlines, and exchanges with several.

        main process                                              process of the worker
    +--------------------+     request: one for each turn      +--------------------+
    | engine (records,   | ----------------------------------> | Worker: an EnvHost |
    |   journals)        |                                     |   of each engine   |
    |   |                | <---------------------------------- |                    |
    |   v                |     reply: the outcomes, in order   |                    |
    | Exchange           |                                     |                    |
    |   |                |                                     |                    |
    |   v                |  < - - - - position: request, - - - |                    |
    | Worker -- handle ----+           item, since when          +--------------------+
    +--------------------+

The worker stays, processes come and go: each is reached through a :class:`~envlanes.workers.handle.WorkerHandle`, which
the worker has as long as there is a process. ``generation`` counts them, so that an engine knows whether environments
that it has loaded there still are.

Requests are sent, and replies come, in an :class:`Exchange`, without a thread. Its steps, and what may go wrong:

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
import itertools
import logging
import selectors
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from selectors import EVENT_READ, EVENT_WRITE
from typing import NamedTuple

from envlanes.episode.clock import Spent
from envlanes.episode.outcome import Batch, Outcome
from envlanes.episode.pickled import CannotTravel
from envlanes.errors import LaneStartError
from envlanes.interrupts import interrupts_held, interrupts_let_through
from envlanes.workers import codec
from envlanes.workers.handle import Ending, Position, WorkerGone, WorkerHandle, WorkerKind
from envlanes.workers.orders import Order

_FROM_OUTSIDE = (None, -signal.SIGTERM, -getattr(signal, "SIGKILL", signal.SIGTERM))  # exit statuses


class Cause(Enum):
    """Causes of a worker's loss."""

    DIED = "died"
    TIMEOUT = "timeout"  # an item was overdue, and it was killed for it
    START = "start"  # it never came up
    REPLACED = "replaced"  # another engine's failure has replaced it meanwhile


@dataclass(frozen=True)
class WorkerFailure:
    """A worker's process is gone, and with it the replies that were due.

    Attributes:
        cause: The cause of the worker's loss.
        worker: Name of the worker.
        ending: The worker's end.
        index: Position in the batch of the item it was at; the batch's length if it was through; None if at none.
        seconds: The deadline, where one was missed.
        stacks: Stacks of the worker's threads, if available.
    """

    cause: Cause
    worker: str
    ending: Ending
    index: int | None = None
    seconds: float = 0.0
    stacks: str = ""

    @property
    def may_come_from_outside(self) -> bool:
        """Whether another process may have killed the worker or its supervisor: no deadline was missed."""
        return not self.seconds and self.ending.status in _FROM_OUTSIDE

    def describe(self) -> str:
        """The failure in words."""
        is_known = self.cause in (Cause.TIMEOUT, Cause.DIED) and self.ending.where
        return f"{self.worker}{f' ({self.ending.where})' if is_known else ''} {self.what}"

    @property
    def what(self) -> str:
        """The failure in words, without the worker's name."""
        if self.cause is Cause.TIMEOUT:
            return f"missed a deadline of {self.seconds:g} s and was killed"
        if self.cause is Cause.START and self.seconds:
            return f"did not start within {self.seconds:g} s and was killed"
        if self.cause is Cause.START:
            return f"did not start: its process {self.ending.describe()}"
        if self.cause is Cause.REPLACED:
            return "was restarted for another engine"
        return self.ending.describe()


_numbers = itertools.count(1)  # of workers and requests alike: none is ever used twice

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A request to a worker.

    Attributes:
        engine: Number of the engine whose environments are meant.
        order: The batch.
        timeout: Seconds each item may take, one that loads classes aside.
        startup_timeout: Seconds a worker may take to come up, and to load the classes of a tag.
        generation: The process that is meant; another one has other environments. None: the present or a new one.
    """

    engine: int
    order: Order
    timeout: float
    startup_timeout: float = 60.0
    generation: int | None = None

    def timeout_of(self, index: int) -> float:
        """Seconds that the item may take."""
        return self.startup_timeout if self.order.is_load(index) else self.timeout

    def shortest_timeout(self) -> float:
        """Seconds that the item with the least time may take."""
        return min(self.timeout, self.startup_timeout) if self.order.rebuilds else self.timeout


class Worker:
    """A worker, whose process is started when needed and again after each death.

    Attributes:
        name: Its name, such as ``"worker 0"``.
        order: Workers are locked in this order, by whichever thread.
        lock: Held from before a request until its reply; engines in several threads take turns.
        generation: Counts its processes.
        current: The generation of its present process; -1 while there is none.
        handle: Its process, while there is one.
        descriptor: Descriptor that is readable when the worker may have replied; -1 while there is none.
    """

    def __init__(self, name: str, kind: WorkerKind) -> None:
        self.name = name
        self.order = next(_numbers)
        self.lock = threading.Lock()
        self.generation = 0
        self.current = -1
        self.handle: WorkerHandle | None = None
        self.descriptor = -1
        self._kind = kind
        self._request: Request | None = None  # the last one
        self._number = 0  # its own
        self._batch: Batch | None = None  # its results, once they are here
        self._since = 0.0  # time at which the worker was started, came up, or got its request
        self._heard = 0.0  # time at which bytes last moved since its request: a long transfer is no hang
        self._moved = 0
        self._listens = 0.0  # time at which main began to wait for the reply

    @property
    def pid(self) -> int | None:
        """Process id of the worker on its machine, once it is up."""
        return self.handle.pid if self.handle is not None else None

    @property
    def is_up(self) -> bool:
        """Whether the worker has started."""
        return self.handle is not None and self.handle.is_up

    @property
    def node(self) -> str:
        """Name of the machine that the worker is on; "" for this one."""
        return self.handle.node if self.handle is not None else ""

    def start(self) -> None:
        """Start a worker if there is none, without waiting for it.

        Raises:
            LaneStartError, OSError: It cannot be started.
        """
        if self.handle is None:
            self._since = time.monotonic()
            log.debug("starting %s", self.name)
            self.handle = handle = self._kind.start(self.name)
            self.descriptor = handle.fileno()
            # Only once it has started: a start that fails must leave the number of the process that environments know.
            self.generation += 1
            self.current = self.generation

    def begin(self, request: Request) -> WorkerFailure | None:
        """Start to send a request; a failure if the worker is dead, or not the one that the request is meant for.

        Raises:
            CannotTravel: The request cannot be pickled; nothing was sent.
        """
        if request.generation is not None and request.generation != self.current:
            return WorkerFailure(Cause.REPLACED, self.name, Ending())
        number = next(_numbers)
        message = codec.pack_request(number, request.engine, request.order)
        self._request, self._number, self._batch = request, number, None
        if self.handle is None:
            try:
                self.start()
            except (OSError, LaneStartError) as error:
                return WorkerFailure(Cause.START, self.name, Ending(error=f"could not be started ({error})"))
        else:
            self._since = time.monotonic() if self.handle.is_up else self._since
        assert self.handle is not None
        self._moved, self._heard = self.handle.moved, 0.0
        try:
            self.handle.send(message)
        except WorkerGone:
            failure = self.advance()  # an earlier answer shows how far it came
            return failure if isinstance(failure, WorkerFailure) else self._died()
        return None

    def advance(self) -> Batch | WorkerFailure | None:
        """Send and receive what can be at once.

        Returns:
            The results of the request, None while they are not here, or a failure if the worker is dead.
        """
        assert self.handle is not None
        try:
            was_up = self.handle.is_up
            # Replies to earlier requests, if any are left, come first.
            while self._batch is None and (message := self.handle.receive()) is not None:
                self._batch = codec.unpack_reply(message, self._number)
            if self.handle.is_up != was_up:
                self._since = time.monotonic()
            if self.handle.moved != self._moved:
                self._moved, self._heard = self.handle.moved, time.monotonic()
        except WorkerGone:
            return self._died()
        return self._batch

    def listen(self) -> float:
        """Wait for its reply from now on: one that is done, and still on its way, is not late before.

        Returns:
            When to look for the first time where the worker is, on ``time.monotonic()``.
        """
        assert self._request is not None
        self._listens = time.monotonic()
        # Nothing can be overdue before the shortest time has passed, wherever the worker is meanwhile.
        return self._since + self._request.shortest_timeout()

    def deadline(self) -> float:
        """When, on ``time.monotonic()``, what is being worked on is overdue."""
        assert self.handle is not None
        position = self.handle.position()
        index = self._index(position)
        if self._is_starting(index):
            since = self._since
        elif position is not None and index is not None:  # the worker records each step of an item
            since = max(position.since, self._heard, self._listens if self._is_done(position) else 0.0)
        else:
            since = max(self._since, self._heard)
        return since + self._patience(index)

    def next_look(self) -> float:
        """When to look at the latest where the worker is: what it begins meanwhile may have less time than this."""
        assert self._request is not None
        return min(self.deadline(), time.monotonic() + self._request.shortest_timeout())

    def _is_starting(self, index: int | None) -> bool:
        return index is None and self.handle is not None and not self.handle.is_up

    def _patience(self, index: int | None) -> float:
        """Seconds that the worker has for what it is at."""
        assert self._request is not None
        if self._is_starting(index):
            return self._request.startup_timeout
        return self._request.timeout_of(index or 0)

    def _index(self, position: Position | None) -> int | None:
        """The item of the last request that the worker is at; None where it is at none, or that is not known."""
        if self._batch is not None or self._request is None:
            return None
        if position is None:
            is_known = len(self._request.order) == 1 and self.handle is not None and self.handle.is_up
            return 0 if is_known else None
        return position.item if position.request == self._number else None

    def _is_done(self, position: Position) -> bool:
        """Whether the worker has all items of the request behind it, so that only the reply is missing."""
        assert self._request is not None
        return position.request == self._number and position.item >= len(self._request.order)

    def expire(self) -> WorkerFailure:
        """Kill the worker because its item is overdue, and return which one that was."""
        assert self.handle is not None
        position = self.handle.position()
        # Stacks before the end, since a dead process has none; the position after it, since one that was read before
        # can be overtaken: the worker may finish the item, and begin the next one, in between.
        if self._is_starting(self._index(position)):
            seconds = self._patience(None)
            return WorkerFailure(Cause.START, self.name, self.end(), seconds=seconds)
        stacks = self.handle.stacks()
        ending, index = self._end_and_locate()
        seconds = self._patience(index)
        return WorkerFailure(Cause.TIMEOUT, self.name, ending, index, seconds, stacks)

    def end(self) -> Ending:
        """Kill the worker, if there is one, with what it left behind."""
        return self._end_and_locate()[0] if self.handle is not None else Ending()

    def kill(self) -> None:
        """Kill the process, if there is one, even if it is busy. The thread that waits for it will find it dead."""
        if (handle := self.handle) is not None:
            handle.kill()

    def _died(self) -> WorkerFailure:
        assert self.handle is not None
        was_up = self.handle.is_up
        ending, index = self._end_and_locate()
        if not was_up and index is None:
            return WorkerFailure(Cause.START, self.name, ending)
        return WorkerFailure(Cause.DIED, self.name, ending, index)

    def _end_and_locate(self) -> tuple[Ending, int | None]:
        """End the worker, and return at which item of the last request it was; None if no item had to do with it."""
        assert self.handle is not None
        ending = self.handle.end()
        index = None if ending.is_shared else self._index(ending.position)
        self.handle, self.current = None, -1
        return ending, index

    def forget_in_child(self) -> None:
        """In a fork of the main process: forget the process, which is the parent's."""
        self.lock = threading.Lock()
        self.handle, self.current = None, -1


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
