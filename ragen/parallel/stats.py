"""What was played where, and what it cost."""

from __future__ import annotations

import os
import statistics
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from threading import get_ident
from time import perf_counter
from typing import NamedTuple

from ragen.parallel.environments import Environments, EnvRecord
from ragen.parallel.episode.clock import Spent
from ragen.parallel.lanes.lane import Lane
from ragen.parallel.lanes.orders import Order
from ragen.parallel.settings import Mode
from ragen.parallel.this_process import usable_cpus

QUARANTINE = "quarantine"
"""What names of lanes begin with whose one environment may kill its worker."""

LATELY = 5  # episodes that show what is usual: of five, two that were disturbed decide nothing
REMEMBERED = 300  # calls of an episode
NOTICED = 0.2  # share of the time: a longer wait for processors is told
NO_FASTER = 0.05  # a smaller difference is no gain, and no loss
LONG_TURN = 1e-3  # seconds: what takes longer pays in workers, if there is enough of it
LONG_RUN = 2.0  # seconds of a run for which starting workers early would have cost little
MOSTLY = 0.3  # share of the time in which turns compute that mostly wait
FULL = 0.75  # share of their time in which workers are at work that leave no room for more turns
MANY = 8  # workers alike, from which a table shows them as one
BUSY = 0.9  # of a processor: what keeps it less busy than this is said to wait


class CallTime(NamedTuple):
    """What one call took that played turns, or reset environments.

    Attributes:
        seconds: Time of the whole call in the engine.
        turns: Turns of single environments, or resets.
        local_s: Seconds that main spent inside its environments.
        lane_s: The most seconds that one worker spent inside its environments.
        lanes: How many workers took part.
        idle_s: Seconds that main waited for workers, with nothing else to do.
    """

    seconds: float
    turns: int
    local_s: float = 0.0
    lane_s: float = 0.0
    lanes: int = 0
    idle_s: float = 0.0


class TagCosts(NamedTuple):
    """What all environments of a tag cost in an episode, wherever they were played.

    Attributes:
        seconds: Time inside environments, resets and turns together.
        reset_s: The part of it that resets took.
        waited_s: The part of it in which they waited for something else than a processor.
        turns: Turns of single environments.
        build_s: What the dearest reset took longer than a usual one: building the environments.
        queued_s: The part of it in which they waited for a processor of a busy machine.
        extra_s: Processor seconds beside it, where several child processes computed at once.
        resets: Resets of single environments.
    """

    seconds: float = 0.0
    reset_s: float = 0.0
    waited_s: float = 0.0
    turns: int = 0
    build_s: float = 0.0
    queued_s: float = 0.0
    extra_s: float = 0.0
    resets: int = 0

    @classmethod
    def of(cls, resets: Spent, turns: Spent) -> TagCosts:
        """The costs of these resets and turns."""
        both = resets.also(turns)
        queued_s = both.seconds - both.own_s
        return cls(
            both.seconds, resets.seconds, both.waited_s, turns.number, 0.0, queued_s, both.extra_s, resets.number
        )

    @property
    def per_turn(self) -> float:
        """Seconds of one turn of one environment, its part of the resets included."""
        return self.seconds / self.turns if self.turns else 0.0

    @property
    def per_call(self) -> float:
        """Seconds of one turn or of one reset of one environment: what is more."""
        turn = (self.seconds - self.reset_s) / self.turns if self.turns else 0.0
        return max(turn, self.reset_s / self.resets if self.resets else 0.0)

    @property
    def busy(self) -> float:
        """Processors that one of the environments keeps busy on a machine that is not; 1 for one that only computes."""
        own = self.seconds - self.queued_s
        return 1.0 + (self.extra_s - self.waited_s) / own if own > 0 else 1.0


