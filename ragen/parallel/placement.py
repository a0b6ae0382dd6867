"""Placement: which environments the main process plays itself, and how many workers play the others.

``use_multiprocessing: false`` keeps all environments in main, ``true`` sends all to workers except
``sequential_env_types``, and ``"auto"`` sends those for which measurements show a gain. The rule of ``"auto"`` is a few
pure functions that map measurements and a :class:`State` to the next state; :class:`Placement` keeps that state for one
engine, and turns plans into homes of environments.

A *plan* keeps all environments in main, or shares those of the most expensive tags between main and workers. One plan
is *kept*; another one is *tried* now and then, and becomes the kept one if it turns out to be faster:

    kept        tried                          when                                      wins if it takes
    all main    the plan of the best forecast  the forecast saves a tenth of the time    at most 0.9 of the time
    shared      another shared plan            likewise                                  at most 0.9 of the time
    shared      all main                       workers became slower than main once was, no longer
                                               or main was not timed for long

A forecast only selects which plan to try; measurements decide. A try lasts one episode, or two if workers did not win
the first one. A plan that lost is not tried again for a while, which grows with the cost of the try and doubles each
time. Environments are moved, for a try or for a better share, only once building them elsewhere costs at most a tenth
of the time played.

Times are compared call by call, each by the median of the calls at the same place in the last episodes, so that a
disturbed call, code that runs for the first time, or an episode of another length decides nothing. A shared plan must
also beat the time that its own turns would take in main now, in case main was slowed down when it was timed.

Three decisions do not wait for the next reset:

- In the first episode main plays its reset and its first turn piece by piece, and looks up from any later turn that
  takes long, such as grading in the end. Workers are started as soon as a few environments show that the rest takes
  much longer than starting workers, which take over the rest when they are up (:func:`first_look`). This matters
  because a rollout or an evaluation has only one episode.
- In any episode, environments return to main once workers have lost as much time as returning takes, or a tenth of an
  episode if only its light turns were played (:func:`break_off`).
- Main's share of the tags in workers starts even, and is adjusted so that main and workers finish together.

The number of workers depends on how busy the environments keep a processor: as many as there are processors for
environments that compute, and more for those that wait (:meth:`Limits.workers`).

Limitation: if all environments have an expensive turn at the same time, but in a different call of each episode, the
gain is not detected after the first episode, and their tags stay in main.
"""

from __future__ import annotations

import functools
import logging
import statistics
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf, sqrt

from ragen.parallel.episode.clock import Spent
from ragen.parallel.episode.spec import EnvSpec, by_tag
from ragen.parallel.settings import Mode, Settings
from ragen.parallel.stats import LATELY, CallTime, CostMeter, Episode, MeanCosts, TagCosts
from ragen.parallel.this_process import usable_cpus

log = logging.getLogger(__name__)

FASTER = 0.9  # ratio of times: a smaller difference is neither certain nor worth a move
MORE = 1.25  # ratio of worker counts that is worth a move, if environments can use more
AHEAD = 4  # minimum number of turns expected of an episode, unless it is known to be shorter
RESET = -1  # the place of the reset among an episode's calls
NEVER = sys.maxsize  # a place that no call of an episode has
PAUSE = 16  # episodes until a plan that lost is tried again, per usual episode's time that the try costs
START_S = 0.3  # seconds that workers take to start
MESSAGE_S, ITEM_S = 2e-4, 1e-5  # seconds of a message to a worker and back, and of one environment in it, at first
PIECE_S, MOST_PIECES = 0.02, 32  # size of a piece in main while workers start: seconds, or this fraction of the rest
MOST_WAITING, WORKER_BYTES = 64, 1e8  # most workers for waiting environments; bytes of one (half of what is free)
NEARLY = 0.75  # share of the workers that is enough to begin with; the others would stay out for the whole episode
FEW = 2  # environments of each tag played before the first look; more if groups are larger

Homes = dict[int, int | None]  # index of a worker by env_id, None for main
Spread = Callable[[Sequence[EnvSpec], int], Mapping[int, int]]


# Plans and their measurements


@dataclass(frozen=True)
class Limits:
    """How many workers there may be.

    Attributes:
        most: Maximum number of workers.
        cpus: Processors that main and workers may use.
        round_trip_s: Seconds that a message to a worker and back takes, beyond what it takes between two processes.
        turns: Turns that an episode has at most, where that is known.
    """

    most: int
    cpus: int
    round_trip_s: float = 0.0
    turns: int | None = None

    @classmethod
    def here(cls, settings: Settings, mode: Mode) -> Limits:
        """The limits of this machine."""
        if mode == "auto" and settings.max_workers is None:
            return cls(_most_waiting(), settings.workers, turns=settings.max_turns)
        return cls(settings.workers, usable_cpus(), turns=settings.max_turns)

    def workers(self, busy: float, envs: int, call_s: float = inf) -> int:
        """The number of workers, beside main, that environments can use.

        Args:
            busy: How much of a processor each of them keeps busy.
            envs: How many there are.
            call_s: Seconds that a call spends inside them; beyond ``sqrt(call_s / MESSAGE_S)`` workers, messages cost
                more than a further worker saves.
        """
        busy = 1.0 if abs(1.0 - busy) <= 1 - FASTER else busy  # within the accuracy of the measurement
        needed = self.cpus / busy if busy > 0 else inf
        return max(0, int(min(self.most, needed - 1, envs - 1, max(1.0, sqrt(call_s / MESSAGE_S)))))


