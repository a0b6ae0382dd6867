"""A worker: one long-lived process at a time, and the arithmetic of its deadlines.

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
the worker has as long as there is a process. ``generation`` counts them, so that an engine knows
whether environments that it has loaded there still are.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from dataclasses import dataclass

from envlanes.episode.outcome import Batch
from envlanes.errors import LaneStartError
from envlanes.workers import codec
from envlanes.workers.failure import Cause, WorkerFailure
from envlanes.workers.handle import Ending, Position, WorkerGone, WorkerHandle, WorkerKind
from envlanes.workers.orders import Order

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
        assert self._request is not None and self.handle is not None
        self._listens = time.monotonic()
        if self._request.order.rebuilds or not self.handle.is_up:
            return self.next_look()
        # Nothing can be overdue before the first item's time has passed, wherever the worker is meanwhile.
        return self._since + self._request.timeout

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
        """In a fork of the main process: let go of the worker, which is the parent's."""
        self.lock = threading.Lock()
        handle, self.handle, self.current = self.handle, None, -1
        if handle is not None:
            handle.forget_in_child()
