"""One call of the engine, as a value: what is asked of environments goes down once, what came of it comes back once.

         asked, by env_id                                              values, by env_id
               |                                                              ^
               v                                                              |
    +-----------------------------------  loop  ------------------------------------------+
    |  1. an environment that has failed has its value; suspects get a worker of their    |
    |     own, or wait for one                                                            |
    |  2. each home that is not at work gets one order: if an environment does not stand  |
    |     at the end of its journal, to rebuild such environments; else what is asked     |
    |  3. the main process does its share while workers do theirs; while some rebuild,    |
    |     in pieces, so that these need not wait for it to be asked                       |
    |  4. replies are awaited: all of them, or until a home has more to do, since it has  |
    |     lost its worker or has rebuilt its environments; the others work on meanwhile   |
    |  5. values are kept; each failure is decided on (:mod:`envlanes.recovery`)    |
    +-------------------------------------------------------------------------------------+

Journals are written by the engine when the round has come back: whatever interrupts it has played nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from itertools import filterfalse
from math import inf
from operator import attrgetter
from time import perf_counter
from typing import Any, Protocol

from envlanes.environments import IN_MAIN, Environments, EnvRecord
from envlanes.episode.clock import Spent
from envlanes.episode.game import declares_snapshots
from envlanes.episode.journal import Divergence, EpisodeJournal
from envlanes.episode.outcome import Outcome, Raised, TimedOut
from envlanes.episode.spec import EnvSpec
from envlanes.failures import Asked, Failures
from envlanes.homes import Homes
from envlanes.interrupts import interrupts_come_too_late, interrupts_let_through
from envlanes.lanes.exchange import Answer, Exchange, Reply
from envlanes.lanes.failure import Cause, LaneFailure
from envlanes.lanes.lane import Lane, Request
from envlanes.lanes.orders import Call, Fork, Order, Rebuild, RebuildHere, Reset
from envlanes.placement import LOOK_S
from envlanes.stats import Stats

Orders = dict[Lane | None, tuple[Order, list[EnvRecord], int | None]]
"""Each with its environments, and the worker that knows them; None where it is to learn of them all."""

_FAILED = frozenset({Raised, TimedOut, Divergence})
_env_id = attrgetter("env_id")


class Parts(Protocol):
    """The parts of an engine, which a round needs."""

    environments: Environments
    homes: Homes
    failures: Failures
    stats_book: Stats


class Round:
    """One call: every environment gets a value, whatever it takes.

    Attributes:
        asked: What is asked, and of whom.
        values: What came of it so far, by env_id.
        saved: Snapshots that were taken after what was asked, by env_id.
        may_move: Whether what main has yet to play may move to workers during the call; not while those work.
    """

    def __init__(self, engine: Parts, asked: Asked) -> None:
        """Ask this of an engine's environments."""
        self.asked = asked
        self.values: dict[int, Any] = {}
        self.saved: dict[int, bytes] = {}
        self._sent: dict[Lane, tuple[Order, list[EnvRecord]]] = {}  # that workers are at work on
        self._rebuilt: set[int] = set()  # that can be asked, though they may not stand at the ends of their journals
        self.may_move = False
        self._played: list[Answer] = []  # by main, if the rest may move
        self._environments, self._homes = engine.environments, engine.homes
        self._failures, self._stats = engine.failures, engine.stats_book
        self._left: dict[int, tuple[Lane | None, int]] = {}  # replicas that environments have moved from
        self._is_waiting = False  # for room in quarantine
        self._has_failures = False
        self._piece_size = 1  # environments of main's next piece
        self._has_more = False  # main, after its piece

    def run(self) -> dict[int, Any]:
        """Play until every environment has its value; values by env_id, in the order in which they were asked."""
        replies, done_here = dict[Lane, Reply](), None
        lock, items, values = self._environments.lock, self.asked.items, self.values
        with Exchange() as exchange:
            while True:
                if self._sent:
                    self._lock_records(exchange, replies)
                else:
                    lock.acquire()
                try:
                    if done_here is not None:
                        self._take(None, *done_here)
                    for lane, reply in replies.items():
                        order, _ = self._sent.pop(lane)
                        if isinstance(reply, Answer):
                            self._take(lane, order, reply)
                        else:
                            self._has_failures = True
                            self._failures.of_lane(lane, reply, order, self.asked)
                    todo = list(filterfalse(values.__contains__, items))
                    if not todo:
                        break
                    if self._environments.is_closed:  # another thread may have abandoned it
                        self._environments.check_open()
                    if len(self._played) > 1 and not self._sent:
                        self._move_rest(todo)
                    orders = self._orders(todo)
                    if self._is_waiting and not orders and not self._sent:
                        with interrupts_let_through():
                            self._environments.changed.wait()  # lets go of the lock meanwhile
                finally:
                    lock.release()
                done_here, replies = self._exchange(exchange, orders)
        if self._has_failures:
            self._failures.sum_up()
        if exchange.starting_s:
            self._stats.count_start(exchange.starting_s)
        if self._left:
            with self._environments.lock:
                self._homes.let_go(self._left)
        interrupts_come_too_late()
        return dict(zip(items, map(values.__getitem__, items), strict=True))

    def _lock_records(self, exchange: Exchange, replies: dict[Lane, Reply]) -> None:
        """Lock the records to handle replies, after awaiting more if these take a home that is at work.

        While a lane is at work, another thread that has the records is not waited for: it may wait for that lane, which
        this one gives free only with its reply. The next reply is awaited first.
        """
        while True:
            is_quiet = len(replies) == len(self._sent)
            may_handle = is_quiet or all(map(self._is_settled_alone, replies.items()))
            if may_handle and self._environments.lock.acquire(blocking=is_quiet):
                return
            replies.update(exchange.replies())

    def _move_rest(self, todo: Collection[int]) -> None:
        """Move what main has yet to play, if it belongs in workers."""
        items, is_reset = self.asked.items, self.asked.kind is Reset
        left = [record.env_id for record in self._environments.of(todo) if not record.is_suspect]
        reseeded = [env_id for env_id in left if items[env_id].seed is not None] if is_reset else ()
        self._homes.within_call(items, left, self._spent(), None if is_reset else self._stats.episode, reseeded)

    def _spent(self) -> dict[str, Spent]:
        """Time that main has spent in this call, by tag; its first part did not count child processes."""
        times: dict[str, list[float]] = defaultdict(list)
        later: dict[str, Spent] = defaultdict(Spent)
        for part, answer in enumerate(self._played):
            for env_id, value, seconds, _ in answer.outcomes:
                if type(value) not in _FAILED:
                    times[self._environments.records[env_id].spec.tag].append(seconds)
            for tag, more in answer.spent.items() if part else ():
                later[tag] = later[tag].also(more)
        return {tag: Spent.of(each, sum(each) * later[tag].busy) for tag, each in times.items()}

    # Who is asked what

    def _orders(self, todo: list[int]) -> Orders:
        """One order for each home that is not at work, with its environments; those that failed get their value."""
        ready: dict[Lane | None, list[EnvRecord]] = {}
        stale: dict[Lane | None, list[EnvRecord]] = {}
        self._is_waiting = False
        at_work = set[int]()
        for _, records in self._sent.values():
            at_work.update(map(_env_id, records))
        seen: dict[Lane | None, int] = {None: IN_MAIN}  # workers: another thread may replace them from here on
        for env_id in todo:
            record = self._environments.records[env_id]
            if env_id in at_work:  # where another thread may have moved it from
                continue
            if record.failed is not None:
                self.values[env_id] = record.failed
                self._leave(record)
            elif record.is_suspect and not self._failures.admit(record, self.asked.items, todo):
                self._is_waiting = True
            elif (lane := record.lane) not in self._sent:
                is_loaded = record.generation == seen.setdefault(lane, IN_MAIN if lane is None else lane.current)
                is_there = record.in_sync or env_id in self._rebuilt or self._needs(record).is_empty
                group = ready if is_loaded and is_there else stale
                group.setdefault(lane, []).append(record)
        orders: Orders = {}
        for lane, records in stale.items():
            if (rebuild := self._rebuild(lane, seen[lane], records)) is not None:
                knows_some = any(record.generation == seen[lane] for record in records)
                orders[lane] = rebuild, records, seen[lane] if knows_some else None
        for lane, records in ready.items():
            if lane in orders:  # they play with those that are rebuilt first
                continue
            if lane is None:
                records = self._piece(records, orders)
            asked = list(map(self.asked.items.__getitem__, map(_env_id, records)))
            orders[lane] = self.asked.kind(asked), records, seen[lane]
        return orders

    def _piece(self, records: list[EnvRecord], orders: Orders) -> list[EnvRecord]:
        """What main does next: all of it, or while workers rebuild only some, and then twice as many."""
        at_work = [sent[0] for sent in self._sent.values()] + [given[0] for given in orders.values()]
        end = self._piece_size if any(order.rebuilds for order in at_work) else len(records)
        self._piece_size = 2 * end
        while 0 < end < len(records) and self._share_a_reset(records[end - 1].spec, records[end].spec):
            end += 1
        self._has_more = end < len(records)
        return records[:end]

    def _share_a_reset(self, one: EnvSpec, other: EnvSpec) -> bool:
        """Whether the second may load what the first saves after its reset, if both are reset by one order."""
        return self.asked.kind is Reset and declares_snapshots(one.env_class) and one.group_id == other.group_id

    def _needs(self, record: EnvRecord) -> EpisodeJournal:
        """What a just built environment has to have behind it before it can be asked.

        A reset with a seed needs nothing of the last episode; one without goes on with what that has left.
        """
        if self.asked.kind is Reset and (self.asked.items[record.env_id].seed is not None):
            return EpisodeJournal(settings=record.journal.lasting())
        return record.journal

    def _rebuild(self, lane: Lane | None, worker: int, records: list[EnvRecord]) -> Rebuild | None:
        """What brings environments to the end of their journals; those that cannot be replayed have failed."""
        specs, journals = [], []
        for record in sorted(records, key=lambda record: record.spec.tag):
            journal = self._needs(record)
            if record.failures and record.spec.is_replayable:  # once more, and from the beginning
                journal = journal.without_snapshots()
            else:
                journal = journal.from_snapshot()
            if journal.has_begun and not (record.spec.is_replayable or journal.ends_with_snapshot):
                self._has_failures = True
                self._failures.lost(record, self.asked)
                continue
            if record.generation != worker:
                specs.append(record.spec)
            if not journal.is_empty:
                journals.append((record.env_id, journal))
        if not specs and not journals:
            return None
        return RebuildHere(specs, journals) if lane is None else Rebuild.of(specs, journals)

    def _exchange(self, exchange: Exchange, orders: Orders) -> tuple[tuple[Order, Answer] | None, dict[Lane, Reply]]:
        """Let homes work, until all have or one has more to do; what the main process has done, and the replies."""
        requests: dict[Lane, Request] = {}
        for lane in exchange.claim(filter(None, orders)):
            order, records, worker = orders[lane]
            self._sent[lane] = order, records
            timeout = self.asked.reset_timeout if order.rebuilds else self.asked.timeout
            requests[lane] = Request(self._homes.number, order, timeout, self._homes.startup_timeout, worker)
            for record in records:  # from here on, until what comes of it is committed, not at its journal's end
                record.in_sync = False
                self._rebuilt.discard(record.env_id)
        exchange.send(requests)
        here: tuple[Order, Answer] | None = None
        if None in orders and not exchange.has_failed:  # what was lost is rebuilt first
            here = orders[None][0], self._carry_out_here(*orders[None][:2])
        if not self._sent:
            return here, {}
        exchange.listen()
        if here is not None and (here[0].rebuilds or self._has_more):
            return here, exchange.arrived()
        urgent = set[Lane]()
        for lane, (order, _) in self._sent.items():
            if order.rebuilds:
                urgent.add(lane)
        return here, exchange.replies(urgent)

    def _carry_out_here(self, order: Order, records: list[EnvRecord]) -> Answer:
        """The main process's part; of what may move to workers, only as much as begins within ``LOOK_S``."""
        in_sync = [record for record in records if record.in_sync]
        for record in records:
            record.in_sync = False
            self._rebuilt.discard(record.env_id)
        may_move = self.may_move and order.counts and not self._sent
        until, counts_children = (perf_counter() + LOOK_S, bool(self._played)) if may_move else (inf, False)
        done = self._homes.main.run(order, self.asked.timeout_of(order), until, counts_children)
        answer = Answer(*done, IN_MAIN)
        if order.counts and len(answer.outcomes) < len(records):
            self._has_more = True
            played = {outcome.env_id for outcome in answer.outcomes}
            for record in in_sync:
                record.in_sync = record.env_id not in played
        return answer

    def _is_settled_alone(self, given: tuple[Lane, Reply]) -> bool:
        """Whether a reply is handled without any other home."""
        lane, reply = given
        if isinstance(reply, LaneFailure):
            return reply.cause is not Cause.START  # after which environments may move to the main process
        order, _ = self._sent[lane]
        return not any(
            type(outcome.value) in _FAILED and not _lives_on(order, outcome.value) for outcome in reply.outcomes
        )

    # What comes of it

    def _leave(self, record: EnvRecord) -> None:
        """Keep in mind the replica that an environment has moved from, to be closed now that the other one stands."""
        if record.before is not None:
            self._left[record.env_id], record.before = record.before, None

    def _fail(self, record: EnvRecord, value: Raised | Divergence, order: Order) -> None:
        self._has_failures = True
        self._failures.of_env(record, value, order, self.asked)

    def _take(self, lane: Lane | None, order: Order, given: Answer) -> None:
        """Keep what succeeded, and decide on what did not."""
        outcomes, spent, generation = given
        records, bad = self._environments.records, list[Outcome]()
        gives_values = not order.rebuilds or self.asked.kind is Fork  # a fork is there once it is rebuilt
        busy_s = 0.0
        for outcome in outcomes:
            env_id, value, seconds, saved = outcome
            busy_s += seconds
            if type(value) in _FAILED and not _lives_on(order, value):
                bad.append(outcome)
                continue
            record = records[env_id]
            if order.rebuilds and record.lane is lane:  # else another thread has moved it
                record.generation, record.in_sync = generation, self._needs(record) is record.journal
                self._rebuilt.add(env_id)
            if gives_values:
                self.values[env_id] = value
                if record.before is not None:
                    self._leave(record)
            if saved is not None:
                self.saved[env_id] = saved
        if isinstance(order, Rebuild):
            missing = {outcome.env_id for outcome in bad}
            for env_id, journal in order.journals:
                if env_id not in missing:
                    self._failures.rebuilt(records[env_id], journal)
        self._stats.count(lane, order, spent, busy_s)
        if self.may_move and lane is None and order.counts:
            self._played.append(given)
        for env_id, value, *_ in bad:
            is_there = order.rebuilds and records[env_id].lane is lane
            if is_there and not (isinstance(value, Raised) and value.phase == "load"):
                records[env_id].generation = generation
            self._fail(records[env_id], value, order)


def _lives_on(order: Order, value: Any) -> bool:
    """Whether an exception is a call's own value: the environment has raised it, and lives on."""
    return type(order) is Call and type(value) is Raised and value.phase == "call"