@dataclass(frozen=True)
class Plan:
    """A way to place tags.

    Attributes:
        out: Tags with environments in workers.
        lanes: Number of workers.
        share: Fraction of those tags' environments that stays in main, 0 to 1.
    """

    out: frozenset[str] = frozenset()
    lanes: int = 0
    share: float = 1.0

    @staticmethod
    def even(out: Iterable[str], lanes: int) -> Plan:
        """A plan in which main plays as much of these tags as each worker."""
        return Plan(frozenset(out), lanes, 1 / (lanes + 1))


ALL_MAIN = Plan()


@dataclass(frozen=True)
class Record:
    """The measurements of a plan.

    Attributes:
        calls: The last calls at each place of an episode.
        losses: Number of consecutive tries that it lost.
        due: Episode from which it may be tried.
    """

    calls: Mapping[int, tuple[CallTime, ...]] = field(default_factory=dict)
    losses: int = 0
    due: int = 0

    @property
    def episodes(self) -> int:
        """Number of remembered episodes with this plan."""
        return max((len(calls) for calls in self.calls.values()), default=0)

    @property
    def overhead_s(self) -> float:
        """Usual seconds of a turn that passed outside of main's environments; 0 while nothing is known."""
        calls = [call for known in self.calls.values() for call in known]
        return statistics.median_low([(call.seconds - call.local_s) / call.turns for call in calls]) if calls else 0.0

    def noted(self, calls: Mapping[int, CallTime]) -> Record:
        """A record that includes an episode's calls, by their places."""
        new = {place: (*self.calls.get(place, ()), call)[-LATELY:] for place, call in calls.items()}
        return replace(self, calls={**self.calls, **new})

    def usual(self, measure: Callable[[CallTime], float], lately: int = LATELY) -> float:
        """The usual value of a measure for an episode, according to the last ones."""
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


def _per_turn(calls: Sequence[CallTime], measure: Callable[[CallTime], float]) -> float:
    """The median for one turn, the lower one of two."""
    return statistics.median_low([measure(call) / call.turns for call in calls])


@dataclass(frozen=True)
class State:
    """All measurements, and the plan derived from them.

    Attributes:
        now: The current plan.
        kept: The plan to beat; differs from ``now`` during a try.
        records: Records of plans, by their ``out``.
        episode: Number of the episode, from 1.
        steady: Number of episodes played under exactly the current plan.
        starting: Number of workers that should be started, since a plan waits for them.
    """

    now: Plan = ALL_MAIN
    kept: Plan = ALL_MAIN
    records: Mapping[frozenset[str], Record] = field(default_factory=dict)
    episode: int = 0
    steady: int = 0
    starting: int = 0

    @property
    def is_trying(self) -> bool:
        """Whether the current plan is a try."""
        return self.now.out != self.kept.out

    def record(self, plan: Plan) -> Record:
        """The record of a plan."""
        return self.records.get(plan.out, Record())

    def noted(self, calls: Mapping[int, CallTime]) -> State:
        """A state that includes calls played under the current plan, by their places in the episode."""
        return self._with(self.now, self.record(self.now).noted(calls))

    def trying(self, plan: Plan) -> State:
        """A state that tries a plan, whose old measurements are dropped."""
        return replace(self._with(plan, replace(self.record(plan), calls={})), now=plan, steady=0, starting=0)

    def keeping(self, plan: Plan) -> State:
        """A state that keeps a plan, and follows it."""
        return replace(self, now=plan, kept=plan, steady=self.steady if plan == self.now else 0)

    def sharing(self, plan: Plan) -> State:
        """A state with another share of the current plan."""
        return replace(self, now=plan, kept=self.kept if self.is_trying else plan, steady=0)

    def lost(self, plan: Plan, cost: float) -> State:
        """A state in which a plan lost and is not tried for a while; ``cost`` of a try is in usual episodes."""
        record = self.record(plan)
        due = self.episode + round(PAUSE * (1 + max(0.0, cost)) * 2**record.losses)
        return self._with(plan, replace(record, losses=record.losses + 1, due=due))

    def won(self, plan: Plan) -> State:
        """A state in which a plan's losses are cleared."""
        return self._with(plan, replace(self.record(plan), losses=0))

    def _with(self, plan: Plan, record: Record) -> State:
        return replace(self, records={**self.records, plan.out: record})


