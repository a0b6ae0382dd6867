"""One call of the engine, as a value: requests go down once, and results come back once.

         requests, by env_id                                         results, by env_id
               |                                                              ^
               v                                                              |
    +-----------------------------------  loop  ------------------------------------------+
    |  1. an environment that has failed has its result; suspects wait until the others   |
    |     of their worker have been played, and are then played alone                     |
    |  2. each home that is not at work gets one order: if an environment is not at the   |
    |     end of its journal, to rebuild such environments; else the requests             |
    |  3. the main process plays while workers do, unless these still rebuild: they       |
    |     would then wait for it with nothing to do                                       |
    |  4. replies are awaited: all of them, or until a home has more to do, since it has  |
    |     lost its worker or has rebuilt its environments; the others work on meanwhile   |
    |  5. results are kept; each failure is decided on (:mod:`envlanes.recovery`)         |
    +-------------------------------------------------------------------------------------+

The engine writes journals when the round has come back: whatever interrupts it has played nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import filterfalse
from math import inf
from operator import attrgetter
from time import perf_counter
from typing import Any

from envlanes.auto import LOOK_S
from envlanes.environments import IN_MAIN, EnvRecord
from envlanes.episode.clock import Spent
from envlanes.episode.journal import Divergence, EpisodeJournal
from envlanes.episode.outcome import Raised, TimedOut
from envlanes.failures import Failures
from envlanes.interrupts import interrupts_come_too_late
from envlanes.stats import Costs
from envlanes.workers.orders import Call, Fork, Order, Play, Rebuild, RebuildHere, Reset
from envlanes.workers.worker import Answer, Cause, Exchange, Reply, Request, Worker, WorkerFailure

Assigned = tuple[Order, list[EnvRecord], int | None]
"""An order, its environments, and the worker's process that knows them; None where it is to learn of them all."""

_FAILED = frozenset({Raised, TimedOut, Divergence})
_env_id = attrgetter("env_id")


