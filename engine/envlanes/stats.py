"""Statistics: where turns were played, and their costs."""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import add
from typing import NamedTuple

from envlanes.environments import Environments, EnvRecord
from envlanes.episode.clock import Spent
from envlanes.episode.turn import named
from envlanes.lanes.lane import Lane
from envlanes.lanes.orders import Order

QUARANTINE = "quarantine"
"""Name prefix of quarantine workers, each of which hosts a single environment that may kill it."""

MANY = 8  # workers alike, from which a table shows them as one


class Costs(NamedTuple):
    """Time of the turns and the resets of a tag, wherever they were played."""

    turns: Spent = Spent()
    resets: Spent = Spent()

    def also(self, more: Costs) -> Costs:
        """The sum of both."""
        return Costs(self.turns.also(more.turns), self.resets.also(more.resets))

    @property
    def usual_s(self) -> float:
        """Usual seconds of a turn or of a reset, whichever takes longer."""
        return max(self.turns.usual_s, self.resets.usual_s)

    @property
    def busy(self) -> float:
        """See :attr:`.Spent.busy`."""
        return self.turns.also(self.resets).busy

    def describe(self) -> str:
        """The costs in words."""
        reset = f"{duration(self.resets.usual_s)} a reset" if self.resets.number else ""
        turn = f"{duration(self.turns.usual_s)} a turn" if self.turns.number else ""
        return ", ".join(filter(None, (turn, reset))) or "nothing measured yet"


_NOTHING = Costs()


@dataclass(frozen=True)
class LaneStats:
    """What one process has done since the engine was created.

    Attributes:
        lane: ``"main"``, ``"worker 0"``, ...
        pid: Process id on its machine, None while there is no process.
        env_types: Types of the environments that live there.
        envs: Number of environments that live there now.
        turns: Turns played.
        busy_s: Seconds spent inside environments.
        restarts: Number of workers that were replaced.
        node: Name of its machine; "" for this one.
    """

    lane: str
    pid: int | None
    env_types: tuple[str, ...]
    envs: int
    turns: int
    busy_s: float
    restarts: int
    node: str = ""


@dataclass(frozen=True)
class Work:
    """The work of environments since an engine was created.

    Attributes:
        seconds: Elapsed time of calls that reset environments or played turns.
        inside_s: Seconds inside environments; more than ``seconds`` if several worked at the same time.
        workers: Number of workers that had environments to play.
        start_s: The part of ``seconds`` in which calls waited for workers to start.
        costs: Costs of turns and resets, by tag.
        homes: ``"main"``, ``"workers"``, or ``"main and workers"``, by tag.
    """

    seconds: float = 0.0
    inside_s: float = 0.0
    workers: int = 0
    start_s: float = 0.0
    costs: Mapping[str, Costs] = field(default_factory=dict)
    homes: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: Work) -> Work:
        """Of two sets of environments that were played one after the other, such as for training and validation."""
        costs = dict(self.costs)
        for tag, more in other.costs.items():
            costs[tag] = costs.get(tag, Costs()).also(more)
        return Work(
            self.seconds + other.seconds,
            self.inside_s + other.inside_s,
            max(self.workers, other.workers),
            self.start_s + other.start_s,
            costs,
            {**self.homes, **other.homes},
        )

    def describe(self) -> str:
        """One line, such as ``environments: 11.3 s of work in 6.5 s (2 workers). A turn in workers: Code 35 ms``."""
        if not self.costs:
            return "environments: no turn was played"
        workers = ""
        if self.workers:
            one = self.workers == 1
            start = f"; {duration(self.start_s)} until {'it' if one else 'they'} had started" * (self.start_s > 0)
            workers = f" ({self.workers} worker{'s' * (not one)}{start})"
        turns: dict[str, list[str]] = defaultdict(list)
        for tag, costs in self.costs.items():
            turns[self.homes[tag]].append(f"{tag} {duration(costs.turns.usual_s) if costs.turns.number else 'none'}")
        homes = "; ".join(f"in {home}: {', '.join(each)}" for home, each in turns.items())
        return f"environments: {duration(self.inside_s)} of work in {duration(self.seconds)}{workers}. A turn {homes}"