class MeanCosts(NamedTuple):
    """What a turn and a reset of an environment cost on an idle machine, without the first one in each process.

    The last line of a run, the tables of ``-v``, ``ragen check`` and ``ragen list`` all show these figures: see
    :meth:`.Spent.without` and :attr:`.Spent.mean_s`.

    Attributes:
        turn_s, reset_s: Mean seconds; 0 for what was never done.
        waiting: The share of the time that was spent waiting for something else than a processor.
    """

    turn_s: float = 0.0
    reset_s: float = 0.0
    waiting: float = 0.0

    def describe(self) -> str:
        """The costs in words."""
        if not self.turn_s:
            return "no turn measured yet"
        reset = f", {duration(self.reset_s)} a reset" if self.reset_s else ""
        return f"{duration(self.turn_s)} a turn{reset}" + f", {self.waiting:.0%} of the time waiting" * (
            self.waiting > 1 - BUSY
        )


@dataclass
class Episode:
    """What was measured in an episode so far; filled by the engine.

    Attributes:
        reset: The call that began it; None if it was not measured.
        calls: The calls that played turns, in order.
        resets, turns: Of single environments, by tag.
        now: Those turns that belong to the current call.
    """

    reset: CallTime | None = None
    calls: list[CallTime] = field(default_factory=list)
    resets: dict[str, Spent] = field(default_factory=dict)
    turns: dict[str, Spent] = field(default_factory=dict)
    now: dict[str, Spent] = field(default_factory=dict)

    def count(self, call: CallTime) -> None:
        """Count a call that played turns; of very many the first ones are enough."""
        self.now = {}
        if len(self.calls) < REMEMBERED:
            self.calls.append(call)

    @property
    def tags(self) -> dict[str, TagCosts]:
        """Costs by tag."""
        tags = {**self.resets, **self.turns}
        return {tag: TagCosts.of(self.resets.get(tag, Spent()), self.turns.get(tag, Spent())) for tag in tags}

    def add(self, spent: Mapping[str, Spent], are_turns: bool) -> int:
        """Count turns or resets by tag; how many they are."""
        for kind in (self.turns, self.now) if are_turns else (self.resets,):
            for tag, more in spent.items():
                kind[tag] = kind[tag].also(more) if tag in kind else more
        return sum(more.number for more in spent.values())


