"""A machine that only pretends to play: how long calls take is worked out, so that a test of ``auto`` is repeatable."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ragen.parallel.episode.clock import Usage, spent_on
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import RAGEN
from ragen.parallel.placement import CallTime, Episode, Homes, Limits, Placement

Cost = float | Callable[[int, int, int], float]  # seconds, or seconds by episode, call, and env_id


@dataclass
class Tag:
    """Environments that are alike; times in seconds.

    Attributes:
        envs: How many there are.
        turn: What a turn costs.
        reset: What a reset costs.
        build: What building costs.
        sent: What a turn that is sent costs main and the lane on top, each.
        waits: Part of it that is waiting, 0 to 1.
        hint: The class's ``cost_hint``.
    """

    envs: int
    turn: Cost
    reset: float = 0.0
    build: float = 0.0
    sent: float = 1.5e-6
    waits: float = 0.0
    hint: str | None = None


@dataclass
class Machine:
    """Processors, and what an engine costs on them; times in seconds.

    Attributes:
        cpus: Processors, by episode.
        keeping: Main's bookkeeping of a turn.
        calling: Main's bookkeeping of a call.
        message: What each lane that takes part costs main in a call.
        round_trip: Until a lane with nothing to do has answered.
        slowness: Factor on what is computed in lanes.
        noise: Relative spread of all that is computed.
        hiccups: Chance that something else has a processor for 20 ms in a call.
        start: Seconds until workers that were asked for are ready.
        speed: Factor on all that is computed.
    """

    cpus: Callable[[int], int] = lambda episode: 2
    keeping: float = 3e-6
    calling: float = 1e-4
    message: float = 0.0
    round_trip: float = 3e-4
    slowness: float = 1.0
    noise: float = 0.0
    hiccups: float = 0.0
    start: float = 0.4
    speed: float = 1.0


@dataclass
class Played:
    """An episode: where environments lived when it began, how many moved, and what it took but for hiccups."""

    homes: Homes
    moved: int
    seconds: float
    alone_s: float


@dataclass
class Simulation:
    """Plays episodes as the placement has them.

    Attributes:
        tags: The environments.
        machine: What they are played on.
        workers: ``max_workers``.
        most: Workers that ``auto`` may start, where that is another number.
        calls: Calls of an episode, by its number.
        is_known: Whether ``auto`` knows how many there are.
        played: What came of each episode.
    """

    tags: dict[str, Tag]
    machine: Machine = field(default_factory=Machine)
    workers: int = 2
    most: int | None = None
    calls: Callable[[int], int] = lambda episode: 5
    is_known: bool = False
    sequential: Iterable[str] = ()
    seed: int = 1
    played: list[Played] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.specs: list[EnvSpec] = []
        for name, tag in self.tags.items():
            kind = type(name, (), {"cost_hint": tag.hint})
            for _ in range(tag.envs):
                self.specs.append(EnvSpec(len(self.specs), len(self.specs) // 4, name, name.lower(), kind, None, RAGEN))
        turns = self.calls(0) if self.is_known else None
        limits = Limits(self.most or self.workers, self.machine.cpus(0), turns=turns)
        self.placement = Placement(self.specs, list(self.sequential), limits)
        self._asked: list[float] = []  # since when, for each worker
        self._now = 0.0
        self._last = Episode()
        self._homes: Homes = {spec.env_id: None for spec in self.specs}
        self._built: set[int] = set()
        self._known: tuple[Homes, dict[tuple[str, int | None], set[int]]] = ({}, {})
        self._late = 0.0

    def run(self, episodes: int) -> list[Played]:
        """Play that many more episodes; what came of them."""
        for _ in range(episodes):
            self._play(len(self.played))
        return self.played[-episodes:]

    def out(self) -> dict[str, float]:
        """Part of each tag that lives in lanes."""
        away = Counter(spec.tag for spec in self.specs if self._homes[spec.env_id] is not None)
        return {name: away[name] / tag.envs for name, tag in self.tags.items()}

    def alone(self, number: int = 0) -> float:
        """Seconds of an episode in main, undisturbed."""
        return self._episode_s(dict.fromkeys(self._homes), number)

    def all_out(self, number: int = 0) -> float:
        """Seconds of an undisturbed episode with all environments in lanes, as ``use_multiprocessing: true`` has it."""
        return self._episode_s({spec.env_id: spec.env_id % self.workers for spec in self.specs}, number)

    def _play(self, number: int) -> None:
        self._late = 0.0
        before = dict(self._homes)
        self._homes = self.placement.at_reset("auto", self._last, lanes_ready=self._ready())
        self._ask()
        self._last = episode = Episode()
        moved = [env_id for env_id, home in self._homes.items() if home != before[env_id] or env_id not in self._built]
        self._built.update(self._homes)
        begun = self._homes
        episode.reset = self._play_call(number, -1, episode, set(moved))
        for call in range(self.calls(number)):
            homes = self.placement.before_turn(episode, lanes_ready=self._ready())
            self._ask()
            late: set[int] = set()
            if homes is not None:
                late = {env_id for env_id in homes if homes[env_id] != self._homes[env_id]}
                self._homes = homes
            episode.count(self._play_call(number, call, episode, late))
        seconds = episode.reset.seconds + sum(call.seconds for call in episode.calls) - self._late
        count = sum(home != before[env_id] for env_id, home in begun.items())
        self.played.append(Played(begun, count, seconds, self.alone(number)))

    def _play_call(self, number: int, call: int, episode: Episode, built: set[int]) -> CallTime:
        """Play a call, piece by piece where the placement wants that, and count it."""
        left, parts = set(self._homes), list[CallTime]()
        while left:
            homes = self.placement.within_call(episode, left, call < 0, lanes_ready=self._ready())
            self._ask()
            if homes is not None:
                moved = {env_id for env_id in homes if homes[env_id] != self._homes[env_id]}
                self._homes = {**self._homes, **homes}
                built = built | moved
            here = [spec for spec in self.specs if spec.env_id in left and self._homes[spec.env_id] is None]
            piece = self.placement.piece(episode, here, call < 0)
            now = left if len(piece) == len(here) else {spec.env_id for spec in piece}
            whole = len(now) == len(self._homes)
            played = self._homes if whole else {each: self._homes[each] for each in now}
            parts.append(self._call(played, number, call, episode, built & now))
            self._now += parts[-1].seconds
            left = left - now
        seconds, turns, local, lane, lanes, idle = zip(*parts, strict=True)
        return CallTime(sum(seconds), sum(turns), sum(local), sum(lane), max(lanes), sum(idle))

    def _ready(self) -> int:
        return sum(self._now - since >= self.machine.start for since in self._asked)

    def _ask(self) -> None:
        self._asked += [self._now] * (self.placement.lanes_to_start - len(self._asked))

    def _episode_s(self, homes: Homes, number: int) -> float:
        noise, hiccups = self.machine.noise, self.machine.hiccups
        self.machine.noise = self.machine.hiccups = 0.0
        seconds = sum(self._call(homes, number, call).seconds for call in range(-1, self.calls(number)))
        self.machine.noise, self.machine.hiccups = noise, hiccups
        return seconds

    def _call(
        self, homes: Homes, number: int, call: int, episode: Episode | None = None, built: Iterable[int] = ()
    ) -> CallTime:
        """Play a call (-1 is the reset) and count it."""
        machine, cpus = self.machine, self.machine.cpus(number)
        waiting: dict[int | None, float] = defaultdict(float)  # seconds of waiting inside environments, by home
        computing: dict[int | None, float] = defaultdict(float)  # and of computing
        working: dict[int | None, float] = defaultdict(float)  # seconds that need a processor, by home
        sent = 0.0
        for (name, home), members in self._parties(homes).items():
            tag = self.tags[name]
            new = members & set(built)
            each = self._inside(tag, members, number, call)
            seconds = sum(each) + tag.build * len(new)
            if new and call >= 0:  # in mid-episode they are replayed
                seconds += sum(sum(self._inside(tag, new, number, past)) for past in range(-1, call))
            slower = machine.speed * self._spread() * (1.0 if home is None else machine.slowness)
            waited, computed = seconds * tag.waits, seconds * (1 - tag.waits) * slower
            waiting[home] += waited
            computing[home] += computed
            away = 0.0 if home is None else tag.sent * machine.speed * len(members)
            sent += away
            working[home] += away + computed
            if episode is not None:
                more = (seconds - sum(each)) / len(members)
                longer = (waited + computed) / seconds if seconds else 0.0
                times = [(one + more) * longer for one in each]
                spent = spent_on(times, Usage(computed, waited), waited + computed)
                episode.add({name: spent}, call >= 0)
        crowded = max(1.0, sum(working.values()) / cpus / max(1e-9, *working.values()))
        busy = defaultdict(float, {home: waiting[home] + computing[home] * crowded for home in waiting})
        lanes = [home for home in busy if home is not None]
        ends = [waiting[home] + working[home] * crowded + machine.round_trip * machine.speed for home in lanes]
        playing = max([busy[None], *ends])
        late, within = self._hiccup()
        sent += machine.message * len(lanes) * machine.speed
        keeping = machine.speed * self._spread() * (machine.keeping * len(homes) + machine.calling)
        lane_s = max((busy[home] for home in lanes), default=0.0)
        idle_s = playing - busy[None] if lanes else 0.0
        seconds = sent + keeping + playing + late
        return CallTime(seconds, len(homes), busy[None] + within, lane_s, len(lanes), idle_s)

    def _parties(self, homes: Homes) -> dict[tuple[str, int | None], set[int]]:
        """Who lives with whom, by tag and home."""
        if self._known[0] is not homes:
            parties: dict[tuple[str, int | None], set[int]] = defaultdict(set)
            for spec in [self.specs[env_id] for env_id in homes]:
                parties[spec.tag, homes[spec.env_id]].add(spec.env_id)
            self._known = homes, parties
        return self._known[1]

    def _inside(self, tag: Tag, members: set[int], number: int, call: int) -> list[float]:
        """Seconds inside each of these environments."""
        if call < 0:
            return [tag.reset] * len(members)
        if callable(tag.turn):
            return [tag.turn(number, call, env_id) for env_id in sorted(members)]
        return [tag.turn] * len(members)

    def _hiccup(self) -> tuple[float, float]:
        """Seconds in which something else has the processor, and those of them that pass inside an environment."""
        if not self.machine.hiccups or self._random.random() >= self.machine.hiccups:
            return 0.0, 0.0
        self._late += 0.02
        return 0.02, self._random.choice([0.0, 0.02])

    def _spread(self) -> float:
        return max(0.5, self._random.gauss(1.0, self.machine.noise)) if self.machine.noise else 1.0


def random_simulation(seed: int) -> Simulation:
    """Any tags on any machine: 1 to 16 processors, turns of 2 us to 50 ms, computing, waiting or both.

    ``all_out`` has as many workers as ``use_multiprocessing: true`` would start; ``auto`` may start 64.
    """
    draw = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    cpus, calls, tags = draw.choice([1, 2, 2, 4, 8, 16]), draw.choice([1, 3, 6, 6, 10, 30]), {}
    for number in range(draw.choice([1, 1, 1, 2, 3])):
        turn = between(2e-6, 0.05)
        reset, build = draw.choice([0.0, turn, between(1e-6, 0.02)]), draw.choice([0.0, 0.0, turn])
        waits = draw.choice([0.0, 0.0, 0.0, 1.0, 1.0, draw.random()])
        tags[f"T{number}"] = Tag(int(between(4, 257)), turn, reset, build, between(1e-6, 1e-5), waits)
    machine = Machine(
        cpus=lambda episode: cpus,
        message=between(3e-5, 2e-4),
        round_trip=between(1e-4, 2e-3),
        slowness=draw.choice([1.0, 1.0, 1.3, 2.0]),
        noise=draw.choice([0.0, 0.03]),
        hiccups=draw.choice([0.0, 0.0, 0.02]),
        start=0.4,
    )
    return Simulation(
        tags, machine, min(8, cpus), most=64, calls=lambda episode: calls, is_known=draw.random() < 0.5, seed=seed
    )
