"""Lanes: long-lived workers with a seat each, shared by the managers of a process.

        main process                                            worker of a lane
    +--------------------+    request: one per lane and turn    +--------------------+
    | engine (homes,     | -----------------------------------> | Worker: EnvHost    |
    |   journals)        |                                      |   of each manager  |
    |   |                | <----------------------------------- |                    |
    |   v                |    reply: the outcomes, in order     |                    |
    | exchange()         |                                      |                    |
    |   |                | < - - - - shared memory - - - - - -  | Progress           |
    |   v                |   position: request, item, start     +--------------------+
    | Lane, Lane, ...    |                                                ^ fork, kill, reap
    |   |                |         start, end, how it ended     +--------------------+
    |   +- Launcher -----+ <----------------------------------> | Warden             |
    +--------------------+                                      +--------------------+

No thread is used on either side. A walk through one exchange, and what can go wrong at each step:

1. ``Lane.begin`` starts the worker if the lane has none, packs the message and starts to send it. (A message that
   cannot be pickled raises here, before anything is sent. A dead worker shows as a failed send: see 4.)
2. While lanes work, the caller does its own share (``Asker.work``).
3. ``poll`` waits for replies, never longer than to the next deadline; each is handed over as it comes in
   (``Asker.take``), while other lanes still work. Deadlines are per item and start when work on the item starts, which
   the worker's position in shared memory tells; a lane whose message still waits behind others' work is not yet on
   the clock.
4. A lane whose socket ends has died: the warden says how, the position says at which item.
5. A lane whose item is overdue writes its stacks, is killed, and only then is its position read: it cannot move any
   more. Nothing is left computing, and its late reply died with its socket.
6. Whatever interrupts the wait (Ctrl-C, which is held back everywhere but in 2 and 3), lanes with an unread reply are
   killed on the way out: a lane is either idle or gone, so that no later request can meet an older reply. Each reply
   also repeats its request's number.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pickle
import secrets
import select
import signal
import socket
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ragen.errors import LaneStartError
from ragen.parallel import system, warden
from ragen.parallel.host import Outcome, Raised, let_signals_pass
from ragen.parallel.launcher import Ending, Launcher
from ragen.parallel.turn import TurnResult, named
from ragen.parallel.wire import Channel, Frame, pack
from ragen.parallel.worker import STACKS_SIGNAL, Progress

log = logging.getLogger(__name__)

EXIT_TIMEOUT = 2.0  # seconds that workers get to close their environments when the pool closes
_STACKS_TIMEOUT = 0.3
_LOCK_PATIENCE = 0.2  # seconds between looks for an interrupt while another thread has the lane
_numbers = itertools.count(1)  # of lanes and requests alike: none is ever used twice


class Message(NamedTuple):
    """What a lane is asked to do.

    Attributes:
        manager: Number of the engine whose environments are meant.
        verb: A verb of :class:`~ragen.parallel.worker.Worker`.
        items: The batch.
        timeout: Seconds each item may take.
        generation: The worker that is meant; another one has other environments. None: whichever is there.
        startup_timeout: Seconds a worker may take to say hello, from its start on.
    """

    manager: int
    verb: str
    items: Any
    timeout: float
    generation: int | None = None
    startup_timeout: float = 60.0


@dataclass(frozen=True)
class LaneFailure:
    """Why a lane gave no reply.

    Attributes:
        kind: ``"died"``, ``"timeout"``, ``"start"`` (it never said hello), or ``"stale"`` (another manager's failure
            has replaced the worker meanwhile).
        lane: Name of the lane.
        ending: How its worker ended.
        index: Position in the batch of the item it was at; None if it was at none.
        seconds: The deadline, for time-outs.
        stacks: Stacks of the worker's threads, where they could be had.
    """

    kind: str
    lane: str
    ending: Ending
    index: int | None = None
    seconds: float = 0.0
    stacks: str = ""

    @property
    def may_come_from_outside(self) -> bool:
        """Whether someone else may have ended the worker, or the warden: no deadline was missed."""
        return not self.seconds and self.ending.status in (None, -signal.SIGKILL, -signal.SIGTERM)

    def describe(self) -> str:
        """The failure in words."""
        pid = f" (pid {self.ending.pid})" if self.kind in ("timeout", "died") else ""
        return f"{self.lane}{pid} {self.what}"

    @property
    def what(self) -> str:
        """The failure in words, whichever lane's it was."""
        if self.kind == "timeout":
            return f"missed a deadline of {self.seconds:g} s and was killed"
        if self.kind == "start":
            return f"did not start: its worker {self.ending.describe()}"
        if self.kind == "stale":
            return "was restarted for another manager"
        return self.ending.describe()