class CostMeter:
    """What a tag usually costs in an episode: the median of the last ones."""

    def __init__(self) -> None:
        self._lately: list[TagCosts] = []
        self._dearest = 0.0
        self._resets = 0

    def note(self, costs: TagCosts) -> None:
        """Take down an episode; one in which no turn was played only shows what resets take."""
        self._dearest = max(self._dearest, costs.reset_s)
        self._resets += 1
        if costs.turns:
            self._lately = [*self._lately, costs][-LATELY:]

    def usual(self) -> TagCosts:
        """The costs of a usual episode; no turns while none was measured.

        What the first reset took is taken for building, since it is not known how much of it was.
        """
        if not self._lately:
            return TagCosts()
        usual = statistics.median_low(self._lately)
        if self._resets == 1:
            usual = usual._replace(seconds=usual.seconds - usual.reset_s, reset_s=0.0)
        return usual._replace(build_s=max(0.0, self._dearest - usual.reset_s))


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
class Gain:
    """The time that workers have saved: elapsed time compared with the estimated time of sequential stepping.

    Sequential time is estimated as the sum of the time that each reset and turn took where it was played, without the
    time that they waited for a processor because of each other (see :func:`queued_alone`), without what each process
    loaded at its first reset and its first turn, but for one of them, and without all but one of the resets that
    several processes did for a group whose members share one; and the overhead of the calls in which the main process
    played everything. A turn that computes may take longer beside others than alone, where virtual
    processors share a core or processes a memory: then it is an upper bound.

    Attributes:
        seconds: Elapsed time of calls that reset environments or played turns, including moves to workers.
        sequential_s: Estimated seconds of the same resets and turns, one by one.
        queued_s: The part of them that they would wait for a processor of a busy machine.
        turns: Turns of single environments.
        turn_s: Mean seconds of a turn, without the first of each tag in each process, which may have imported modules.
        workers: Number of workers that played turns or reset environments.
        main_took_part: Whether the main process did, too.
        mode: ``use_multiprocessing``.
        held: Reason other than cost that keeps all environments in the main process; "" for none.
        failures: How often an environment failed; what failed is not in ``sequential_s``.
        computed_s: Processor seconds of these resets and turns.
        resets: Resets of single environments.
        reset_s: Mean seconds of a reset, like ``turn_s``.
    """

    seconds: float = 0.0
    sequential_s: float = 0.0
    turns: int = 0
    turn_s: float = 0.0
    workers: int = 0
    main_took_part: bool = False
    mode: Mode = "auto"
    held: str = ""
    failures: int = 0
    queued_s: float = 0.0
    computed_s: float = 0.0
    resets: int = 0
    reset_s: float = 0.0

    def __add__(self, other: Gain) -> Gain:
        """Of two sets of environments that were played one after the other, such as for training and validation."""
        turns, resets = self.turns + other.turns, self.resets + other.resets
        return Gain(
            self.seconds + other.seconds,
            self.sequential_s + other.sequential_s,
            turns,
            (self.turns * self.turn_s + other.turns * other.turn_s) / turns if turns else 0.0,
            max(self.workers, other.workers),
            self.main_took_part or other.main_took_part,
            self.mode,
            self.held if self.held == other.held else "",
            self.failures + other.failures,
            self.queued_s + other.queued_s,
            self.computed_s + other.computed_s,
            resets,
            (self.resets * self.reset_s + other.resets * other.reset_s) / resets if resets else 0.0,
        )

    def describe(self) -> str:
        """The gain in one line, such as ``2 workers: 6.5 s in environments; one after the other about 11.3 s: ..``."""
        failed = f"{self.failures} failed attempt{'s' * (self.failures > 1)}"
        if not self.turns:
            return f"no turn was played to its end: {failed}" if self.failures else "no turn was played"
        is_busy = self.queued_s > NOTICED * self.sequential_s
        busy = f" ({duration(self.queued_s)} of it waiting for a processor of this busy machine)" if is_busy else ""
        if not self.workers:
            turn, reset = duration(self.turn_s), duration(self.reset_s)
            mostly_resets = self.resets * self.reset_s > self.turns * self.turn_s and self.reset_s >= LONG_TURN
            costs = MeanCosts(self.turn_s, self.reset_s).describe()
            spent = f"{duration(self.seconds)} in environments{busy}, {costs}"
            if self.mode is False:
                return f"kept in the main process, since use_multiprocessing is false: {spent}"
            if self.held:
                return f"kept in the main process, since {self.held}: {spent}"
            if self.failures and self.seconds > (1 + NOTICED) * self.sequential_s:
                return f"kept in the main process, with {failed}: {spent}; whether workers would have paid is not known"
            if self.turn_s >= LONG_TURN or mostly_resets:
                turns = f"{self.turns} turns of {turn} on average" if self.turns > 1 else f"1 turn of {turn}"
                turns = f"{self.resets} reset{'s' * (self.resets > 1)} of {reset}, {turns}" if mostly_resets else turns
                left = "once that was known, moving them would have cost more than it saved"
                if self.seconds >= LONG_RUN:  # such as turns of which only the last one of an episode is dear
                    left = (
                        "auto has not seen in time whether workers pay; if several play at once, "
                        "use_multiprocessing=true, or a cost_hint in the class, uses them from the start"
                    )
                return f"kept in the main process: {turns}; {left}"
            return f"kept in the main process: a turn costs {turn} on average, workers would cost more"
        who = f"{self.workers} worker{'s' * (self.workers > 1)}{' and the main process' * self.main_took_part}"
        ratio = self.sequential_s / self.seconds if self.seconds and self.sequential_s else 1.0
        if self.failures and ratio < 1 + NO_FASTER:
            return f"{who}: {duration(self.seconds)} in environments, with {failed}: whether workers paid is not known"
        own_s = self.sequential_s - self.queued_s  # spent computing and waiting
        computes = self.computed_s > own_s / 2  # beside others perhaps slower than alone
        if ratio >= 1 + NO_FASTER:
            verdict = f"{'up to ' * computes}{ratio:.1f} x faster"
            if self.mode is True and self.computed_s < MOSTLY * own_s and ratio > FULL * self.workers:
                verdict += (
                    "; turns mostly wait, so more workers would pay: set max_workers, or use_multiprocessing=auto"
                )
        elif ratio > 1 / (1 + NO_FASTER):
            verdict = "no faster"
        elif self.mode == "auto":
            verdict = f"trying workers cost about {duration(self.seconds - self.sequential_s)}"
        else:
            verdict = f"{'at least ' * computes}{1 / ratio:.1f} x slower, the start of workers included"
            verdict += "; use_multiprocessing=auto measures what pays off"
        alone = f"one after the other {'at most ' * computes}about {duration(self.sequential_s)}"
        spent = f"{duration(self.seconds)} in environments; {alone}"
        return f"{who}: {spent}{busy}: {verdict}"


