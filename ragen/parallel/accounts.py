"""What was played where, what it cost, and who waited for whom."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ragen.parallel.costs import CostMeter
from ragen.parallel.host import Outcome
from ragen.parallel.pool import Lane
from ragen.parallel.residents import Resident


@dataclass(frozen=True)
class LaneStats:
    """What one home has done since the manager was made.

    Attributes:
        lane: ``"main"``, ``"lane 0"``, ...
        pid: Process id, None while there is no process.
        env_types: Types of the environments at home there.
        envs: How many environments are at home there now.
        turns: Turns played.
        busy_s: Seconds spent inside environments.
        restarts: Workers that had to be replaced.
    """

    lane: str
    pid: int | None
    env_types: tuple[str, ...]
    envs: int
    turns: int
    busy_s: float
    restarts: int


class PlayTime(NamedTuple):
    """What playing turns took, over a number of calls.

    Attributes:
        seconds: Time in :meth:`~ragen.parallel.engine.Engine.play`.
        turns: Turns of single environments.
        calls: The calls.
        own: The part of the time that main spent inside environments.
        shared: Calls in which lanes had turns to play.
        slack: Seconds by which main was busy longer than the last lane, summed over those; negative if it had to wait.
    """

    seconds: float = 0.0
    turns: int = 0
    calls: int = 0
    own: float = 0.0
    shared: int = 0
    slack: float = 0.0


@dataclass
class _Tally:
    turns: int = 0
    busy_s: float = 0.0
    restarts: int = 0


class Accounts:
    """The accounts of one engine.

    Attributes:
        costs: What was measured, by tag.
    """

    def __init__(self) -> None:
        """Nothing was played yet."""
        self.costs: dict[str, CostMeter] = defaultdict(CostMeter)
        self._tallies: dict[str, _Tally] = defaultdict(_Tally)
        self._played = PlayTime()

    def end_episode(self) -> None:
        """Begin to count a new episode."""
        for meter in self.costs.values():
            meter.end_episode()

    def count_outcomes(self, verb: str, lane: Lane | None, outcomes: Sequence[Outcome], accepted: int) -> None:
        """Count what a home was busy with, whatever came of it; of turns, only those that were accepted."""
        tally = self._tallies[home_name(lane)]
        seconds = sum([outcome.seconds for outcome in outcomes])
        tally.busy_s += seconds
        if verb == "play":
            tally.turns += accepted
            if lane is None:
                self._played = self._played._replace(own=self._played.own + seconds)

    def count_restart(self, lane: Lane) -> None:
        """Count a worker that has to be replaced."""
        self._tallies[lane.name].restarts += 1

    def measure(self, verb: str, by_tag: dict[str, list[Outcome]]) -> None:
        """Count what one home's share of a call cost."""
        for tag, members in by_tag.items():
            if verb == "play":
                self.costs[tag].add_turns(members)
            else:
                self.costs[tag].add_resets(members)

    def count_call(self, tags: Iterable[str], slack: float | None) -> None:
        """Count a round of turns.

        Args:
            tags: Whose environments played.
            slack: See :class:`PlayTime`; None if no lane took part.
        """
        for tag in tags:
            self.costs[tag].add_call()
        if slack is not None:
            played = self._played
            self._played = played._replace(shared=played.shared + 1, slack=played.slack + slack)

    def count_play(self, seconds: float, turns: int) -> None:
        """Count a whole call of :meth:`~ragen.parallel.engine.Engine.play`."""
        played = self._played
        self._played = played._replace(
            seconds=played.seconds + seconds, turns=played.turns + turns, calls=played.calls + 1
        )

    def play_time(self) -> PlayTime:
        """What was counted of turns since this was last asked."""
        taken, self._played = self._played, PlayTime()
        return taken

    def stats(self, residents: Iterable[Resident]) -> list[LaneStats]:
        """What each home has done, main first, and which of these environments live there now."""
        homes: dict[str, list[Resident]] = defaultdict(list, {"main": []})
        pids: dict[str, int | None] = {"main": os.getpid()}
        for resident in residents:
            name = home_name(resident.home)
            homes[name].append(resident)
            if resident.home is not None:
                pids[name] = resident.home.pid
        names = ["main", *sorted({*homes, *self._tallies} - {"main"})]
        return [self._stats_of(name, pids.get(name), homes[name]) for name in names]

    def _stats_of(self, name: str, pid: int | None, residents: list[Resident]) -> LaneStats:
        tally = self._tallies[name]
        types = tuple(sorted({resident.spec.env_type for resident in residents}))
        return LaneStats(name, pid, types, len(residents), tally.turns, tally.busy_s, tally.restarts)


def home_name(home: Lane | None) -> str:
    """``"main"``, or the name of a lane."""
    return home.name if home is not None else "main"