class Lane:
    """A seat for one worker process, which is started when needed and again after each death.

    Attributes:
        name: Name of the seat, such as ``"lane 0"``.
        order: Lanes are locked in this order, by whichever thread.
        lock: Held for the length of an exchange; managers in several threads take turns.
        generation: Counts the workers that sat here.
        current: The generation while its worker is there, else -1.
        pid: Process id of the worker; None while there is none, or it has not said hello.
    """

    def __init__(self, pool: WorkerPool, name: str) -> None:
        """A seat without a worker yet."""
        self.name = name
        self.order = next(_numbers)
        self.lock = threading.Lock()
        self.generation = 0
        self.current = -1
        self.pid: int | None = None
        self._pool = pool
        self._token: str | None = None
        self._theirs = contextlib.ExitStack()  # what is closed here as soon as the worker has it
        self._number = 0
        self._since = 0.0
        self._timeout = self._startup_timeout = 0.0
        self._heard = 0.0  # when bytes of a long message last moved
        self._moved = 0

    @property
    def has_worker(self) -> bool:
        """Whether a worker was started here and not ended since."""
        return self._token is not None

    def start(self) -> None:
        """Start a worker if there is none, without waiting for it."""
        if self._token is not None:
            return
        self._launcher = self._pool.launcher()
        token = secrets.token_hex(8)
        with self._theirs:
            connection, shared = self._open(token)
            self._token = token
            self.generation += 1
            self.current = self.generation
            self._since = time.monotonic()
            self._launcher.start(token, self.name, [connection, shared, self._stacks])

    def _open(self, token: str) -> tuple[int, int]:
        """Open what the two sides share; the worker's connection and progress."""
        ours, connection = socket.socketpair()
        self._theirs.callback(connection.close)
        ours.setblocking(False)
        self._channel = Channel(ours)
        shared = system.anonymous_file(warden.progress_name(token))
        self._theirs.callback(os.close, shared)
        os.ftruncate(shared, Progress.SIZE)
        self._progress = Progress(shared)
        self._stacks = system.anonymous_file("ragen-stacks")
        return connection.fileno(), shared

    def begin(self, message: Message) -> None:
        """Start to send a request.

        Raises:
            LaneDown: The worker is dead, or not the one that the message is meant for.
            Exception: The message cannot be pickled.
        """
        if message.generation is not None and message.generation != self.current:
            raise LaneDown(LaneFailure("stale", self.name, Ending(self.pid, None)))
        number = next(_numbers)
        parts = pack((number, message.manager, message.verb, message.items))
        try:
            self.start()
        except (OSError, LaneStartError) as error:
            text = f"{type(error).__name__}: {error}"
            raise LaneDown(LaneFailure("start", self.name, Ending(None, None, text))) from None
        self._number, self._timeout, self._heard = number, message.timeout, 0.0
        self._startup_timeout = message.startup_timeout
        self._moved = self._channel.moved
        if self.pid is not None:
            self._since = time.monotonic()
        try:
            self._channel.send(parts)
        except OSError:
            raise LaneDown(self._died()) from None

    def advance(self) -> Frame | None:
        """Send and receive what can be at once.

        Returns:
            The reply, or None while it is not here.

        Raises:
            LaneDown: The worker is dead.
        """
        try:
            self._channel.flush()
            frame = self._channel.receive()
            if self._channel.moved != self._moved:
                self._moved, self._heard = self._channel.moved, time.monotonic()
            if frame is not None and self.pid is None:
                _, self.pid = frame.load()  # the hello
                self._since = time.monotonic()
                frame = self._channel.receive()
            return frame
        except (EOFError, OSError):
            raise LaneDown(self._died()) from None

    def is_reply(self, number: int) -> bool:
        """Whether a reply with this number answers the last request."""
        return number == self._number

    def is_sending(self) -> bool:
        """Whether part of the request is still to be sent."""
        return self._channel.is_sending()

    def deadline(self) -> float:
        """When, on ``time.monotonic()``, the item that is being worked on is overdue."""
        if self.pid is None:
            return self._since + self._startup_timeout
        number, _, since = self._progress.read()
        return max(since if number == self._number else self._since, self._heard) + self._timeout

    def finished(self) -> float:
        """When, on ``time.monotonic()``, the worker ended work on the request that it has just answered."""
        return self._progress.read()[2]

    def expire(self) -> LaneFailure:
        """Kill the worker because its item is overdue, and tell which one that was."""
        if self.pid is None:
            return LaneFailure("start", self.name, self.end(), seconds=self._startup_timeout)
        stacks = self._read_stacks()
        ending, index = self._end_and_locate()
        return LaneFailure("timeout", self.name, ending, index, self._timeout, stacks)

    def end(self) -> Ending:
        """Kill the worker, if there is one, and everything it left behind."""
        return self._end_and_locate()[0] if self._token is not None else Ending(None, None)

    def ask_to_exit(self) -> bool:
        """Ask the worker to close its environments and exit, without waiting; False if there is no one to ask."""
        if self.pid is None or self._channel.is_sending():
            return False
        with contextlib.suppress(OSError):
            return self._channel.send(pack((0, 0, "exit", None)))
        return False

    def fileno(self) -> int:
        """The connection's descriptor, for ``poll``."""
        return self._channel.fileno()

    def forget_in_child(self) -> None:
        """In a fork of the main process: let go of the connection, both its ends if another thread was starting."""
        self.lock = threading.Lock()
        self._theirs.close()
        if self._token is not None:
            self._let_go()

    def _died(self) -> LaneFailure:
        pid = self.pid
        ending, index = self._end_and_locate()
        if pid is None:
            return LaneFailure("start", self.name, ending)
        if ending.pid is None:  # the warden is gone, and all workers with it
            return LaneFailure("died", self.name, replace(ending, pid=pid), None)
        return LaneFailure("died", self.name, ending, index)

    def _end_and_locate(self) -> tuple[Ending, int | None]:
        """End the worker, and only then read at which item of the last request it was."""
        assert self._token is not None
        ending = self._launcher.end(self._token)
        number, index, _ = self._progress.read()
        located = index if number == self._number and self._number else None
        self._let_go()
        return ending, located

    def _read_stacks(self) -> str:
        """Ask for the stacks of all threads; a process that cannot even take a signal gives none."""
        assert self.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, STACKS_SIGNAL)
        deadline, size = time.monotonic() + _STACKS_TIMEOUT, -1
        while time.monotonic() < deadline and (size <= 0 or size != os.fstat(self._stacks).st_size):
            size = os.fstat(self._stacks).st_size
            select.select([], [], [], 0.02)
        return os.pread(self._stacks, 1 << 16, 0).decode(errors="replace")

    def _let_go(self) -> None:
        self._channel.close()
        self._progress.close()
        os.close(self._stacks)
        self._token = self.pid = None
        self.current = -1