@dataclass(frozen=True)
class Situation:
    """The inputs of a decision besides the state.

    Attributes:
        costs: Usual costs by tag, of the tags that were measured.
        members: Number of environments by tag, of the tags that may live in workers.
        limits: How many workers there may be.
        ready: Workers that can be used without waiting for their start.
        behind: Turns to replay if all environments of a tag are rebuilt now, by tag; unknown tags replay all their
            turns.
    """

    costs: Mapping[str, TagCosts]
    members: Mapping[str, int]
    limits: Limits
    ready: int
    behind: Mapping[str, int] = field(default_factory=dict)


@functools.cache
def _most_waiting() -> int:
    """Workers for environments that wait, by the memory that was free when this process first asked."""
    import psutil  # late: only `auto` asks

    return int(max(1, min(MOST_WAITING, psutil.virtual_memory().available / 2 / WORKER_BYTES)))


# The rule


def decide(state: State, given: Situation) -> State:
    """Plan the next episode; the state already includes the calls of the last one."""
    was_clear = state.episode == 1 and state.starting > 0  # to the first look
    state = replace(state, episode=state.episode + 1, steady=state.steady + 1, starting=0)
    if state.is_trying:
        state = _judged(state, given)
    if state.kept.out and not state.is_trying:
        state = _defended(state, given)
    return state if state.is_trying else _challenged(state, given, was_clear)


def first_look(
    state: State,
    given: Situation,
    seen: Episode,
    left: Mapping[str, int] | None = None,
    is_reset: bool = False,
) -> State:
    """In the first episode: decide whether workers should play the rest of it.

    The rest consists of what is left of the current call, and the expected turns: as many as there were, or ``AHEAD``,
    or the limits' ``turns``. Until turns were played, they are assumed to take as long as resets; that assumption may
    start workers, but moves nothing.

    Args:
        state: The state before.
        given: The situation.
        seen: Measurements of the episode so far, including the current call.
        left: Environments of each tag that the current call has yet to play; None between two calls.
        is_reset: Whether the current call is the reset.
    """
    turns = max(AHEAD, len(seen.calls))
    if given.limits.turns is not None:
        turns = min(turns, given.limits.turns - len(seen.calls))
    if left is not None and not is_reset:
        turns -= 1  # the current one
    given = replace(given, members={tag: given.members[tag] for tag in given.members if tag not in state.now.out})
    plans = [ALL_MAIN, *(_ready(plan, given) for plan in _plans(given))]

    def best(turn_s: Mapping[str, float]) -> tuple[float, float, Plan]:
        saved = [(*_saved(plan, given, seen, left or {}, is_reset, max(0, turns), turn_s), plan) for plan in plans]
        most = max(seconds for seconds, _, _ in saved)
        return next(each for each in saved if each[0] >= FASTER * most)  # the fewest tags out among the best ones

    turn_s = {tag: turn.usual_s for tag, turn in seen.turns.items()}
    saved, rest, found = best(turn_s)
    if found.out and found.lanes <= given.ready and saved > (1 - FASTER) * rest:
        return state.trying(Plan.even(state.now.out | found.out, max(state.now.lanes, found.lanes)))
    saved, rest, found = best({tag: reset.usual_s / AHEAD for tag, reset in seen.resets.items()} | turn_s)
    to_wait = 0.0 if state.starting else START_S
    is_worth_starting = saved - to_wait * (1 - found.share) > (1 - FASTER) * rest
    return replace(state, starting=found.lanes if is_worth_starting else 0)


def _ready(plan: Plan, given: Situation) -> Plan:
    """The plan, or the same plan with only the workers that are up, if those are nearly all of them."""
    return Plan.even(plan.out, given.ready) if NEARLY * plan.lanes <= given.ready < plan.lanes else plan


def _saved(
    plan: Plan,
    given: Situation,
    seen: Episode,
    left: Mapping[str, int],
    is_reset: bool,
    turns: int,
    turn_s: Mapping[str, float],
) -> tuple[float, float]:
    """Seconds that a plan would save of the rest of an episode, and the seconds of that rest in main.

    Environments that move are rebuilt from their journals, in all workers at the same time: their reset, and their
    turns since the last snapshot.
    """
    rest = saved = messages = 0.0
    for tag in plan.out:
        count, now = given.members.get(tag, 0), left.get(tag, 0)
        reset, turn = seen.resets.get(tag, Spent()).usual_s, turn_s.get(tag, 0.0)
        current = reset if is_reset else seen.now.get(tag, Spent()).usual_s or turn
        share = max(plan.share, 1 / max(1, count))  # one environment's turn is not shared
        seconds = now * current + turns * count * turn
        rebuilding = (count - now if is_reset else count) * reset
        rebuilding += given.behind.get(tag, seen.turns.get(tag, Spent()).number) * turn
        rest += seconds
        saved += seconds * (1 - share) - rebuilding * share
        messages += (turns + bool(now)) * count * ITEM_S
    messages += (turns + bool(left)) * (plan.lanes * MESSAGE_S + given.limits.round_trip_s)
    return saved - messages, rest