class Round:
    """One call: every environment gets a result, whatever it takes.

    Attributes:
        kind, items, losses, suspects: See :class:`.Requested`.
        values: Results so far, by env_id.
        saved: Snapshots that were taken after the request, by env_id.
        may_move: Whether what main has yet to play may move to workers during the call; not while those work.
    """

    def __init__(self, failures: Failures, kind: type[Order], items: Mapping[int, Any]) -> None:
        """Request something of the environments of an engine, whose failures are handled there."""
        self._failures, self._placement, self._stats = failures, failures.placement, failures.stats
        self._environments, self._records = failures.environments, failures.environments.records
        self.kind, self.items, settings = kind, items, self._environments.settings
        self._timeout = settings.step_timeout if kind in (Play, Call) else settings.reset_timeout
        self._startup_timeout, self._reset_timeout = settings.startup_timeout, settings.reset_timeout
        self.losses, self.suspects = Counter[Worker](), set[int]()
        self.values: dict[int, Any] = {}
        self.saved: dict[int, bytes] = {}
        self.may_move = False
        self._sent: dict[Worker, Assigned] = {}  # to workers that are at work
        self._rebuilt: set[int] = set()  # ready, even if a reset needs less than their whole journals
        self._parts = 0  # that main has played, if the rest may move
        self._spent: dict[str, Spent] = {}  # in these parts, by tag
        self._left: dict[int, tuple[Worker | None, int]] = {}  # replicas that environments have moved from

    def run(self) -> dict[int, Any]:
        """Play until every environment has its result; by env_id, in the order of the request."""
        replies, done_here = dict[Worker, Reply](), None
        lock, items, values = self._environments.lock, self.items, self.values
        with Exchange() as exchange:
            while True:
                if self._sent:
                    self._lock_records(exchange, replies)
                else:
                    lock.acquire()
                try:
                    if done_here is not None:
                        self._take(None, *done_here)
                    for worker, reply in replies.items():
                        order, *_ = self._sent.pop(worker)
                        if isinstance(reply, Answer):
                            self._take(worker, order, reply)
                        else:
                            self._failures.handle_worker(worker, reply, order, self)
                    todo = list(filterfalse(values.__contains__, items))
                    if not todo:
                        break
                    if self._environments.is_closed:  # another thread may have abandoned it
                        self._environments.check_open()
                    if self._parts > 1 and not self._sent:
                        self._move_rest(todo)
                    orders = self._orders(todo)
                finally:
                    lock.release()
                done_here, replies = self._exchange(exchange, orders)
        if self._left or exchange.starting_s:
            with lock:
                self._stats.start_s += exchange.starting_s
                self._placement.close_replicas(self._left)
        interrupts_come_too_late()  # from here on the engine commits
        return dict(zip(items, map(values.__getitem__, items), strict=True))

    def _lock_records(self, exchange: Exchange, replies: dict[Worker, Reply]) -> None:
        """Lock the records to handle replies, after awaiting more if these take a home that is at work.

        While a worker is at work, another thread that has the records is not waited for: it may wait for that worker,
        which this one gives free only with its reply. The next reply is awaited first. (A removal and a call with a
        killed worker did wait for each other.)
        """
        while True:
            is_quiet = len(replies) == len(self._sent)
            may_handle = is_quiet or all(map(self._is_settled_alone, replies.items()))
            if may_handle and self._environments.lock.acquire(blocking=is_quiet):
                return
            replies.update(exchange.replies())

    def _is_settled_alone(self, found: tuple[Worker, Reply]) -> bool:
        """Whether a reply is handled without any other home: one that failed may move, and others with it."""
        worker, reply = found
        if isinstance(reply, WorkerFailure):
            return reply.cause is not Cause.START
        order, *_ = self._sent[worker]
        return not any(_is_failure(order, outcome.value) for outcome in reply.outcomes)

    def _move_rest(self, todo: list[int]) -> None:
        """Move what main has yet to play, if it belongs in workers."""
        left = [env_id for env_id in todo if env_id not in self.suspects]
        spent = {tag: Costs(each) for tag, each in self._spent.items()}
        reseeded = [env_id for env_id in left if getattr(self.items[env_id], "seed", None) is not None]
        so_far = {} if self.kind is Reset else self._stats.episode
        self._placement.reconsider(left, spent, so_far, reseeded)

    # Orders

    def _orders(self, todo: list[int]) -> dict[Worker | None, Assigned]:
        """One order for each home that is not at work, with its environments; those that failed get their result."""
        ready: dict[Worker | None, list[EnvRecord]] = {}
        stale: dict[Worker | None, list[EnvRecord]] = {}
        at_work = set[int]()
        for _, records, _ in self._sent.values():
            at_work.update(map(_env_id, records))
        seen: dict[Worker | None, int] = {None: IN_MAIN}  # workers: another thread may replace them from here on
        for env_id in sorted(todo, key=self.suspects.__contains__):  # suspects last, each alone
            record = self._records[env_id]
            if env_id in at_work:  # it stays there: another thread may have moved its record meanwhile
                continue
            if record.failed is not None:
                self.values[env_id] = record.failed
                self._leave(record)
                continue
            worker = record.worker
            must_wait = worker is not None and env_id in self.suspects and (worker in ready or worker in stale)
            if worker not in self._sent and not must_wait:
                is_loaded = record.generation == seen.setdefault(worker, IN_MAIN if worker is None else worker.current)
                is_there = record.in_sync or env_id in self._rebuilt or self._needs(record).is_empty
                group = ready if is_loaded and is_there else stale
                group.setdefault(worker, []).append(record)
        orders: dict[Worker | None, Assigned] = {}
        for worker, records in stale.items():
            if (rebuild := self._rebuild(worker, seen[worker], records)) is not None:
                knows_some = any(record.generation == seen[worker] for record in records)
                orders[worker] = rebuild, records, seen[worker] if knows_some else None
        for worker, records in ready.items():
            if worker not in orders:  # else they play with those that are rebuilt first
                items = list(map(self.items.__getitem__, map(_env_id, records)))
                orders[worker] = self.kind(items), records, seen[worker]
        return orders

    def timeout_of(self, order: Order) -> float:
        """See :meth:`.Requested.timeout_of`."""
        return self._reset_timeout if order.rebuilds else self._timeout

    def _needs(self, record: EnvRecord) -> EpisodeJournal:
        """The journal that a just built environment has to have behind it before the request.

        A reset with a seed needs nothing of the last episode; one without goes on with what that has left.
        """
        if self.kind is Reset and self.items[record.env_id].seed is not None:
            return EpisodeJournal(settings=record.journal.lasting())
        return record.journal

    def _rebuild(self, worker: Worker | None, generation: int, records: list[EnvRecord]) -> Rebuild | None:
        """The order to bring environments to the end of their journals; those that cannot be replayed have failed."""
        specs, journals = [], []
        for record in sorted(records, key=lambda record: record.spec.tag):
            journal = self._needs(record)
            if record.tries.failures and record.spec.is_replayable:  # once more, and from the beginning
                journal = journal.without_snapshot()
            else:
                journal = journal.from_snapshot()
            if journal.start is not None and not (record.spec.is_replayable or journal.ends_with_snapshot):
                self._failures.handle_lost(record, self)
                continue
            if record.generation != generation:
                specs.append(record.spec)
            if not journal.is_empty:
                journals.append((record.env_id, journal))
        if not specs and not journals:
            return None
        return RebuildHere(specs, journals) if worker is None else Rebuild.of(specs, journals)

    def _exchange(
        self, exchange: Exchange, orders: dict[Worker | None, Assigned]
    ) -> tuple[tuple[Order, Answer] | None, dict[Worker, Reply]]:
        """Let homes work, until all have or one has more to do; what the main process has done, and the replies."""
        requests: dict[Worker, Request] = {}
        begun: list[EnvRecord] = []
        here = None
        for worker in exchange.claim(filter(None, orders)):
            order, records, generation = orders[worker]
            timeout = self._reset_timeout if order.rebuilds else self._timeout
            requests[worker] = Request(self._placement.number, order, timeout, self._startup_timeout, generation)
            self._sent[worker] = orders[worker]
            begun += records
        # Before anything is sent: a worker may play a request of which the sender was interrupted.
        self._begin(begun)
        exchange.send(requests)
        urgent = set[Worker]()
        for worker, (order, *_) in self._sent.items():
            if order.rebuilds or self.suspects:  # there is more to do for it
                urgent.add(worker)
        if None in orders and not urgent and not exchange.has_failed:  # lost environments are rebuilt first
            here = self._play_here(*orders[None][:2])
        if not self._sent:
            return here, {}
        exchange.listen()  # only after main's share: a reply that came while nobody could read it is not late
        return here, exchange.replies(urgent)

    def _begin(self, records: list[EnvRecord]) -> None:
        """From here on, until results are committed, environments may not be at the ends of their journals."""
        for record in records:
            record.in_sync = False
            self._rebuilt.discard(record.env_id)

    def _play_here(self, order: Order, records: list[EnvRecord]) -> tuple[Order, Answer]:
        """The main process's part; of what may move to workers, only as much as begins within ``LOOK_S``."""
        in_sync = [record.in_sync for record in records]
        self._begin(records)
        may_move = self.may_move and order.counts and not self._sent
        until, counts_children = (perf_counter() + LOOK_S, self._parts > 0) if may_move else (inf, False)
        done = self._placement.main.run(order.carry_out, self.timeout_of(order), until, counts_children)
        if may_move:
            played = len(done.outcomes)
            for record, was_in_sync in zip(records[played:], in_sync[played:], strict=True):
                record.in_sync = was_in_sync
        return order, Answer(*done, IN_MAIN)

    # Results

    def _leave(self, record: EnvRecord) -> None:
        """Remember the replica that an environment has moved from; it is closed at the end of the call."""
        if record.before is not None:
            self._left[record.env_id], record.before = record.before, None

    def _take(self, worker: Worker | None, order: Order, answer: Answer) -> None:
        """Keep what succeeded, and decide on what did not."""
        outcomes, spent, generation = answer
        bad = list[tuple[EnvRecord, Any]]()
        gives_values = not order.rebuilds or self.kind is Fork  # a fork is there once it is rebuilt
        busy_s = 0.0
        for env_id, value, seconds, saved in outcomes:
            busy_s += seconds
            record = self._records[env_id]
            is_loaded = type(value) is not Raised or value.phase != "load"
            if order.rebuilds and record.worker is worker and is_loaded:  # else another thread has moved it
                record.generation = generation
            if type(value) in _FAILED and _is_failure(order, value):
                bad.append((record, value))
                continue
            if order.rebuilds:
                if record.worker is worker:
                    record.in_sync = self._needs(record) is record.journal
                self._rebuilt.add(env_id)
            if gives_values:
                self.values[env_id] = value
                if record.before is not None:
                    self._leave(record)
            if saved is not None:
                self.saved[env_id] = saved
        self._stats.count(worker, order, spent, busy_s)
        if self.may_move and worker is None and order.counts:
            for tag, more in spent.items():
                if not self._parts:
                    # The first part counts no child processes: their clocks take .1 ms to read, which cheap turns must
                    # not pay. An environment whose child computes would look as if it waited.
                    more = more._replace(seconds=0.0, computed_s=0.0)
                self._spent[tag] = self._spent.get(tag, Spent()) + more
            self._parts += 1
        for record, value in bad:  # last: they may move others, which would have looked unfinished
            self._failures.handle_env(record, value, order, self)


def _is_failure(order: Order, value: Any) -> bool:
    """Whether an outcome is a failure; an exception that a called method raises is its value."""
    return type(value) in _FAILED and not (type(order) is Call and type(value) is Raised and value.phase == "call")