class LaneDown(Exception):
    """A lane has no worker any more; carries the :class:`LaneFailure`."""

    def __init__(self, failure: LaneFailure) -> None:
        """Carry this failure."""
        super().__init__(failure)
        self.failure = failure


Reply = list[Outcome] | LaneFailure


class Asker:
    """What the process that asks lanes does besides; this one does nothing."""

    def work(self) -> list[Outcome]:
        """This process's own share, done while the lanes work; what takes long in it lets interrupts through."""
        return []

    def take(self, lane: Lane | None, outcomes: list[Outcome]) -> None:
        """Take in what :meth:`work` returned (the lane is None), and a lane's outcomes or part of them.

        Called as soon as they are here, while that and other lanes still work; must not use any lane.
        """

    def waited(self, seconds: float) -> None:
        """Nothing could be done for so long."""


def exchange(jobs: Mapping[Lane, Message], asker: Asker | None = None) -> dict[Lane, Reply]:
    """Send each lane its message, do something else meanwhile, and wait for all replies.

    Args:
        jobs: At most one message for each lane.
        asker: What this process does meanwhile, and with the replies as they come in.

    Returns:
        For each lane its outcomes, in the order of the message's items, or why there are none. Never waits longer
        than the deadlines allow.
    """
    with _locked(jobs):
        return _Exchange(jobs, asker or Asker()).run()


@contextlib.contextmanager
def _locked(lanes: Iterable[Lane]) -> Iterator[None]:
    """Hold lanes, and interrupts back; those get through while another thread has a lane."""
    with system.interrupts_held(), contextlib.ExitStack() as locks:
        for lane in sorted(lanes, key=lambda lane: lane.order):
            while not lane.lock.acquire(timeout=_LOCK_PATIENCE):
                with system.interrupts_let_through():
                    pass
            locks.callback(lane.lock.release)
        yield