def break_off(state: State, given: Situation, calls: Mapping[int, CallTime]) -> State:
    """Before another turn: return to main if the episode has lost as much time in workers as returning takes.

    If its calls so far are much lighter than usual, workers may lose a tenth of an episode: heavy ones may follow.
    ``calls`` are those of this episode, by their places; the state already includes them.
    """
    main = state.record(ALL_MAIN)
    alone = [
        min(_alone(state, state.now, call), call.turns * main.turn_s(place) if main.calls else inf)
        for place, call in calls.items()
    ]
    losses = [call.seconds - seconds for call, seconds in zip(calls.values(), alone, strict=True)]
    lost = sum(losses) - max(losses)  # one call may have been disturbed
    out = _sum(given.costs[tag] for tag in state.now.out if tag in given.costs)
    inside = sum(call.local_s + state.now.lanes * call.lane_s for call in calls.values())
    replayed = max(0.0, out.seconds - out.reset_s - inside) + min(sum(alone), inside)
    usual = main.usual(lambda call: call.seconds)
    are_light = 2 * sum(alone) / len(calls) < usual / max(1, len(main.calls))
    if lost <= max((1 - FASTER) * usual if are_light else 0.0, (1 - state.now.share) * (out.reset_s + replayed)):
        return state
    if not state.is_trying:
        return state.trying(ALL_MAIN)
    return state.lost(state.now, lost / sum(alone)).keeping(state.kept)


def _judged(state: State, given: Situation) -> State:
    """After an episode of a try: keep the faster one of two plans."""
    tried, kept = state.now, state.kept
    record, rival = state.record(tried), state.record(kept)
    times = record.against(rival) if kept.out else _times(state, tried)
    if not times:
        return state
    if times <= (FASTER if tried.out else 1.0):
        if not tried.out and record.episodes < 2:
            return state
        return state.lost(kept, min(1 / times - 1, tried.lanes) + _building(state, given)).keeping(tried)
    if tried.out and record.episodes < 2:
        return state if _mostly_resets(rival) else _balanced(state, given)
    return state.lost(tried, times - 1 + _building(state, given)).won(kept).keeping(kept)


def _defended(state: State, given: Situation) -> State:
    """While tags are in workers: time main again, or continue with a better share."""
    record, main = state.record(state.kept), state.record(ALL_MAIN)
    if record.episodes < 2:
        return state
    if not main.due:  # out from the start
        alone = _sum(given.costs.values()).seconds
        state = state.lost(ALL_MAIN, alone / record.usual(lambda call: call.seconds) - 1 + _building(state, given))
    if (resized := _resized(state, given)) is not None:
        return resized
    is_doubtful = _times(state, state.kept) > 1 and state.steady >= 2**main.losses
    if is_doubtful or state.episode >= state.record(ALL_MAIN).due:
        return state.trying(ALL_MAIN)
    return _balanced(state, given) if state.steady > 1 else state


def _resized(state: State, given: Situation) -> State | None:
    """A state with more workers, or half as many, if the measured waiting times call for it."""
    kept = state.kept
    found = next((plan for plan in _plans(given) if plan.out == kept.out), kept)
    if kept.lanes / 2 < found.lanes < kept.lanes * MORE or _is_dear(
        given, found, 1.0, state.steady * _usual(state, given)
    ):
        return None
    if found.lanes > given.ready:
        return replace(state, starting=found.lanes)
    return state.trying(found).keeping(found)


def _balanced(state: State, given: Situation) -> State:
    """Move main's share so that main and workers end together, if they were a tenth apart, and an environment at least.

    Main finishes last if it did not have to wait; the difference is known up to the time that messages take. Waiting
    for messages alone is no reason to move the share, since another share would not shorten it.
    """
    plan, record = state.now, state.record(state.now)
    total = _sum(given.costs.values()).seconds
    shared = sum(given.costs[tag].seconds for tag in plan.out if tag in given.costs)
    work = max(total, record.usual(lambda call: call.local_s + plan.lanes * call.lane_s, state.steady))
    tenth = (1 - FASTER) * work / (plan.lanes + 1)
    late = record.usual(lambda call: max(0.0, min(call.idle_s, call.lane_s - call.local_s)), state.steady)
    if record.usual(lambda call: call.idle_s, state.steady) <= (1 - FASTER) * tenth:
        late = record.usual(lambda call: call.lane_s - call.local_s, state.steady)
    surplus = late / (work * shared / total * (1 + 1 / plan.lanes)) if shared else 0.0
    if abs(late) <= tenth or abs(surplus) * max(given.members.get(tag, 0) for tag in plan.out) < 1:
        return state
    if _is_dear(given, plan, abs(surplus), state.steady * record.usual(lambda call: call.seconds)):
        return state
    half = plan.share / 2
    return state.sharing(replace(plan, share=min(0.5 + half, max(half, plan.share + surplus))))


