"""One call of the engine, as a value: what is asked of environments goes down once, what came of it comes back once.

         asked, by env_id                                              values, by env_id
               |                                                              ^
               v                                                              |
    +-----------------------------------  loop  ------------------------------------------+
    |  1. an environment that has failed has its value; suspects get a worker of their    |
    |     own, or wait for one                                                            |
    |  2. each home gets one order: if an environment does not stand at the end of its    |
    |     journal, to rebuild such environments; else what is asked                       |
    |  3. exchange: workers and the main process work at the same time                    |
    |  4. values are kept; each failure is decided on (:mod:`ragen.parallel.recovery`)    |
    +-------------------------------------------------------------------------------------+

Journals are written by the engine when the round has come back: whatever interrupts it has played nothing.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from ragen.parallel.environments import IN_MAIN, Environments, EnvRecord
from ragen.parallel.episode.journal import Divergence, EpisodeJournal
from ragen.parallel.episode.outcome import Batch, Outcome, Raised, TimedOut
from ragen.parallel.failures import Asked, Failures
from ragen.parallel.homes import Homes
from ragen.parallel.interrupts import interrupts_come_too_late
from ragen.parallel.lanes.exchange import Answer, exchange
from ragen.parallel.lanes.lane import Lane, Request
from ragen.parallel.lanes.orders import Call, Fork, Order, Rebuild, RebuildHere, Reset
from ragen.parallel.stats import CallTime, Stats

_PATIENCE = 0.005  # seconds between looks for room in quarantine, while other threads' environments have it

_FAILED = frozenset({Raised, TimedOut, Divergence})
_NOTHING = Batch([])


class Round:
    """One call: every environment gets a value, whatever it takes.

    Attributes:
        asked: What is asked, and of whom.
        values: What came of it so far, by env_id.
        saved: Snapshots that were taken after what was asked, by env_id.
        looks: Whether what is left of it may be moved while it is played, as is measured meanwhile.
        time: What the call took, once it is over.
    """

    def __init__(
        self, environments: Environments, homes: Homes, failures: Failures, stats: Stats, asked: Asked
    ) -> None:
        """Ask this of an engine's environments."""
        self.asked = asked
        self.values: dict[int, Any] = {}
        self.saved: dict[int, bytes] = {}
        self._busy_s: dict[Lane | None, float] = defaultdict(float)
        self._idle_s = 0.0
        self.time = CallTime(0.0, 0)
        self.looks = False
        self._environments, self._homes, self._failures, self._stats = environments, homes, failures, stats
        self._is_waiting = False  # for room in quarantine
        self._has_failures = False

    def run(self) -> dict[int, Any]:
        """Play until every environment has its value; values by env_id, in the order in which they were asked."""
        environments, values, start = self._environments, self.values, perf_counter()
        todo = list(self.asked.items)
        while todo:
            environments.check_open()  # another thread may have abandoned it
            with environments.lock:
                if self.looks:
                    left = [record.env_id for record in environments.of(todo) if not record.is_suspect]
                    items, is_reset = self.asked.items, self.asked.kind is Reset
                    reseeded = [each for each in left if items[each].seed is not None] if is_reset else ()
                    self._homes.look_within(self._stats.episode, left, items, is_reset, reseeded)
                orders = self._orders(todo)
            if orders:
                self._exchange(orders)
            elif self._is_waiting:
                time.sleep(_PATIENCE)
            todo = [env_id for env_id in todo if env_id not in values]
        if self._has_failures:
            self._failures.sum_up()
        lane_s = dict(self._busy_s)
        times = lane_s.pop(None, 0.0), max(lane_s.values(), default=0.0), len(lane_s), self._idle_s
        self.time = CallTime(perf_counter() - start, len(self.asked.items), *times)
        interrupts_come_too_late()
        return {env_id: values[env_id] for env_id in self.asked.items}

    # Who is asked what

    def _orders(self, todo: list[int]) -> dict[Lane | None, Order]:
        """One order for each home that has something to do now; environments that failed get their value."""
        ready: dict[Lane | None, list[EnvRecord]] = {}
        stale: dict[Lane | None, list[EnvRecord]] = {}
        self._is_waiting = False
        for record in self._environments.of(todo):
            if record.failed is not None:
                self.values[record.env_id] = record.failed
            elif record.is_suspect and not self._failures.admit(record, self.asked.items, todo):
                self._is_waiting = True
            else:
                lane = record.lane
                is_loaded = record.generation == (IN_MAIN if lane is None else lane.current)
                group = ready if is_loaded and (record.in_sync or self._needs(record).is_empty) else stale
                group.setdefault(lane, []).append(record)
        orders: dict[Lane | None, Order] = {}
        for lane, records in stale.items():
            if (rebuild := self._rebuild(lane, records)) is not None:
                orders[lane] = rebuild
        if orders:  # the others play with them afterwards, at the same time
            return orders
        for lane, records in ready.items():
            if lane is None and self.looks:
                records = self._homes.piece(self._stats.episode, records, self.asked.kind is Reset)
            items = []
            for record in records:
                record.in_sync = False  # from here on, until what comes of it is committed
                items.append(self.asked.items[record.env_id])
            orders[lane] = self.asked.kind(items)
        return orders

    def _needs(self, record: EnvRecord) -> EpisodeJournal:
        """What a just built environment has to have behind it before it can be asked.

        A reset with a seed needs nothing of the last episode; one without goes on with what that has left.
        """
        if self.asked.kind is Reset and (self.asked.items[record.env_id].seed is not None):
            return EpisodeJournal(settings=record.journal.lasting())
        return record.journal

    def _rebuild(self, lane: Lane | None, records: list[EnvRecord]) -> Rebuild | None:
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
            record.in_sync = False
            if not record.is_loaded:
                specs.append(record.spec)
            if not journal.is_empty:
                journals.append((record.env_id, journal))
        if not specs and not journals:
            return None
        return RebuildHere(specs, journals) if lane is None else Rebuild.of(specs, journals)

    # What comes of it

    def _exchange(self, orders: Mapping[Lane | None, Order]) -> None:
        """Let all homes work, and take in what comes of it."""
        requests = {lane: self._request(lane, order) for lane, order in orders.items() if lane is not None}
        mine = orders.get(None)
        here, replies, idle_s = exchange(requests, partial(self._play_in_main, mine))
        self._idle_s += idle_s
        with self._environments.lock:
            if here is None:  # nothing was sent
                self._still_in_sync(order for lane, order in orders.items() if lane not in replies)
            elif mine is not None:
                self._take(None, mine, Answer(*here, IN_MAIN))
            for lane, reply in replies.items():
                if isinstance(reply, Answer):
                    self._take(lane, orders[lane], reply)
                else:
                    self._has_failures = True
                    self._failures.of_lane(lane, reply, orders[lane], self.asked)

    def _still_in_sync(self, unsent: Iterable[Order]) -> None:
        """Environments that were to be asked, and were not, stand where they stood."""
        for order in unsent:
            if not order.rebuilds:
                for env_id, *_ in order.items:
                    self._environments.records[env_id].in_sync = True

    def _play_in_main(self, order: Order | None) -> Batch:
        return self._homes.main.run(order, self.asked.timeout_of(order)) if order is not None else _NOTHING

    def _request(self, lane: Lane, order: Order) -> Request:
        """The worker that is meant must be the one that knows the environments, unless it is to learn of them all."""
        if not order.rebuilds:
            return Request(self._homes.number, order, self.asked.timeout, self._homes.startup_timeout, lane.current)
        ids = [env_id for index in range(len(order)) for env_id in order.envs_at(index)]
        knows_some = any(record.is_loaded for record in self._environments.of(ids))
        generation = lane.current if knows_some else None
        return Request(self._homes.number, order, self.asked.reset_timeout, self._homes.startup_timeout, generation)

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
            if order.rebuilds:
                records[env_id].generation, records[env_id].in_sync = generation, True
            if gives_values:
                self.values[env_id] = value
            if saved is not None:
                self.saved[env_id] = saved
        self._busy_s[lane] += busy_s
        self._stats.count(lane, order, spent, busy_s)
        if self._stats.keeps_each and order.counts:
            self._stats.count_each(outcomes)
        for env_id, value, *_ in bad:
            if order.rebuilds and not (isinstance(value, Raised) and value.phase == "load"):
                records[env_id].generation = generation
            self._fail(records[env_id], value, order)


def _lives_on(order: Order, value: Any) -> bool:
    """Whether an exception is a call's own value: the environment has raised it, and lives on."""
    return type(order) is Call and type(value) is Raised and value.phase == "call"
