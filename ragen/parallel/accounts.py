"""What was played where, what it cost, and who waited for whom."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ragen.parallel.costs import CostMeter
from ragen.parallel.host import Outcome
from ragen.parallel.pool import Lane
from ragen.parallel.residents import Resident

_REMEMBERED = 256  # calls


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


class CallTime(NamedTuple):
    """What one call to play turns took.

    Attributes:
        seconds: Time in :meth:`~ragen.parallel.engine.Engine.play`.
        turns: Turns of single environments.
        own: The part of the time that main spent inside environments.
        slack: Seconds by which main was busy longer than the last lane, negative if it had to wait; None if no lane had
            turns to play.
    """

    seconds: float
    turns: int
    own: float
    slack: float | None


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
        self._calls: deque[CallTime] = deque(maxlen=_REMEMBERED)
        self._own = 0.0
        self._slack: float | None = None
        self._playing: set[str] = set()  # tags whose environments have turns in this round

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
                self._own += seconds

    def count_restart(self, lane: Lane) -> None:
        """Count a worker that has to be replaced."""
        self._tallies[lane.name].restarts += 1

    def measure(self, verb: str, by_tag: dict[str, list[Outcome]]) -> None:
        """Count what one home's share of a call cost."""
        for tag, members in by_tag.items():
            if verb == "play":
                self._playing.add(tag)
                self.costs[tag].add_turns(members)
            else:
                self.costs[tag].add_resets(members)

    def count_round(self, slack: float | None) -> None:
        """Count a round of turns, all of which were measured.

        Args:
            slack: See :class:`CallTime`.
        """
        while self._playing:
            self.costs[self._playing.pop()].add_call()
        if slack is not None:
            self._slack = slack + (self._slack or 0.0)

    def begin_call(self) -> None:
        """A call of :meth:`~ragen.parallel.engine.Engine.play` begins."""
        self._own, self._slack = 0.0, None

    def end_call(self, seconds: float, turns: int) -> None:
        """The call has ended."""
        if turns:
            self._calls.append(CallTime(seconds, turns, self._own, self._slack))

    def calls(self) -> list[CallTime]:
        """The calls since this was last asked, the last ones if they are very many."""
        taken = list(self._calls)
        self._calls.clear()
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