def _end_all(lanes: Iterable[Lane]) -> None:
    """End the workers of lanes; one that cannot be ended is raised about only when all others were."""
    with contextlib.ExitStack() as ends:
        for lane in lanes:
            ends.callback(lane.end)


class _Exchange:
    """One round of messages and replies."""

    def __init__(self, jobs: Mapping[Lane, Message], asker: Asker) -> None:
        self._jobs = jobs
        self._asker = asker
        self._waiting: set[Lane] = set()
        self._outcomes: dict[Lane, list[Outcome]] = defaultdict(list)
        self._unread: set[Lane] = set()  # those of whose reply a part could not be unpickled
        self._replies: dict[Lane, Reply] = {}

    def run(self) -> dict[Lane, Reply]:
        try:
            for lane, message in self._jobs.items():
                self._begin(lane, message)
            self._asker.take(None, self._asker.work())
            while self._waiting:
                self._wait()
        finally:
            _end_all(self._waiting)  # interrupted: an unread reply must not meet a later request
        return self._replies

    def _begin(self, lane: Lane, message: Message) -> None:
        self._waiting.add(lane)
        try:
            lane.begin(message)
        except LaneDown as down:
            self._finish(lane, down.failure)

    def _finish(self, lane: Lane, reply: Reply) -> None:
        self._waiting.discard(lane)
        self._replies[lane] = reply

    def _wait(self) -> None:
        """Wait for the next thing to happen: a reply, an end, or a deadline."""
        by_descriptor = {lane.fileno(): lane for lane in self._waiting}
        poll = select.poll()
        for descriptor, lane in by_descriptor.items():
            poll.register(descriptor, select.POLLIN | (select.POLLOUT if lane.is_sending() else 0))
        start = time.monotonic()
        patience = min(lane.deadline() for lane in self._waiting) - start
        with system.interrupts_let_through():
            ready = poll.poll(max(0.0, patience) * 1000 + 1)
        self._asker.waited(time.monotonic() - start)
        for descriptor, _ in ready:
            self._advance(by_descriptor[descriptor])
        now = time.monotonic()
        for lane in list(self._waiting):
            if lane.deadline() < now:
                self._finish(lane, lane.expire())

    def _advance(self, lane: Lane) -> None:
        try:
            while lane in self._waiting and (frame := lane.advance()) is not None:
                self._take(lane, frame)
        except LaneDown as down:
            self._finish(lane, down.failure)

    def _take(self, lane: Lane, frame: Frame) -> None:
        """Take in a reply, or a part of one."""
        try:
            number, rows = frame.load()
        except BaseException as error:  # an outcome that pickles but cannot be unpickled
            let_signals_pass(error)
            self._unread.add(lane)
        else:
            if not lane.is_reply(number):
                return
            if lane not in self._unread:
                for index, row in enumerate(rows):  # in place, which spares the garbage collector much work
                    rows[index] = _loaded(row)
                self._outcomes[lane] += rows
                self._asker.take(lane, rows)
        if frame.more:
            return
        if lane in self._unread:  # find out which one it was
            self._unread.discard(lane)
            self._begin(lane, self._jobs[lane]._replace(verb="again", items=len(self._outcomes[lane])))
        else:
            self._finish(lane, self._outcomes[lane])


def _loaded(row: tuple[Any, ...]) -> Outcome:
    """An outcome from the plain tuple that a worker made of it; see ``worker._flat``."""
    if len(row) == 3:
        fields, seconds, waited = row
        return named(Outcome, (fields[0], named(TurnResult, fields), seconds, waited))
    if len(row) == len(Outcome._fields):
        return Outcome._make(row)
    env_id, pickled = row
    try:
        return pickle.loads(pickled)
    except BaseException as error:
        let_signals_pass(error)
        return Outcome(env_id, Raised.of(error, "receive"), 0.0)