def _challenged(state: State, given: Situation, was_clear: bool) -> State:
    """Try the plan of the best forecast, once the kept one is known, workers are up, and building is paid for."""
    found = _best_rival(state, given)
    if found is None or _is_dear(given, found, 1.0, state.episode * _usual(state, given)):
        return state
    is_known = was_clear or state.record(state.kept).episodes > 1
    if not is_known or found.lanes > given.ready:
        return replace(state, starting=found.lanes)
    return state.trying(found)


def _best_rival(state: State, given: Situation) -> Plan | None:
    """The plan with the fewest tags out among the best ones; None if none is worth a try."""
    usual = _usual(state, given)
    rivals = [plan for plan in _plans(given) if plan.out != state.kept.out and state.record(plan).due <= state.episode]
    forecasts = {plan: _forecast(state, given, plan) for plan in rivals}
    best = min(forecasts.values(), default=usual)
    return next((plan for plan in rivals if forecasts[plan] <= best / FASTER), None) if best <= FASTER * usual else None


def _usual(state: State, given: Situation) -> float:
    """Seconds of an episode as it is kept, by the measure of forecasts."""
    usual = _forecast(state, given, ALL_MAIN)
    if not state.kept.out:
        return usual
    times = state.record(state.kept).against(state.record(ALL_MAIN))
    return usual * times if times else _forecast(state, given, state.kept)


def _plans(given: Situation) -> list[Plan]:
    """The heaviest tag out, the two heaviest, and so on."""
    tags = [tag for tag in given.members if tag in given.costs]
    tags.sort(key=lambda tag: given.costs[tag].per_turn, reverse=True)
    found = []
    for count in range(1, len(tags) + 1):
        out = tags[:count]
        envs, busy = sum(given.members[tag] for tag in out), _sum(given.costs[tag] for tag in out).busy
        call_s = sum(given.members[tag] * given.costs[tag].per_call for tag in out)
        if lanes := given.limits.workers(busy, envs, call_s):
            found.append(Plan.even(out, lanes))
    return found


def _forecast(state: State, given: Situation, plan: Plan) -> float:
    """Forecast seconds of an episode that main and workers share evenly.

    Sending a turn is assumed to take as long as recording it; in addition, each call waits for a message to reach the
    workers and return.
    """
    record, costs = state.record(ALL_MAIN), given.costs
    total, shared = _sum(costs.values()), _sum(costs[tag] for tag in plan.out if tag in costs)
    sent = plan.lanes / (plan.lanes + 1) * shared.turns / max(1, total.turns)
    playing = max(total.seconds - shared.seconds, total.seconds / (plan.lanes + 1))
    away = given.limits.round_trip_s * len(record.calls) if plan.lanes else 0.0
    return record.usual(lambda call: call.seconds - call.local_s) * (1 + sent) + playing + away


def _sum(costs: Iterable[TagCosts]) -> TagCosts:
    """The costs of several tags together."""
    return TagCosts(*map(sum, zip(TagCosts(), *costs, strict=True)))


def _times(state: State, plan: Plan) -> float:
    """The time of a shared plan relative to main's, measured or estimated for now, whichever is less."""
    record, main = state.record(plan), state.record(ALL_MAIN)
    now = record.usual(lambda call: _alone(state, plan, call))
    return max(record.usual(lambda call: call.seconds) / now if now else 0.0, record.against(main) or 0.0)


def _alone(state: State, plan: Plan, call: CallTime) -> float:
    """Estimated seconds that a call of a shared plan would take in main now."""
    return call.local_s + plan.lanes * call.lane_s + call.turns * state.record(ALL_MAIN).overhead_s


def _mostly_resets(record: Record) -> bool:
    """Whether main spent more time in resets than in turns, so that another share would decide little."""
    return RESET in record.calls and 2 * record.calls[RESET][-1].seconds > record.usual(lambda call: call.seconds)


def _is_dear(given: Situation, plan: Plan, part: float, played: float) -> bool:
    """Whether building a part of the plan's environments elsewhere costs more than a tenth of ``played`` seconds."""
    return part * sum(given.costs[tag].build_s for tag in plan.out if tag in given.costs) > (1 - FASTER) * played


def _building(state: State, given: Situation) -> float:
    """The cost of building the environments elsewhere and back, in usual episodes."""
    usual = state.record(state.now).usual(lambda call: call.seconds)
    return 2 * sum(cost.build_s for cost in given.costs.values()) / usual if usual else 0.0


# The state of one engine


