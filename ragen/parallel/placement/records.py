"""How plans did: what the rule of :mod:`~ragen.parallel.placement.auto` remembers from episode to episode."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ragen.parallel.placement.costs import LATELY, CallTime

PAUSE = 16  # episodes until what lost is tried again, for each usual episode's time that the try costs


@dataclass(frozen=True)
class Plan:
    """A way to place tags.

    Attributes:
        out: Tags of which a part lives in lanes.
        lanes: Number of lanes.
        share: Part of those tags' environments that stays in main, 0 to 1.
    """

    out: frozenset[str] = frozenset()
    lanes: int = 0
    share: float = 1.0

    @staticmethod
    def even(out: Iterable[str], lanes: int) -> Plan:
        """A plan in which main plays as much of these tags as each lane."""
        return Plan(frozenset(out), lanes, 1 / (lanes + 1))


ALL_MAIN = Plan()


@dataclass(frozen=True)
class Record:
    """How a plan did.

    Attributes:
        calls: The last calls at each place of an episode.
        losses: How often in a row it lost.
        due: Episode from which it may be tried.
    """

    calls: Mapping[int, tuple[CallTime, ...]] = field(default_factory=dict)
    losses: int = 0
    due: int = 0

    @property
    def episodes(self) -> int:
        """Number of episodes that it is known from, as far as they are remembered."""
        return max((len(calls) for calls in self.calls.values()), default=0)

    @property
    def overhead_s(self) -> float:
        """Usual seconds of a turn that passed outside of main's environments; 0 while nothing is known."""
        calls = [call for known in self.calls.values() for call in known]
        return statistics.median_low([(call.seconds - call.local_s) / call.turns for call in calls]) if calls else 0.0

    def noted(self, calls: Mapping[int, CallTime]) -> Record:
        """With an episode's calls, by their places."""
        new = {place: (*self.calls.get(place, ()), call)[-LATELY:] for place, call in calls.items()}
        return replace(self, calls={**self.calls, **new})

    def usual(self, measure: Callable[[CallTime], float], lately: int = LATELY) -> float:
        """What is usual for an episode, going by the last ones."""
        return sum(calls[-1].turns * _per_turn(calls[-lately:], measure) for calls in self.calls.values())

    def against(self, other: Record) -> float | None:
        """The time that calls take here, relative to those at the same places there; None if there are none."""
        places = self.calls.keys() & other.calls.keys()
        turns = {place: self.calls[place][-1].turns for place in places}
        here, there = (sum(turns[place] * record.turn_s(place) for place in places) for record in (self, other))
        return here / there if there else None

    def turn_s(self, place: int) -> float:
        """Usual seconds of a turn at a place, or at the last one that is known; one must be."""
        return _per_turn(self.calls.get(place) or self.calls[max(self.calls)], lambda call: call.seconds)


@dataclass(frozen=True)
class State:
    """All that is known, and the plan that follows from it.

    Attributes:
        now: The plan that is followed.
        kept: The plan to beat; another one than ``now`` while that is tried.
        records: How plans did, by the tags that are out.
        episode: Number of the episode, from 1.
        steady: How many episodes were played just as now planned.
        starting: Lanes that should be started, since a plan waits for them.
    """

    now: Plan = ALL_MAIN
    kept: Plan = ALL_MAIN
    records: Mapping[frozenset[str], Record] = field(default_factory=dict)
    episode: int = 0
    steady: int = 0
    starting: int = 0

    @property
    def is_trying(self) -> bool:
        """Whether the plan that is followed is not the one to beat."""
        return self.now.out != self.kept.out

    def record(self, plan: Plan) -> Record:
        """How a plan did."""
        return self.records.get(plan.out, Record())

    def noted(self, calls: Mapping[int, CallTime]) -> State:
        """With calls that were played as now planned, by their places in the episode."""
        return self._with(self.now, self.record(self.now).noted(calls))

    def trying(self, plan: Plan) -> State:
        """With a plan to try, about which nothing is known that was true once."""
        return replace(self._with(plan, replace(self.record(plan), calls={})), now=plan, steady=0)

    def keeping(self, plan: Plan) -> State:
        """With a plan to beat, which is followed."""
        return replace(self, now=plan, kept=plan, steady=self.steady if plan == self.now else 0)

    def sharing(self, plan: Plan) -> State:
        """With another share of the plan that is followed."""
        return replace(self, now=plan, kept=self.kept if self.is_trying else plan, steady=0)

    def lost(self, plan: Plan, cost: float) -> State:
        """With a plan that lost, and is not to be tried for a while; a try costs so many usual episodes."""
        record = self.record(plan)
        due = self.episode + round(PAUSE * (1 + max(0.0, cost)) * 2**record.losses)
        return self._with(plan, replace(record, losses=record.losses + 1, due=due))

    def won(self, plan: Plan) -> State:
        """With a plan whose losses are forgotten."""
        return self._with(plan, replace(self.record(plan), losses=0))

    def _with(self, plan: Plan, record: Record) -> State:
        return replace(self, records={**self.records, plan.out: record})


def _per_turn(calls: Sequence[CallTime], measure: Callable[[CallTime], float]) -> float:
    """The median for one turn, the lower one of two."""
    return statistics.median_low([measure(call) / call.turns for call in calls])
