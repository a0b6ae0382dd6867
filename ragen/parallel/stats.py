"""What was played where, and what it cost."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import get_ident

from ragen.parallel.env_record import EnvRecord
from ragen.parallel.episode.outcome import Outcome
from ragen.parallel.lanes.lane import Lane
from ragen.parallel.placement import CallTime, Episode
from ragen.parallel.quarantine import QUARANTINE


@dataclass(frozen=True)
class LaneStats:
    """What one home has done since the engine was made.

    Attributes:
        lane: ``"main"``, ``"lane 0"``, ...
        pid: Process id on its machine, None while there is no process.
        env_types: Types of the environments at home there.
        envs: How many environments are at home there now.
        turns: Turns played.
        busy_s: Seconds spent inside environments.
        restarts: Workers that had to be replaced.
        node: Name of the machine that it is on; "" for this one.
    """

    lane: str
    pid: int | None
    env_types: tuple[str, ...]
    envs: int
    turns: int
    busy_s: float
    restarts: int
    node: str = ""


@dataclass
class _Tally:
    turns: int = 0
    busy_s: float = 0.0
    restarts: int = 0


class Stats:
    """The statistics of one engine.

    Attributes:
        episode: What was measured since the last reset of all environments, for the placement.
        keeps_each: Whether the seconds inside each environment are kept until they are taken, for whoever sets it.
    """

    def __init__(self) -> None:
        self.episode = Episode()
        self.keeps_each = False
        self._each: dict[int, float] = defaultdict(float)  # by env_id
        self._tallies: dict[tuple[int, str], _Tally] = defaultdict(_Tally)  # by thread and home

    def take_episode(self) -> Episode:
        """What was measured so far; counting begins anew."""
        taken, self.episode = self.episode, Episode()
        return taken

    def count_restart(self, lane: Lane) -> None:
        """Count a worker that has to be replaced."""
        self._tally(lane).restarts += 1

    def count_outcomes(self, lane: Lane | None, outcomes: Sequence[Outcome], turns: int) -> float:
        """Count what a home was busy with, whatever came of it, and the turns among it; the seconds."""
        tally = self._tally(lane)
        seconds = sum([outcome[2] for outcome in outcomes])
        if self.keeps_each:
            for env_id, _, took, _ in outcomes:
                self._each[env_id] += took
        tally.busy_s += seconds
        tally.turns += turns
        return seconds

    def take_each(self, env_ids: Iterable[int]) -> list[float]:
        """Seconds spent inside each of these since they were last taken, whatever came of them."""
        return [self._each.pop(env_id, 0.0) for env_id in env_ids]

    def measure(self, tags: Mapping[str, Sequence[Outcome]], are_turns: bool) -> None:
        """Count what resets or turns of each tag have cost."""
        for tag, outcomes in tags.items():
            self.episode.add(tag, [(outcome[2], outcome[3]) for outcome in outcomes], are_turns)

    def count_call(self, call: CallTime, are_turns: bool) -> None:
        """Count a whole call that played turns, or reset all environments."""
        if are_turns:
            self.episode.count(call)
        else:
            self.episode.reset = call

    def _tally(self, lane: Lane | None) -> _Tally:
        return self._tallies[get_ident(), home_name(lane)]

    def lanes(self, records: Iterable[EnvRecord], of_this_thread: bool) -> list[LaneStats]:
        """What each home has done, main first, and which of these environments live there now.

        Only what was asked for in the calling thread counts, if so told.
        """
        tallies: dict[str, list[_Tally]] = defaultdict(list)
        for (thread, name), tally in self._tallies.items():
            if not of_this_thread or thread == get_ident():
                tallies[name].append(tally)
        homes: dict[str, list[EnvRecord]] = defaultdict(list, {"main": []})
        places: dict[str, tuple[int | None, str]] = {"main": (os.getpid(), "")}
        for record in records:
            name = home_name(record.lane)
            homes[name].append(record)
            if record.lane is not None:
                places[name] = record.lane.pid, record.lane.node
        names = ["main", *sorted({*homes, *tallies} - {"main"}, key=_in_order)]
        return [_stats_of(name, places.get(name, (None, "")), homes[name], tallies[name]) for name in names]


def gathered(lanes: Sequence[LaneStats]) -> list[LaneStats]:
    """The same, with what was done in quarantine as one: it has a lane for each environment, for a moment."""
    apart = [lane for lane in lanes if lane.lane.startswith(QUARANTINE)]
    if len(apart) < 2:
        return list(lanes)
    types = tuple(sorted({name for lane in apart for name in lane.env_types}))
    turns, busy = sum(lane.turns for lane in apart), sum(lane.busy_s for lane in apart)
    envs, restarts = sum(lane.envs for lane in apart), sum(lane.restarts for lane in apart)
    together = LaneStats(f"{QUARANTINE}, {len(apart)} in turn", None, types, envs, turns, busy, restarts)
    return [*(lane for lane in lanes if lane not in apart), together]


def _stats_of(name: str, place: tuple[int | None, str], records: list[EnvRecord], tallies: list[_Tally]) -> LaneStats:
    types = tuple(sorted({record.spec.env_type for record in records}))
    turns, busy = sum(tally.turns for tally in tallies), sum(tally.busy_s for tally in tallies)
    restarts, (pid, node) = sum(tally.restarts for tally in tallies), place
    return LaneStats(name, pid, types, len(records), turns, busy, restarts, node)


def _in_order(name: str) -> tuple[str, int]:
    """By what a lane is, and then by its number: lane 10 after lane 9."""
    kind, _, number = name.rpartition(" ")
    return (kind, int(number)) if number.isdecimal() else (name, 0)


def home_name(lane: Lane | None) -> str:
    """``"main"``, or the name of a lane."""
    return lane.name if lane is not None else "main"