class Placement:
    """Decides the homes of one engine's environments: main, or a worker by its index.

    If fewer workers can be used than there are indices, the caller substitutes others.

    Attributes:
        limits: How many workers there may be; may change from one decision to the next.
    """

    def __init__(
        self,
        specs: Sequence[EnvSpec] = (),
        sequential_env_types: Collection[str] = (),
        limits: Limits = Limits(0, 0),  # frozen
        spread: Spread | None = None,
    ) -> None:
        """Register the environments.

        Args:
            specs: All environments to place.
            sequential_env_types: Types that stay in main.
            limits: How many workers there may be.
            spread: Distributes environments over a number of workers; :func:`spread` by default.
        """
        self._specs = list(specs)
        self._sequential = frozenset(sequential_env_types)
        self.limits = limits
        self._spread = spread or globals()["spread"]
        self._meters: dict[str, CostMeter] = defaultdict(CostMeter)
        self._state = State()
        self._mode: Mode | None = None
        self._homes: Homes = {}
        self._first = RESET  # place of the first call of this episode that was played under the current plan
        self._split_at = NEVER  # place of the last call that was played piece by piece from its beginning
        self._is_due = False  # whether some environments are still to follow the plan, at the next call

    @property
    def lanes_to_start(self) -> int:
        """The number of workers that should be starting now, since a plan waits for them."""
        return self._state.starting

    def lanes_at_start(self, mode: Mode) -> int:
        """The number of workers that the first reset will need, so that they can start now."""
        if mode == "auto":
            return self._hinted(frozenset()).lanes
        return self._most_lanes(self._hosted(frozenset())) if mode else 0

    def at_reset(
        self, mode: Mode, episode: Episode, bound_to_main: Collection[int] = frozenset(), lanes_ready: int = 0
    ) -> Homes:
        """Homes for the episode that begins now.

        Args:
            mode: ``use_multiprocessing``.
            episode: What was measured in the last one; empty before the first.
            bound_to_main: Environments that turned out not to work in a worker.
            lanes_ready: Workers that can be used without waiting for their start.
        """
        self._note(episode)
        if mode == "auto":
            self._decide(bound_to_main, lanes_ready)
        before, self._first = self._homes, RESET
        homes = self._follow(mode, bound_to_main)
        if homes != before:
            self._first = RESET + 1  # a reset that builds environments is not representative
        self._is_due, self._split_at = False, RESET
        return homes

    def at_switch(self, mode: Mode, bound_to_main: Collection[int] = frozenset()) -> Homes:
        """Homes for the rest of the episode after ``use_multiprocessing`` was set; its calls count for no plan."""
        self._first, self._is_due = NEVER, False
        return self._follow(mode, bound_to_main)

    @property
    def _is_first(self) -> bool:
        """Whether this is the first episode under ``auto``."""
        return self._mode == "auto" and self._state.episode == 1 and self._first != NEVER

    @property
    def may_look_within(self) -> bool:
        """Whether :meth:`within_call` may move environments of the call that begins, or is under way."""
        return self._is_first and not self._state.now.out

    def may_look_again(self, calls: int) -> bool:
        """Whether :meth:`before_turn` should run: after 0, 1, 2, 4, 8, ... calls."""
        if self._is_due:
            return True
        if self._mode != "auto" or (calls & (calls - 1) and not self._state.starting):
            return False
        return self._is_first or bool(self._state.now.out and calls > 1)

    def before_turn(
        self,
        episode: Episode,
        bound_to_main: Collection[int] = frozenset(),
        lanes_ready: int = 0,
        behind: Mapping[str, int] | None = None,
        asked: Collection[int] | None = None,
    ) -> Homes | None:
        """Before a further turn: new homes, if moving should not wait for the next reset.

        It should not if the first episode shows that workers clearly pay, or if workers clearly lose.

        Args:
            episode: Measurements of the current episode.
            bound_to_main: See :meth:`at_reset`.
            lanes_ready: See :meth:`at_reset`.
            behind: See :class:`Situation`.
            asked: Environments that play this turn, and so may play further ones; None for all.
        """
        count = len(episode.calls)
        if not self.may_look_again(count):
            return None
        is_due, self._is_due = self._is_due, False
        self._split_at = count
        played = self._places(episode)
        given = self._present(episode, bound_to_main, lanes_ready, behind, asked)
        before = after = self._state.noted(played)
        if self._is_first:
            after = first_look(before, given, episode)
        if after.now == before.now and before.now.out and len(played) > 1:
            after = break_off(before, given, played)
        if after.now == before.now:
            self._state = replace(self._state, starting=after.starting)
            return dict(self._homes) if is_due else None
        self._state, self._first = after, count + 1  # the call that builds environments does not count
        return self._follow("auto", bound_to_main)

    # Within a call of the first episode

    def piece(self, episode: Episode, specs: Sequence[EnvSpec], is_reset: bool) -> list[EnvSpec]:
        """Which of these environments main plays before it looks again; all of them are built and wait for a call.

        At first, a few of each tag, then a quarter, since heavy turns may follow light ones, then the rest; while
        workers start, as many as take ``PIECE_S``. Groups are reset together. The last environments are played first,
        since main keeps those if others move. Environments that stay in main whatever happens play together and in
        their order: they may share state.
        """
        if not self.may_look_within or self._split_at != (RESET if is_reset else len(episode.calls)):
            return list(specs)
        seen, envs = episode.resets if is_reset else episode.turns, Counter(spec.tag for spec in self._specs)
        chosen = {spec.env_id for spec in specs if spec.env_type in self._sequential}
        for tag, members in by_tag([spec for spec in specs if spec.env_id not in chosen]).items():
            each = seen.get(tag, Spent()).usual_s
            units = _groups(members) if is_reset else [[spec] for spec in members]
            if each and self._state.starting:
                wanted = max(PIECE_S / each, len(members) / MOST_PIECES)
            else:
                played = envs[tag] - len(members)
                wanted = max(3 * played, len(members) / 4) if played else FEW
            count = max(1, int(wanted / len(units[-1])))
            chosen.update(spec.env_id for unit in units[-count:] for spec in unit)
        return [spec for spec in specs if spec.env_id in chosen]

    def within_call(
        self,
        episode: Episode,
        left: Collection[int],
        is_reset: bool,
        bound_to_main: Collection[int] = frozenset(),
        lanes_ready: int = 0,
        behind: Mapping[str, int] | None = None,
        asked: Collection[int] | None = None,
    ) -> Homes | None:
        """After a piece: new homes of the environments that the call has ``left``, if workers should play them.

        The others follow before the next call.
        """
        if not self.may_look_within or not episode.tags:
            return None
        given = self._present(episode, bound_to_main, lanes_ready, behind, asked)
        waiting = set(left)
        counts = Counter(spec.tag for spec in self._hosted(bound_to_main) if spec.env_id in waiting)
        after = first_look(self._state, given, episode, counts, is_reset)
        self._state = replace(after, now=self._state.now) if not after.now.out else after
        if not after.now.out:
            return None
        self._is_due = True
        # Neither this call nor the next one, for which the others are rebuilt, is a usual one.
        self._first = 1 if is_reset else len(episode.calls) + 2
        homes = self._follow("auto", bound_to_main)
        return {env_id: homes[env_id] for env_id in left if env_id in homes}  # branches stay where they were added

    def reasons(
        self, in_lanes: Collection[str], held: Mapping[str, str], costs: Mapping[str, MeanCosts]
    ) -> dict[str, str]:
        """Where each tag's environments live and why, by tag.

        Args:
            in_lanes: Tags that live in workers.
            held: Reasons why tags must stay in main.
            costs: What a turn and a reset cost, by tag.
        """
        return {
            spec.tag: self._reason(spec, spec.tag in in_lanes, held, costs.get(spec.tag, MeanCosts()))
            for spec in self._specs
        }

    def _reason(self, spec: EnvSpec, is_out: bool, held: Mapping[str, str], costs: MeanCosts) -> str:
        where = "in workers" if is_out else "in main"
        if not is_out and spec.tag in held:
            return f"{where}: {held[spec.tag]}"
        if spec.env_type in self._sequential:
            return f"{where}: named by sequential_env_types"
        if self._mode != "auto":
            return f"{where}: use_multiprocessing is {str(bool(self._mode)).lower()}"
        usual = self._meters[spec.tag].usual()
        if is_out:
            plan = self._state.now
            shared = f", and {plan.share:.0%} of them in main" if plan.share else ""
            hinted = "" if usual.turns or not self._hint(spec) else f"its class declares {self._hint(spec)}; "
            return f"in {plan.lanes} worker{'s' * (plan.lanes != 1)}{shared}: {hinted}{costs.describe()}"
        return f"{where}: {costs.describe()}" + (
            f"; {self._why_in_main(spec.tag)}" if usual.turns or self._state.starting else ""
        )

    def _why_in_main(self, tag: str) -> str:
        state = self._state
        if state.starting:
            return f"{state.starting} worker{'s are' if state.starting > 1 else ' is'} starting"
        if any(tag in out and record.due > state.episode for out, record in state.records.items()):
            return "workers were slower"
        found = _best_rival(state, self._situation((), 0))
        if found is not None and tag in found.out:
            return "workers may pay off, and are tried as soon as building it there is cheap"
        return "workers would save less than 10 % of the time"

    # The rule, on this engine's environments

    def _note(self, episode: Episode) -> None:
        if self._mode == "auto":
            self._state = self._state.noted(self._places(episode))
        for tag, costs in episode.tags.items():
            self._meters[tag].note(costs)

    def _places(self, episode: Episode) -> dict[int, CallTime]:
        """The calls of an episode that were played under the current plan, by their places."""
        calls = {RESET: episode.reset} if episode.reset else {}
        calls |= dict(enumerate(episode.calls))
        return {place: call for place, call in calls.items() if place >= self._first and call.turns}

    def _decide(self, bound_to_main: Collection[int], lanes_ready: int) -> None:
        given, before = self._situation(bound_to_main, lanes_ready), self._state.now
        if not self._state.episode:
            self._state = self._state.keeping(self._hinted(bound_to_main))
        self._state = decide(self._state, given)
        if self._state.now.out != before.out:
            log.info("placement: %s", _words(self._state.now))

    def _situation(
        self, bound_to_main: Collection[int], lanes_ready: int, asked: Collection[int] | None = None
    ) -> Situation:
        hosted, playing = self._hosted(bound_to_main), None if asked is None else set(asked)
        members = Counter(spec.tag for spec in hosted if playing is None or spec.env_id in playing)
        usual = {tag: meter.usual() for tag, meter in self._meters.items()}
        return Situation({tag: cost for tag, cost in usual.items() if cost.turns}, members, self.limits, lanes_ready)

    def _present(
        self,
        episode: Episode,
        bound_to_main: Collection[int],
        lanes_ready: int,
        behind: Mapping[str, int] | None,
        asked: Collection[int] | None,
    ) -> Situation:
        """The situation within an episode, by its measurements."""
        given = self._situation(bound_to_main, lanes_ready, asked)
        return replace(given, costs=episode.tags, behind=behind or {})

    def _follow(self, mode: Mode, bound_to_main: Collection[int]) -> Homes:
        self._mode = mode
        hosted = self._hosted(bound_to_main)
        plan = self._state.now
        if mode != "auto":
            plan = Plan(frozenset(spec.tag for spec in hosted), self._most_lanes(hosted), 0.0) if mode else ALL_MAIN
        shared = [spec for spec in hosted if spec.tag in plan.out]
        local = local_share([spec for spec in shared if not spec.overlap_waits], plan.share)  # main waits for each
        away = [spec for spec in shared if spec.env_id not in local]
        self._homes = {spec.env_id: None for spec in self._specs}
        if away and plan.lanes:
            self._homes |= self._spread(away, min(plan.lanes, len(away)))
        return dict(self._homes)

    def _hosted(self, bound_to_main: Collection[int]) -> list[EnvSpec]:
        """Environments that may live in workers."""
        return [
            spec for spec in self._specs if spec.env_type not in self._sequential and spec.env_id not in bound_to_main
        ]

    def _hint(self, spec: EnvSpec) -> str:
        """A class's or tag's declaration that moves its environments to workers before anything was measured."""
        hint = getattr(spec.env_class, "cost_hint", None)
        if spec.overlap_waits:
            return "overlap_waits"
        return f"cost_hint = {hint!r}" if hint in ("heavy", "io") else ""

    def _hinted(self, bound_to_main: Collection[int]) -> Plan:
        """The plan before any measurement: tags that declare a sufficient cost or ``overlap_waits`` use workers."""
        out = [spec for spec in self._hosted(bound_to_main) if self._hint(spec)]
        computes = any(self._hint(spec) == "cost_hint = 'heavy'" for spec in out)
        lanes = self.limits.workers(1.0 if computes else 0.0, len(out)) if out else 0
        return Plan.even({spec.tag for spec in out}, lanes) if lanes else ALL_MAIN

    def _most_lanes(self, hosted: Sequence[EnvSpec]) -> int:
        return min(self.limits.most, len(hosted))