class WorkerPool:
    """The lanes of this process, shared by its managers."""

    def __init__(self, method: str, preload: Sequence[str]) -> None:
        """A pool without lanes; the launcher starts at once, so that it is ready when lanes are needed.

        Args:
            method: ``"forkserver"``, ``"spawn"`` or ``"fork"``.
            preload: Modules that workers will need.
        """
        self._method = method
        self._preload = list(preload)
        self._lanes: list[Lane] = []
        self._extra: set[Lane] = set()
        self._users: set[int] = set()
        self._departed: deque[int] = deque()
        self._lock = threading.RLock()
        self._launcher = self._new_launcher()
        _known.add(self)

    def launcher(self) -> Launcher:
        """What starts workers; a new one if the old one has died."""
        with self._lock:
            if not self._launcher.is_alive():
                self._launcher.close()
                self._launcher = self._new_launcher()
            return self._launcher

    def lanes(self, count: int, without: Collection[Lane] = ()) -> list[Lane]:
        """The first ``count`` lanes but those ``without`` which the caller wants to do, with workers started."""
        self._forget_departed()
        with self._lock:
            while len(self._lanes) < count:
                self._lanes.append(Lane(self, f"lane {len(self._lanes)}"))
            lanes = [lane for lane in self._lanes[:count] if lane not in without]
        with _locked(lanes):
            for lane in lanes:
                with contextlib.suppress(OSError, LaneStartError):  # its first message tries again, and tells
                    lane.start()
        return lanes

    def open_extra(self, name: str) -> Lane:
        """A lane of one's own, beside the shared ones."""
        with self._lock:
            lane = Lane(self, name)
            self._extra.add(lane)
            return lane

    def close_extra(self, lane: Lane) -> None:
        """Kill an extra lane's worker and forget the lane."""
        with _locked([lane]):
            lane.end()
        with self._lock:
            self._extra.discard(lane)

    def join(self, user: int) -> None:
        """Count a manager as a user of this pool; called with the registry of pools locked."""
        self._users.add(user)

    def leave(self, user: int, later: bool = False) -> None:
        """A manager closes: its environments are closed, and with the last manager all workers end.

        Args:
            user: The manager's number.
            later: While other managers remain, close the environments when lanes are asked for next: the caller may
                stand in the middle of an exchange, which holds the lanes.
        """
        with _pools_lock:
            self._users.discard(user)
            last = not self._users
            if last and _pools.get(self._method) is self:
                del _pools[self._method]
        if last:
            self.close()
        else:
            self._departed.append(user)
            if not later:
                self._forget_departed()

    def _forget_departed(self) -> None:
        while True:
            try:
                user = self._departed.popleft()
            except IndexError:  # another thread may have taken the last one
                return
            message = Message(user, "forget", None, EXIT_TIMEOUT)
            present = [lane for lane in self._lanes if lane.has_worker]
            replies = exchange({lane: message._replace(generation=lane.generation) for lane in present})  # starts none
            for reply in replies.values():
                if isinstance(reply, LaneFailure) and reply.kind != "stale":
                    log.warning("%s, closing environments of a manager that is gone.", reply.describe())

    def close(self) -> None:
        """End all workers: those that do not close their environments within ``EXIT_TIMEOUT`` are killed."""
        seats = [*self._lanes, *self._extra]
        with _locked(seats):  # another thread may still be closing the environments of its own manager
            lanes = [lane for lane in seats if lane.has_worker]
            self._await_exit([lane for lane in lanes if lane.ask_to_exit()])
            try:
                _end_all(lanes)
            finally:
                self._launcher.close()

    def forget_in_child(self) -> None:
        """In a fork of the main process: the workers are the parent's."""
        self._lock = threading.RLock()
        for lane in (*self._lanes, *self._extra):
            lane.forget_in_child()
        self._launcher.forget_in_child()

    def _new_launcher(self) -> Launcher:
        return Launcher(self._method, self._preload)

    def _await_exit(self, lanes: list[Lane]) -> None:
        poll, deadline = select.poll(), time.monotonic() + EXIT_TIMEOUT
        left = {lane.fileno() for lane in lanes}
        for descriptor in left:
            poll.register(descriptor, select.POLLHUP)
        while left and (patience := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(patience * 1000):
                poll.unregister(descriptor)
                left.discard(descriptor)


_known: weakref.WeakSet[WorkerPool] = weakref.WeakSet()  # all pools of this process, shared or not
_pools: dict[str, WorkerPool] = {}
_pools_lock = threading.RLock()  # the garbage collector may close a manager while another is being made


def shared_pool(user: int, method: str, preload: Sequence[str]) -> WorkerPool:
    """The process's pool of this start method, made now if there is none; ``user`` has to leave it in the end."""
    with _pools_lock:
        pool = _pools.get(method) or WorkerPool(method, preload)
        pool.join(user)
        _pools[method] = pool
        return pool


def _forget_in_child() -> None:
    global _pools_lock
    _pools_lock = threading.RLock()
    for pool in _known:
        pool.forget_in_child()
    _known.clear()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_in_child)