def duration(seconds: float) -> str:
    """Seconds for people: two or three digits, with the unit that fits."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"


class Stats:
    """The statistics of one engine.

    Attributes:
        episode: Costs by tag since the last reset of all environments, for the placement.
    """

    def __init__(self, environments: Environments) -> None:
        self._environments, self._records = environments, environments.records
        self.episode: dict[str, Costs] = {}
        self._before: dict[str, Costs] = {}  # of episodes that were taken
        self._turns, self._restarts = Counter[str](), Counter[str]()  # by the name of a home
        self._busy_s: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._start_s = 0.0

    def take_episode(self) -> dict[str, Costs]:
        """The costs of the episode that ends; counting starts over."""
        taken, self._before, self.episode = self.episode, self.costs(), {}
        return taken

    def costs(self) -> dict[str, Costs]:
        """Costs since the engine was made, by tag."""
        tags = {**self._before, **self.episode}
        return {tag: self._before.get(tag, Costs()).also(self.episode.get(tag, Costs())) for tag in tags}

    def count_start(self, seconds: float) -> None:
        """Count seconds in which a call waited for workers to start."""
        with self._lock:
            self._start_s += seconds

    def count_restart(self, lane: Lane) -> None:
        """Count a worker that has to be replaced."""
        self._restarts[lane.name] += 1

    def count(self, lane: Lane | None, order: Order, spent: Mapping[str, Spent], busy_s: float) -> None:
        """Count what a home has carried out: the seconds that it was busy, and what resets or turns took by tag."""
        name = "main" if lane is None else lane.name
        self._busy_s[name] += busy_s
        if not order.counts:
            return
        for tag, more in spent.items():
            turns, resets = self.episode.get(tag, _NOTHING)
            if order.plays:
                turns = named(Spent, map(add, turns, more))
                self._turns[name] += more.number
            else:
                resets = named(Spent, map(add, resets, more))
            self.episode[tag] = named(Costs, (turns, resets))

    def work(self) -> Work:
        """The work of environments since the engine was created."""
        workers = sum(name != "main" and not name.startswith(QUARANTINE) for name in self._busy_s)
        costs = self.costs()
        inside_s = sum(each.turns.seconds + each.resets.seconds for each in costs.values())
        places: dict[str, set[str]] = defaultdict(set)
        for record in self._records.values():
            places[record.spec.tag].add("main" if record.lane is None else "workers")
        homes = {tag: " and ".join(sorted(places[tag])) or "main" for tag in costs}
        return Work(self._environments.passed_s, inside_s, workers, self._start_s, costs, homes)

    def lanes(self) -> list[LaneStats]:
        """What each home has done, main first, and which environments live there now."""
        homes: dict[str, list[EnvRecord]] = defaultdict(list)
        for record in self._records.values():
            homes[home_name(record.lane)].append(record)
        others = {*homes, *self._busy_s, *self._restarts} - {"main"}
        return [self._of(name, homes[name]) for name in ("main", *sorted(others, key=_in_order))]

    def _of(self, name: str, records: Sequence[EnvRecord]) -> LaneStats:
        types = tuple(sorted({record.spec.env_type for record in records}))
        lane = records[0].lane if records else None
        pid, node = (lane.pid, lane.node) if lane is not None else (os.getpid() if name == "main" else None, "")
        done = self._turns[name], self._busy_s.get(name, 0.0), self._restarts[name]
        return LaneStats(name, pid, types, len(records), *done, node)


def gathered(lanes: Sequence[LaneStats]) -> list[LaneStats]:
    """The same for tables: quarantine workers as one, and likewise many workers in a row that host the same types.

    A worker that was replaced has a row of its own.
    """
    rows: list[LaneStats] = []
    for (kind, *_), run in groupby(lanes, _kind):
        alike = list(run)
        if len(alike) <= (1 if kind == QUARANTINE else MANY):
            rows += alike
            continue
        first, last = (lane.lane.rpartition(" ")[2] for lane in (alike[0], alike[-1]))
        name = f"{QUARANTINE}, {len(alike)} in turn" if kind == QUARANTINE else f"workers {first} to {last}"
        types = tuple(sorted({env_type for lane in alike for env_type in lane.env_types}))
        sums = {each: sum(getattr(lane, each) for lane in alike) for each in ("envs", "turns", "busy_s", "restarts")}
        node = "" if kind == QUARANTINE else alike[0].node
        rows.append(LaneStats(name, None, types, node=node, **sums))
    return rows


def _kind(lane: LaneStats) -> tuple[object, ...]:
    kind = lane.lane.partition(" ")[0]
    return (kind,) if kind == QUARANTINE else (kind, lane.env_types, lane.node, lane.lane if lane.restarts else "")


def _in_order(name: str) -> tuple[str, int]:
    """By what a lane is, and then by its number: worker 10 after worker 9."""
    kind, _, number = name.rpartition(" ")
    return (kind, int(number)) if number.isdecimal() else (name, 0)


def home_name(lane: Lane | None) -> str:
    """``"main"``, or the name of a lane."""
    return lane.name if lane is not None else "main"