def _words(plan: Plan) -> str:
    return f"{', '.join(sorted(plan.out))} shared with {plan.lanes} workers" if plan.out else "all in main"


# Environments for main, and for each worker


def spread(specs: Sequence[EnvSpec], lanes: int) -> dict[int, int]:
    """Assign environments to workers: each tag evenly over all, without splitting groups where that stays even.

    Where groups are split, members of one stay together as far as possible: in a worker they share a reset.

    Returns:
        Index of a worker by env_id.
    """
    homes: dict[int, int] = {}
    first = 0
    for members in by_tag(specs).values():
        for spec, part in zip(members, _parts(members, lanes), strict=True):
            homes[spec.env_id] = (first + part) % lanes
        first += len(members) % lanes  # so that the remainders of tags do not all go to the same worker
    return homes


def local_share(specs: Sequence[EnvSpec], share: float) -> set[int]:
    """Ids of the environments of each tag that main plays itself: the last ones, so that workers keep whole groups."""
    kept: set[int] = set()
    for members in by_tag(specs).values():
        kept.update(spec.env_id for spec in members[len(members) - round(share * len(members)) :])
    return kept


def _groups(members: Sequence[EnvSpec]) -> list[list[EnvSpec]]:
    groups: dict[int, list[EnvSpec]] = defaultdict(list)
    for spec in members:
        groups[spec.group_id].append(spec)
    return list(groups.values())


def _parts(members: Sequence[EnvSpec], parts: int) -> list[int]:
    """Which of the tag's even parts each member belongs to."""
    groups = {group_id: place for place, group_id in enumerate(dict.fromkeys(spec.group_id for spec in members))}
    largest = -(-len(groups) // parts) * len(members) / len(groups)
    if largest <= 1.1 * len(members) / parts:
        return [groups[spec.group_id] % parts for spec in members]
    each, more = divmod(len(members), parts)
    ends = list(accumulate(each + (part < more) for part in range(parts)))
    order = sorted(range(len(members)), key=lambda at: groups[members[at].group_id])  # neighbors share their reset
    part_of = {at: bisect_right(ends, position) for position, at in enumerate(order)}
    return [part_of[at] for at in range(len(members))]
