"""Statistics: where turns were played, and their costs."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from operator import add
from typing import Any, NamedTuple

from envlanes.environments import Environments, EnvRecord
from envlanes.episode.clock import Spent
from envlanes.episode.game import named
from envlanes.errors import counted
from envlanes.workers.orders import Order
from envlanes.workers.worker import Worker


class Costs(NamedTuple):
    """Time of the turns and the resets of a tag, wherever they were played."""

    turns: Spent = Spent()
    resets: Spent = Spent()

    # A tuple, since one is made for each tag and turn: a dataclass would be a call.
    def __add__(self, more: Any) -> Costs:
        """The sum of both, not a longer tuple."""
        return Costs(self.turns + more.turns, self.resets + more.resets)

    @property
    def usual_s(self) -> float:
        """Usual seconds of a turn or of a reset, whichever takes longer."""
        return max(self.turns.usual_s, self.resets.usual_s)

    @property
    def busy(self) -> float:
        """See :attr:`.Spent.busy`."""
        return (self.turns + self.resets).busy


@dataclass(frozen=True)
class LaneStats:
    """Statistics of one process since the engine was created.

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
        seconds: Elapsed time of calls.
        inside_s: Seconds inside environments; more than ``seconds`` if several worked at the same time.
        workers: Number of workers that had environments to play.
        start_s: The part of ``seconds`` in which calls waited for workers to start.
        costs: Costs of turns and resets, by tag.
        homes: ``"main"``, ``"workers"``, or ``"main and workers"``, by tag.
    """

    seconds: float
    inside_s: float
    workers: int
    start_s: float
    costs: Mapping[str, Costs]
    homes: Mapping[str, str]

    def __add__(self, other: Work) -> Work:
        """Of two sets of environments that were played one after the other, such as for training and validation."""
        return Work(
            self.seconds + other.seconds,
            self.inside_s + other.inside_s,
            max(self.workers, other.workers),
            self.start_s + other.start_s,
            _sums(self.costs, other.costs),
            {**self.homes, **other.homes},
        )

    def describe(self) -> str:
        """One line, such as ``2 workers: 11 s of turns in 6.5 s; started once in 0.3 s. Per turn in main: A 9 us``."""
        if not self.costs:
            return "no turn was played"
        who = counted(self.workers, "worker") if self.workers else "no workers"
        start = f"; started once in {duration(self.start_s)}" if self.start_s else ""
        turns: dict[str, list[str]] = defaultdict(list)
        for tag, costs in self.costs.items():
            turns[self.homes[tag]].append(f"{tag} {duration(costs.turns.usual_s) if costs.turns.number else 'none'}")
        homes = "; ".join(f"in {home}: {', '.join(each)}" for home, each in turns.items())
        steady = duration(self.seconds - self.start_s)
        return f"{who}: {duration(self.inside_s)} of turns in {steady}{start}. Per turn {homes}"


def duration(seconds: float) -> str:
    """Seconds for people: two or three digits, with the unit that fits."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            value = seconds / size
            return f"{value:.{int(value < 9.95)}f} {unit}"
    return f"{seconds:.{int(seconds < 99.95)}f} s"


class Stats:
    """The statistics of one engine; called with its lock held.

    Attributes:
        episode: Costs by tag since the last reset of all environments, for the placement.
        start_s: Seconds in which calls waited for workers to start.
        restarts: Number of processes that were replaced, by the name of their worker.
    """

    def __init__(self, environments: Environments) -> None:
        self._environments = environments
        self.episode: dict[str, Costs] = {}
        self._before: dict[str, Costs] = {}  # of episodes that were taken
        self.restarts, self._turns = Counter[str](), Counter[str]()
        self._busy_s: dict[str, float] = defaultdict(float)
        self.start_s = 0.0

    def take_episode(self) -> dict[str, Costs]:
        """The costs of the episode that ends; counting starts over."""
        taken, self._before, self.episode = self.episode, _sums(self._before, self.episode), {}
        return taken

    def count(self, worker: Worker | None, order: Order, spent: Mapping[str, Spent], busy_s: float) -> None:
        """Count what a home has carried out: the seconds that it was busy, and what resets or turns took by tag."""
        name = "main" if worker is None else worker.name
        self._busy_s[name] += busy_s
        if not order.counts:
            return
        for tag, more in spent.items():
            # Not by `Spent.__add__`: this is part of each turn, and a call costs more than five additions.
            turns, resets = self.episode.get(tag, _NOTHING)
            if order.plays:
                turns = named(Spent, map(add, turns, more))
                self._turns[name] += more.number
            else:
                resets = named(Spent, map(add, resets, more))
            self.episode[tag] = named(Costs, (turns, resets))

    def work(self) -> Work:
        """The work of environments since the engine was created."""
        costs = _sums(self._before, self.episode)
        inside_s = sum(each.turns.seconds + each.resets.seconds for each in costs.values())
        places: dict[str, set[str]] = defaultdict(set)
        for record in self._environments.records.values():
            places[record.spec.tag].add("main" if record.worker is None else "workers")
        homes = {tag: " and ".join(sorted(places[tag])) or "main" for tag in costs}
        workers = len(self._busy_s.keys() - {"main"})
        return Work(self._environments.passed_s, inside_s, workers, self.start_s, costs, homes)

    def workers(self) -> list[LaneStats]:
        """The work of each home, main first, and the environments that live there now."""
        homes: dict[str, list[EnvRecord]] = defaultdict(list)
        for record in self._environments.records.values():
            homes[home_name(record.worker)].append(record)
        rows = []
        names = {*homes, *self._busy_s, *self.restarts} - {"main"}
        for name in ("main", *sorted(names, key=lambda name: (len(name), name))):  # worker 10 after worker 9
            records = homes[name]
            worker, own = records[0].worker if records else None, os.getpid() if name == "main" else None
            types = tuple(sorted({record.spec.env_type for record in records}))
            done = self._turns[name], self._busy_s.get(name, 0.0), self.restarts[name]
            pid, node = (worker.pid, worker.node) if worker else (own, "")
            rows.append(LaneStats(name, pid, types, len(records), *done, node))
        return rows


_NOTHING = Costs()


def _sums(one: Mapping[str, Costs], other: Mapping[str, Costs]) -> dict[str, Costs]:
    return {tag: one.get(tag, _NOTHING) + other.get(tag, _NOTHING) for tag in {**one, **other}}


def home_name(worker: Worker | None) -> str:
    """``"main"``, or the name of a worker."""
    return "main" if worker is None else worker.name
