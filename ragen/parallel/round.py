"""One call of the engine, as a value: what is asked of environments goes down once, what came of it comes back once.

         asked, by env_id                                              values, by env_id
               |                                                              ^
               v                                                              |
    +-----------------------------------  loop  ------------------------------------------+
    |  1. who is failed has its value; suspects get a lane of their own, or wait          |
    |  2. each home gets one order: to rebuild what does not stand at the end of its      |
    |     journal, or else what is asked                                                  |
    |  3. exchange: lanes and the main process work at the same time                      |
    |  4. values are kept; each failure is decided on (:mod:`ragen.parallel.recovery`)    |
    +-------------------------------------------------------------------------------------+

Journals are written by the engine when the round has come back: whatever interrupts it has played nothing.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ragen.parallel.env_record import IN_MAIN, EnvRecord
from ragen.parallel.episode.journal import Divergence, EpisodeJournal
from ragen.parallel.episode.outcome import Outcome, Raised, TimedOut
from ragen.parallel.failures import Asked, Failures
from ragen.parallel.homes import Homes
from ragen.parallel.interrupts import interrupts_come_too_late
from ragen.parallel.lanes.exchange import Answer, exchange
from ragen.parallel.lanes.lane import Lane, Request
from ragen.parallel.lanes.orders import Call, Fork, Order, Play, Rebuild, RebuildHere, Reset
from ragen.parallel.main_home import MainHome
from ragen.parallel.notices import Notices
from ragen.parallel.settings import Settings
from ragen.parallel.stats import CallTime, Stats

_PATIENCE = 0.005  # seconds between looks for room in quarantine, while other threads' environments have it

_FAILED = frozenset({Raised, TimedOut, Divergence})
Items = Mapping[int, Any]  # what an order is given for each environment, by env_id


@dataclass
class Parts:
    """What a round has of its engine.

    Attributes:
        number: The engine's.
        settings: The engine's.
        records: What is known of each environment, by env_id.
        tags: All tags that there were.
        lock: Held while records are read or changed.
        notices, stats, failures: What is said, counted, and done about failures.
        main: The environments that live in the main process.
        check_open: Raises if the engine was closed.
    """

    number: int
    settings: Settings
    records: dict[int, EnvRecord]
    tags: set[str]
    lock: Any
    notices: Notices
    stats: Stats
    failures: Failures
    main: MainHome
    check_open: Callable[[], None]


class Round:
    """One call: every environment gets a value, whatever it takes.

    Attributes:
        asked: What is asked, and of whom.
        values: What came of it so far, by env_id.
    """

    def __init__(
        self,
        parts: Parts,
        kind: type[Reset | Play | Call | Fork],
        items: Items,
        timeout: float,
        homes: Homes | None = None,
    ) -> None:
        """Ask these environments of an engine; each may take so many seconds.

        ``homes``, if given, may move what is left of the call while it is played.
        """
        self.asked = Asked(kind, items, timeout, parts.settings.reset_timeout)
        self.values: dict[int, Any] = {}
        self._parts, self._records = parts, parts.records
        self._homes = homes
        self._is_waiting = False  # for room in quarantine
        self._start = perf_counter()
        self._local_s = self._idle_s = 0.0
        self._lane_s: dict[str, float] = defaultdict(float)

    def run(self) -> dict[int, Any]:
        """Play until every environment has its value."""
        items, values, parts = self.asked.items, self.values, self._parts
        todo = [env_id for env_id in items if env_id not in values]
        while todo:
            parts.check_open()  # another thread may have abandoned it
            with parts.lock:
                if self._homes is not None:
                    left = [env_id for env_id in todo if not self._records[env_id].is_suspect]
                    self._homes.look_within(parts.stats.episode, left, self.asked.kind is Reset)
                orders = self._orders(todo)
            if orders:
                self._exchange(orders)
            elif self._is_waiting:
                time.sleep(_PATIENCE)
            todo = [env_id for env_id in todo if env_id not in values] if len(values) < len(items) else []
        parts.notices.sum_up()
        interrupts_come_too_late()
        return values

    def call_time(self) -> CallTime:
        """What the call took so far."""
        lane_s = max(self._lane_s.values(), default=0.0)
        seconds = perf_counter() - self._start
        return CallTime(seconds, len(self.asked.items), self._local_s, lane_s, len(self._lane_s), self._idle_s)

    # Who is asked what

    def _orders(self, todo: list[int]) -> dict[Lane | None, Order]:
        """One order for each home that has something to do now; environments that failed get their value."""
        ready: dict[Lane | None, list[EnvRecord]] = defaultdict(list)
        stale: dict[Lane | None, list[EnvRecord]] = defaultdict(list)
        is_reset, records = self.asked.kind is Reset, self._records
        self._is_waiting = False
        for env_id in todo:
            record = records[env_id]
            if record.failed is not None:
                self.values[env_id] = record.failed
            elif record.is_suspect and not self._parts.failures.admit(record, self.asked.items, todo):
                self._is_waiting = True
            elif record.is_ready or (record.is_loaded and (is_reset or record.journal.is_empty)):
                ready[record.lane].append(record)
            else:
                stale[record.lane].append(record)
        orders: dict[Lane | None, Order] = {}
        for lane, members in stale.items():
            if (order := self._rebuild(lane, members)) is not None:
                orders[lane] = order
        is_early = any(lane is not None for lane in stale)  # for main, which plays at the same time as lanes do
        for lane, members in ready.items():
            if lane not in stale and not (lane is None and is_early):
                if lane is None and self._homes is not None:
                    members = self._homes.piece(self._parts.stats.episode, members, is_reset)
                for record in members:
                    record.in_sync = False
                orders[lane] = self.asked.kind([self.asked.items[record.env_id] for record in members])
        return orders

    def _rebuild(self, lane: Lane | None, records: list[EnvRecord]) -> Rebuild | None:
        """What brings environments to the end of their journals; those that cannot be replayed have failed."""
        specs, journals = [], []
        for record in sorted(records, key=lambda record: record.spec.tag):
            journal = (
                record.journal if self.asked.kind is not Reset else EpisodeJournal(settings=record.journal.lasting())
            )
            if journal.has_begun and not record.spec.is_replayable:
                self._parts.failures.lost(record, self.asked)
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
        if requests:
            outcomes, replies, idle_s = exchange(requests, lambda: self._play_in_main(mine))
            self._idle_s += idle_s
        else:
            outcomes, replies = self._play_in_main(mine), {}
        with self._parts.lock:
            if mine is not None:
                self._local_s += self._take(None, mine, outcomes, IN_MAIN)
            for lane, reply in replies.items():
                if isinstance(reply, Answer):
                    self._lane_s[lane.name] += self._take(lane, orders[lane], reply.outcomes, reply.generation)
                else:
                    self._parts.failures.of_lane(lane, reply, orders[lane], self.asked)

    def _play_in_main(self, order: Order | None) -> list[Outcome]:
        return self._parts.main.run(order, self.asked.timeout_of(order)) if order is not None else []

    def _request(self, lane: Lane, order: Order) -> Request:
        """The worker that is meant must be the one that knows the environments, unless it is to learn of them all."""
        settings = self._parts.settings
        is_new = order.rebuilds and not any(
            self._records[env_id].is_loaded for index in range(len(order)) for env_id in order.envs_at(index)
        )
        generation = None if is_new else lane.current
        return Request(self._parts.number, order, self.asked.timeout_of(order), settings.startup_timeout, generation)

    def _take(self, lane: Lane | None, order: Order, outcomes: list[Outcome], generation: int) -> float:
        """Keep what succeeded, and decide on what did not; the seconds that environments took."""
        records, stats = self._records, self._parts.stats
        is_play, is_rebuild = order.plays, order.rebuilds
        good = outcomes
        if not _FAILED.isdisjoint([type(outcome[1]) for outcome in outcomes]):
            good = [outcome for outcome in outcomes if not _is_failure(order, outcome[1])]
        if is_rebuild:
            for env_id, _, _, _ in good:
                records[env_id].generation, records[env_id].in_sync = generation, True
        else:
            self.values.update({env_id: value for env_id, value, _, _ in good})
        seconds = stats.count_outcomes(lane, outcomes, len(good) if is_play else 0)
        if is_play or type(order) is Reset:
            stats.measure(self._by_tag(good), is_play)
        if good is not outcomes:
            for env_id, value, _, _ in [outcome for outcome in outcomes if _is_failure(order, outcome[1])]:
                if is_rebuild and not (isinstance(value, Raised) and value.phase == "load"):
                    records[env_id].generation = generation
                self._parts.failures.of_env(records[env_id], value, order, self.asked)
        return seconds

    def _by_tag(self, outcomes: list[Outcome]) -> dict[str, list[Outcome]]:
        tags = self._parts.tags
        if len(tags) == 1:
            return dict.fromkeys(tags, outcomes)
        by_tag: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            by_tag[self._records[outcome[0]].spec.tag].append(outcome)
        return by_tag


def _is_failure(order: Order, value: Any) -> bool:
    """Whether an outcome is no value; a call that raised is one, since its environment lives on."""
    if type(order) is Call and type(value) is Raised and value.phase == "call":
        return False
    return type(value) in _FAILED