def queued_alone(computed_s: float, queued_s: float, at_once: float, cpus: int) -> float:
    """How long work that was done side by side would wait for processors if it was done one after the other.

    A machine divides its processors evenly: where r processes want to compute, a second of computing takes r / cpus
    seconds, at least one. So each process of ours that computes beside a turn adds 1 / cpus of the turn's computing to
    its wait; the rest of the wait is due to other programs, and would occur without workers, too.

    Args:
        computed_s: Processor seconds of the work.
        queued_s: Seconds for which it waited for a processor.
        at_once: Number of processes of ours, itself included, that want to compute while it does.
        cpus: Number of processors.
    """
    return max(0.0, queued_s - computed_s * max(0.0, at_once - 1.0) / cpus)


def duration(seconds: float) -> str:
    """Seconds for people: two or three digits, with the unit that fits."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"


@dataclass
class _Tally:
    turns: int = 0
    busy_s: float = 0.0
    restarts: int = 0
    resets: int = 0
    computed_s: float = 0.0
    queued_s: float = 0.0


class Stats:
    """The statistics of one engine.

    Attributes:
        episode: What was measured since the last reset of all environments, for the placement.
    """

    def __init__(self, environments: Environments) -> None:
        self._records = environments.records
        self.episode = Episode()
        self._failures = 0
        self._firsts: dict[tuple[bool, str], dict[Lane | None, float]] = defaultdict(dict)  # turns or resets, tag, home
        self._out: dict[str, Spent] = defaultdict(Spent)  # on turns in workers, by tag
        self._tallies: dict[tuple[int, Lane | None], _Tally] = defaultdict(_Tally)  # by thread and home
        self._lock = threading.Lock()
        self._under_way, self._since = 0, 0.0  # calls, and when the first of them began
        self._overlap = False  # those calls
        self._passed_s = self._overhead_s = 0.0
        self._shared: dict[str, Spent] = defaultdict(Spent)  # on resets that members of a group load
        self._shared_again: dict[str, float] = defaultdict(float)  # and of those that they could have loaded
        self._turns: dict[str, Spent] = {}  # of episodes that were taken, by tag
        self._resets: dict[str, Spent] = {}

    @contextmanager
    def in_call(self) -> Iterator[None]:
        """The length of a call; of calls that overlap in several threads, the time counts once."""
        with self._lock:
            if not self._under_way:
                self._since = perf_counter()
            self._overlap = self._under_way > 0
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                if not self._under_way:
                    self._passed_s += perf_counter() - self._since

    def take_episode(self) -> Episode:
        """What was measured so far; counting starts over."""
        self._turns, self._resets = self._seen()
        taken, self.episode = self.episode, Episode()
        return taken

    def _seen(self) -> tuple[dict[str, Spent], dict[str, Spent]]:
        """Turns and resets since the engine was made, by tag."""
        every = Episode(turns=dict(self._turns), resets=dict(self._resets))
        every.add(self.episode.turns, are_turns=True)
        every.add(self.episode.resets, are_turns=False)
        return every.turns, every.resets

    def count_restart(self, lane: Lane) -> None:
        """Count a worker that has to be replaced."""
        self._tallies[get_ident(), lane].restarts += 1

    def count_failure(self) -> None:
        """Count a failure of an environment."""
        self._failures += 1

    def count(self, lane: Lane | None, order: Order, spent: Mapping[str, Spent], busy_s: float) -> None:
        """Count what a home has carried out: the seconds that it was busy, and what resets or turns took by tag."""
        tally = self._tallies[get_ident(), lane]
        tally.busy_s += busy_s
        if order.counts:
            for tag, more in spent.items():
                self._firsts[order.plays, tag].setdefault(lane, more.first_own)
                if lane is not None and order.plays:
                    self._out[tag] = self._out[tag].also(more)
                tally.computed_s += more.own_s - more.waited_s
                tally.queued_s += more.seconds - more.own_s
            number = self.episode.add(spent, order.plays)
            tally.turns += number * order.plays
            tally.resets += number * (not order.plays)

    def count_call(self, call: CallTime, are_turns: bool) -> None:
        """Count a whole call that played turns, or reset all environments."""
        if not call.lanes and not self._overlap:
            self._overhead_s += call.seconds - call.local_s
        if are_turns:
            self.episode.count(call)
        else:
            self.episode.reset = call

    def count_shared(self, shared: Mapping[tuple[str, int, int | None], Sequence[float]]) -> None:
        """Count resets that one after the other would have been one: seconds by tag, group and seed.

        Members of a group load what the first one saves after its reset, if they are reset in the same process.
        """
        for (tag, *_), seconds in shared.items():
            self._shared_again[tag] += sum(seconds) - max(seconds)
            self._shared[tag] = self._shared[tag].also(Spent(len(seconds), sum(seconds)))

    def gain(self, mode: Mode, held: str = "") -> Gain:
        """The time that workers have saved since the engine was made; see :class:`Gain` for the arguments."""
        played = {home_name(lane): tally for (_, lane), tally in self._tallies.items() if tally.turns or tally.resets}
        workers = sum(name != "main" and not name.startswith(QUARANTINE) for name in played)
        turns, resets = self._seen()
        kinds, every = ((True, turns), (False, resets)), [*turns.values(), *resets.values()]
        own_s = sum(seen.own_s for seen in every)
        own_s -= sum(self._done_again(are_turns, tag, seen[tag]) for are_turns, seen in kinds for tag in seen)
        computed_s, queued_s = self._queued_alone(workers + ("main" in played))
        return Gain(
            seconds=self._passed_s,
            sequential_s=own_s + queued_s + self._overhead_s,
            turns=sum(seen.number for seen in turns.values()),
            turn_s=self._later(True, turns).mean_s,
            workers=workers,
            main_took_part="main" in played,
            mode=mode,
            held=held,
            failures=self._failures,
            queued_s=queued_s,
            computed_s=computed_s,
            resets=sum(seen.number for seen in resets.values()),
            reset_s=self._later(False, resets).mean_s,
        )

    def _queued_alone(self, processes: int) -> tuple[float, float]:
        """Processor seconds so far, and how long they would wait for a processor without workers.

        Workers that have waited for something else tend to go on in the same moment, in which all of them compute.
        No longer wait is assumed than the processors could have filled: a larger gain would be impossible.
        """
        main, others = _Tally(), _Tally()
        for (_, lane), tally in self._tallies.items():
            whole = main if lane is None else others
            whole.computed_s += tally.computed_s
            whole.queued_s += tally.queued_s
        computed_s, cpus = main.computed_s + others.computed_s, usable_cpus()
        at_once = (computed_s + main.queued_s + others.queued_s) / self._passed_s if self._passed_s else 1.0
        queued_s = queued_alone(main.computed_s, main.queued_s, at_once, cpus)
        queued_s += queued_alone(others.computed_s, others.queued_s, max(at_once, processes), cpus)
        return computed_s, max(0.0, min(queued_s, cpus * self._passed_s - computed_s))

    def costs(self) -> dict[str, MeanCosts]:
        """What a turn and a reset cost since the engine was made, by tag."""
        turns, resets = self._seen()
        costs = {}
        for tag in {**resets, **turns}:
            of_turns, of_resets = turns.get(tag, Spent()), resets.get(tag, Spent())
            turn, reset = self._later(True, {tag: of_turns}), self._later(False, {tag: of_resets})
            costs[tag] = MeanCosts(turn.mean_s, reset.mean_s, 1.0 - of_resets.also(of_turns).busy)
        return costs

    def _later(self, are_turns: bool, seen: Mapping[str, Spent]) -> Spent:
        """Turns or resets of tags, without the first of each tag in each process."""
        later = Spent()
        for tag, each in seen.items():
            later = later.also(each.without(self._firsts[are_turns, tag].values()))
        return later

    def _done_again(self, are_turns: bool, tag: str, seen: Spent) -> float:
        """Seconds of turns or resets that one process alone would not have spent.

        What each process loads at first: by how much the first ones, of all processes but one, took longer than others.
        And resets that several processes did for one group. The latter may be the former, so the larger one counts.
        """
        shared_s = 0.0 if are_turns or not seen.seconds else self._shared_again[tag] * seen.own_s / seen.seconds
        return max(self._loaded_again(are_turns, tag, seen), shared_s)

    def _loaded_again(self, are_turns: bool, tag: str, seen: Spent) -> float:
        firsts = self._firsts[are_turns, tag]
        in_workers = [seconds for lane, seconds in firsts.items() if lane is not None]
        if seen.number <= len(firsts) or len(firsts) < 2:
            return 0.0
        usual_s = seen.without(firsts.values()).mean_s
        out = self._out[tag]
        if are_turns and out.number > len(in_workers):  # since main may have played turns of another kind
            usual_s = out.without(in_workers).mean_s
        if not are_turns and (shared := self._shared[tag]).number:  # most of the others are loaded
            usual_s = max(usual_s, shared.seconds / shared.number)
        loaded_s = max(0.0, sum(in_workers) - len(in_workers) * usual_s)
        return loaded_s if None in firsts else loaded_s * (1 - 1 / len(in_workers))

    def lanes(self) -> list[LaneStats]:
        """What each home has done, main first, and which environments live there now."""
        tallies: dict[str, list[_Tally]] = defaultdict(list)
        for (_, lane), tally in self._tallies.items():
            tallies[home_name(lane)].append(tally)
        homes: dict[str, list[EnvRecord]] = defaultdict(list, {"main": []})
        places: dict[str, tuple[int | None, str]] = {"main": (os.getpid(), "")}
        for record in self._records.values():
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
    return [*(lane for lane in lanes if lane not in apart), _added(f"{QUARANTINE}, {len(apart)} in turn", apart)]


def alike_together(lanes: Sequence[LaneStats]) -> list[LaneStats]:
    """The same, with many workers in a row that host the same types and were never replaced as one: with their sums."""
    together: list[LaneStats] = []
    for (is_worker, *_), run in groupby(
        lanes, lambda lane: (lane.lane.startswith("worker"), lane.env_types, lane.node)
    ):
        alike = list(run)
        if len(alike) <= MANY or not is_worker or any(lane.restarts for lane in alike):
            together += alike
            continue
        first, last = (lane.lane.rpartition(" ")[2] for lane in (alike[0], alike[-1]))
        together.append(replace(_added(f"workers {first} to {last}", alike), node=alike[0].node))
    return together


def _added(name: str, lanes: Sequence[LaneStats]) -> LaneStats:
    """Several as one of this name, with their sums."""
    types = tuple(sorted({env_type for lane in lanes for env_type in lane.env_types}))
    turns, busy_s = sum(lane.turns for lane in lanes), sum(lane.busy_s for lane in lanes)
    envs, restarts = sum(lane.envs for lane in lanes), sum(lane.restarts for lane in lanes)
    return LaneStats(name, None, types, envs, turns, busy_s, restarts)


def _stats_of(name: str, place: tuple[int | None, str], records: list[EnvRecord], tallies: list[_Tally]) -> LaneStats:
    types = tuple(sorted({record.spec.env_type for record in records}))
    turns, busy = sum(tally.turns for tally in tallies), sum(tally.busy_s for tally in tallies)
    restarts, (pid, node) = sum(tally.restarts for tally in tallies), place
    return LaneStats(name, pid, types, len(records), turns, busy, restarts, node)


def _in_order(name: str) -> tuple[str, int]:
    """By what a lane is, and then by its number: worker 10 after worker 9."""
    kind, _, number = name.rpartition(" ")
    return (kind, int(number)) if number.isdecimal() else (name, 0)


def home_name(lane: Lane | None) -> str:
    """``"main"``, or the name of a lane."""
    return lane.name if lane is not None else "main"
