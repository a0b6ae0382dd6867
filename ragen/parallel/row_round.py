"""A round of turns that are asked in one piece, where nothing is out of the ordinary; see :mod:`.episode.rows`.

A row goes as one order to each home if all environments stand at the end of their journals, and none is suspect or has
failed; and it becomes a page for each home if every home gave one result for all of its environments. Otherwise what
came is kept as single results, and the round goes on as any other (:mod:`ragen.parallel.round`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from ragen.parallel.env_record import IN_MAIN, EnvFailed, EnvRecord, catch_up
from ragen.parallel.episode.outcome import Outcome, RowOf
from ragen.parallel.episode.rows import FAR, Row, RowItems
from ragen.parallel.episode.turn import named
from ragen.parallel.homes import Homes
from ragen.parallel.in_use import InUse
from ragen.parallel.interrupts import interrupts_come_too_late, interrupts_held
from ragen.parallel.lanes.lane import Lane
from ragen.parallel.lanes.orders import Order, Play
from ragen.parallel.lanes.row_order import PlayRow
from ragen.parallel.placement.costs import CallTime
from ragen.parallel.round import Parts, Round

Before = Callable[[Collection[int], bool], None]


class Played(NamedTuple):
    """What one home gave for its part of a row.

    Attributes:
        places: Indices in the row, as a range where they follow each other; None for all, in order.
        row: The part, of the class that was asked.
        result: What came of it: the game's :class:`RowResult`.
    """

    places: Sequence[int] | None
    row: Any
    result: Any


class RowRound(Round):
    """One call that plays a row.

    Attributes:
        played: What homes gave in one piece.
        homes: Where the environments live, with their places in the row; none if they were not asked in one piece.
    """

    def __init__(self, parts: Parts, row: Row, timeout: float, homes: Mapping[Lane | None, Sequence[int]]) -> None:
        """Ask for these turns; each may take so many seconds.

        Args:
            parts: What a round has of the engine.
            row: The turns.
            timeout: Seconds for each.
            homes: Where environments are known to stand at the end of their journals, with their places in the row;
                none if they are to be looked at.
        """
        super().__init__(parts, Play, RowItems(row), timeout)
        self._row = row
        self.played: list[Played] = []
        self.homes = homes

    def run(self) -> dict[int, Any]:
        """Play; single results by env_id, or none where all came in one piece."""
        with self._parts.lock:
            self.homes = self.homes or self._found_homes()
        if self.homes:
            self._exchange({lane: PlayRow(self._part_of(lane)) for lane in self.homes})
            if self._is_whole():
                return {}
        return super().run()

    def go_on(self, order: PlayRow, outcomes: list[Outcome]) -> dict[int, Any]:
        """:meth:`run` where the main process has carried out an order for the whole row already."""
        self._local_s += self._take(None, order, outcomes, IN_MAIN)
        return {} if self._is_whole() else super().run()

    def _is_whole(self) -> bool:
        """Whether every home gave one result; else what came so is kept as single ones."""
        if sum([len(each.row) for each in self.played]) == len(self._row):
            self._parts.notices.sum_up()
            interrupts_come_too_late()
            return True
        for each in self.played:
            ids = each.row.env_ids
            self.values.update({env_id: each.result.one(index) for index, env_id in enumerate(ids)})
        self.played = []
        return False

    def _part_of(self, lane: Lane | None) -> Row:
        return self._row if len(self.homes) == 1 else self._row.part(self.homes[lane])

    def _found_homes(self) -> dict[Lane | None, Sequence[int]]:
        """All homes; none where an environment needs something else first."""
        homes: dict[Lane | None, list[int]] = defaultdict(list)
        records = [self._records[env_id] for env_id in self._row.env_ids]
        for place, record in enumerate(records):
            if not (record.is_ready and record.is_untroubled):
                return {}
            homes[record.lane].append(place)
        for record in records:
            record.in_sync = False
        return {lane: _as_range(places) for lane, places in homes.items()}

    def _take(self, lane: Lane | None, order: Order, outcomes: list[Outcome], generation: int) -> float:
        rows = [outcome for outcome in outcomes if type(outcome[1]) is RowOf]
        if not rows:
            return super()._take(lane, order, outcomes, generation)
        seconds = 0.0
        for _, (env_ids, result), took, waited in rows:
            self.played.append(self._played(lane, order, env_ids, result))
            self._parts.stats.count_row(lane, next(iter(self._parts.tags)), len(env_ids), took, waited)
            seconds += took
        singles = [outcome for outcome in outcomes if type(outcome[1]) is not RowOf]
        return seconds + (super()._take(lane, order, singles, generation) if singles else 0.0)

    def _played(self, lane: Lane | None, order: Order, env_ids: Sequence[int], result: Any) -> Played:
        if len(env_ids) == len(self._row):
            return Played(None, self._row, result)
        if isinstance(order, PlayRow) and len(env_ids) == len(order):
            return Played(self.homes[lane], order.row, result)
        known = {env_id: place for place, env_id in enumerate(self._row.env_ids)}  # a lane that takes few at a time
        places = [known[env_id] for env_id in env_ids]
        return Played(places, self._row.part(places), result)


def _as_range(places: list[int]) -> Sequence[int]:
    """Rising numbers, as a range if none is missing: what is taken by one is taken in one piece."""
    first, last = places[0], places[-1]
    return range(first, last + 1) if last - first + 1 == len(places) else places


class Rows:
    """Plays rows in the environments of one engine.

    Most calls ask the same environments as the last one, and nothing has happened to any environment in between: what
    was looked at then is not looked at again.
    """

    def __init__(self, parts: Parts, homes: Homes, in_use: InUse, before: Before) -> None:
        """Play these.

        Args:
            parts: What a round has of the engine.
            homes: Where environments live.
            in_use: The environments that calls are using.
            before: What the engine does before turns of some environments; is told whether they are those of the last.
        """
        self._parts, self._homes, self._in_use, self._before = parts, homes, in_use, before
        self._is_due = FAR
        self._streak: _Streak | None = None  # if the last call was of one

    def can_play(self) -> bool:
        """Whether there is but one tag, so that what a row costs can be told, and nobody asks it of each."""
        return len(self._parts.tags) == 1 and not self._parts.stats.keeps_each

    def play(self, row: Row) -> list[Played] | dict[int, Any]:
        """Play turns, like :meth:`EnvEngine.play`.

        Args:
            row: The turns; the engine's from then on.

        Returns:
            What each home gave; or, where something was out of the ordinary, single results by env_id, and
            :class:`EnvFailed` of those that have failed.

        Raises:
            StateError: The engine is closed, an environment was not reset, or another thread is using it.
            InputError: There is no such environment.
        """
        streak, self._streak = self._streak, None
        if streak is not None and (streak.row_ids is row.env_ids or streak.row_ids == row.env_ids):
            with interrupts_held():
                if self._in_use.take_again(streak.env_ids, streak.calls):
                    try:
                        return self._play(row, streak)
                    finally:
                        self._in_use.give_back(streak.env_ids)
        with self._in_use.claimed(row.env_ids):
            return self._play(row, None)

    def play_singly(self, row: Row) -> dict[int, Any]:
        """:meth:`play`; results by env_id, in the order of the row."""
        found = self.play(row)
        if isinstance(found, list):
            is_in_order = len(found) == 1
            found = {env_id: each.result.one(i) for each in found for i, env_id in enumerate(each.row.env_ids)}
            if is_in_order:
                return found
        return {env_id: found[env_id] for env_id in row.env_ids}

    def _play(self, row: Row, streak: _Streak | None) -> list[Played] | dict[int, Any]:
        parts = self._parts
        with parts.lock:
            self._before(row.env_ids, streak is not None)
        if streak is None or not streak.holds(self._homes.moves):
            asked = RowRound(parts, row, parts.settings.step_timeout, {})
            return self._kept(row, asked, asked.run(), None)
        for record in streak.records:
            record.in_sync = False
        if not streak.workers:
            return self._play_on(row, streak)
        asked = RowRound(parts, row, parts.settings.step_timeout, streak.homes)
        return self._kept(row, asked, asked.run(), streak)

    def _play_on(self, row: Row, streak: _Streak) -> list[Played] | dict[int, Any]:
        """Play where all environments are known to stand at the end of their journals, in the main process."""
        parts, start = self._parts, perf_counter()
        order = PlayRow(row)
        outcomes = parts.main.run(order, parts.settings.step_timeout)
        _, value, seconds, waited = outcomes[0]
        if type(value) is not RowOf:
            asked = RowRound(parts, row, parts.settings.step_timeout, {})
            return self._kept(row, asked, asked.go_on(order, outcomes), None)
        parts.notices.sum_up()
        interrupts_come_too_late()
        with parts.lock:
            count, played = len(row), [named(Played, (None, row, value.result))]
            parts.stats.count_row(None, next(iter(parts.tags)), count, seconds, waited)
            parts.stats.count_call(CallTime(perf_counter() - start, count, seconds), are_turns=True)
            self._commit(played, streak.records)
            streak.calls, self._streak = self._in_use.calls, streak
        return played

    def _kept(
        self, row: Row, asked: RowRound, values: dict[int, Any], streak: _Streak | None
    ) -> list[Played] | dict[int, Any]:
        """What a round gave, as part of the episodes."""
        parts = self._parts
        with parts.lock:
            parts.stats.count_call(asked.call_time(), are_turns=True)
            if values:
                for index, env_id in enumerate(row.env_ids):
                    if type(values[env_id]) is not EnvFailed:
                        parts.records[env_id].commit_turn(row.turn(index), values[env_id])
                return values
            if streak is None:
                records = [parts.records[env_id] for env_id in row.env_ids]
                firsts = {lane: records[places[0]] for lane, places in asked.homes.items()}
                workers = {lane: first.generation for lane, first in firsts.items() if lane is not None}
                known = row.env_ids, frozenset(row.env_ids), records, asked.homes, workers
                streak = _Streak(*known, self._in_use.calls, self._homes.moves)
            self._commit(asked.played, streak.records)
            streak.calls, self._streak = self._in_use.calls, streak
        return asked.played

    def _commit(self, played: list[Played], records: list[EnvRecord]) -> None:
        """Make the turns part of the episodes."""
        by_id, pages = self._parts.records, self._parts.pages
        for each in played:
            page = pages.add(each.row, each.result)
            for index in each.result.begun():
                by_id[each.row.env_ids[index]].commit_page(page, index)
        for record in records:
            record.in_sync = True
        if pages.last.number >= self._is_due:
            self._is_due = pages.last.number + FAR
            catch_up(by_id.values(), FAR)


@dataclass(slots=True)
class _Streak:
    """Rows of the same environments, one after the other, at the same homes.

    Attributes:
        row_ids: The environments, in the order of the first row.
        env_ids: The same as a set.
        records: What is known of each.
        homes: Where they live, with their places in the row.
        workers: The generation of each lane that they were there with; none where all live in the main process.
        calls: How many calls there were at its last row.
        moves: How often environments had moved then.
    """

    row_ids: Sequence[int]
    env_ids: frozenset[int]
    records: list[EnvRecord]
    homes: Mapping[Lane | None, Sequence[int]]
    workers: dict[Lane, int]
    calls: int
    moves: int

    def holds(self, moves: int) -> bool:
        """Whether all still live there, after so many moves."""
        return self.moves == moves and all(lane.current == known for lane, known in self.workers.items())
