"""``auto``: which tags are played in lanes, as a pure function of what was measured.

A *plan* keeps all in main, or shares the heaviest tags between main and lanes. One plan is *kept*; another one is
*tried* now and then, and becomes the kept one where it turns out to be faster:

    kept        tried                          when                                      wins if it takes
    all main    the plan of the best forecast  the forecast saves a tenth of the time    at most 0.9 of the time
    shared      another shared plan            likewise                                  at most 0.9 of the time
    shared      all main                       lanes became slower than main once was,   no longer
                                               or main was not timed for long

A forecast is never believed, it only tells what is worth a try. A try lasts an episode; two, where lanes did not win
the first one. What lost is not tried for a while that grows with what the try costs, and doubles each time. Nor is
anything moved, for a try or for a better share, before building it elsewhere costs a tenth of the time played at most.

Times are compared call by call, each by the median of the calls at its place in the last episodes: neither a disturbed
call, nor code that runs for the first time, nor an episode of another length decides anything. A shared plan must also
beat what its own turns would take in main now, so that what slowed main down when it was timed decides nothing either.

Within an episode two things do not wait for the next reset: in the first one, what is clearly heavy goes out; in any,
lanes that have lost as much time as it takes to go back are left.

Main's share of the tags that are out starts at an even one, and moves so that main and lanes end together.

Not found: a gain that lies in heavy turns of all environments at once, in another call of each episode. Such tags stay
in main.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from ragen.parallel.placement.costs import CallTime, TagCosts
from ragen.parallel.placement.records import ALL_MAIN, Plan, Record, State

FASTER = 0.9  # of the time: a smaller difference is not worth a move, and no sure one
AHEAD = 4  # turns that an episode is expected to go on at least, unless it is known to be shorter
RESET = -1  # the place of the reset among an episode's calls


@dataclass(frozen=True)
class Limits:
    """How many lanes there may be.

    Attributes:
        max_workers: Most lanes.
        cpus: Processors that main and lanes may use.
        round_trip_s: Seconds that a message to a lane and back takes, beyond what it takes between two processes.
        turns: Turns that an episode has at most, where that is known.
    """

    max_workers: int
    cpus: int
    round_trip_s: float = 0.0
    turns: int | None = None

    def lanes(self, waits: bool) -> int:
        """Lanes to use: a processor each beside main, but as many as allowed for what only waits."""
        return self.max_workers if waits else min(self.max_workers, self.cpus - 1)


@dataclass(frozen=True)
class Situation:
    """What a decision depends on besides the state.

    Attributes:
        costs: Usual costs by tag, of the tags that were measured.
        members: Number of environments by tag, of the tags that may live in lanes.
        limits: How many lanes there may be.
        ready: Lanes that can be used without waiting for their start.
    """

    costs: Mapping[str, TagCosts]
    members: Mapping[str, int]
    limits: Limits
    ready: int


def decide(state: State, given: Situation) -> State:
    """Plan the next episode; the calls of the last one are noted in the state already."""
    state = replace(state, episode=state.episode + 1, steady=state.steady + 1, starting=0)
    if state.is_trying:
        state = _judged(state, given)
    if state.kept.out and not state.is_trying:
        state = _defended(state, given)
    return state if state.is_trying else _challenged(state, given)


def look_again(state: State, given: Situation, calls: int) -> State:
    """Before another turn of the first episode, after so many calls: whether it should go on in lanes already."""
    rebuilding = {tag: cost.seconds for tag, cost in given.costs.items()}
    turns = {tag: cost._replace(seconds=cost.seconds - cost.reset_s) for tag, cost in given.costs.items()}
    given = replace(given, costs=turns)
    found = _best_rival(state, given) if _is_clear(state.record(ALL_MAIN)) else None
    if found is None or found.lanes > given.ready:
        return replace(state, starting=found.lanes if found else 0)
    alone = _forecast(state, given, ALL_MAIN)
    ahead = max(AHEAD, calls)
    if given.limits.turns is not None:
        ahead = max(0, min(ahead, given.limits.turns - calls))
    saved = (alone - _forecast(state, given, found)) / calls * ahead
    return state.trying(found) if saved > sum(rebuilding[tag] for tag in found.out) / (found.lanes + 1) else state


def break_off(state: State, given: Situation, calls: Mapping[int, CallTime]) -> State:
    """Before another turn: whether an episode that is slower than in main has lost as much as it takes to go back.

    ``calls`` are those of this episode, by their places; they are noted in the state already.
    """
    main = state.record(ALL_MAIN)
    alone = [
        min(_alone(state, state.now, call), call.turns * main.turn_s(place) if main.calls else inf)
        for place, call in calls.items()
    ]
    losses = [call.seconds - seconds for call, seconds in zip(calls.values(), alone, strict=True)]
    lost = sum(losses) - max(losses)  # one call may have been disturbed
    out = _sum(given.costs[tag] for tag in state.now.out if tag in given.costs)
    if lost <= (1 - state.now.share) * (out.reset_s + min(sum(alone), out.seconds - out.reset_s)):
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
    """While tags are out: time main again, or go on with a better share."""
    record, main = state.record(state.kept), state.record(ALL_MAIN)
    if record.episodes < 2:
        return state
    if not main.due:  # out from the start, since classes said so
        alone = _sum(given.costs.values()).seconds
        state = state.lost(ALL_MAIN, alone / record.usual(lambda call: call.seconds) - 1 + _building(state, given))
    is_doubtful = _times(state, state.kept) > 1 and state.steady >= 2**main.losses
    if is_doubtful or state.episode >= state.record(ALL_MAIN).due:
        return state.trying(ALL_MAIN)
    return _balanced(state, given) if state.steady > 1 else state


def _balanced(state: State, given: Situation) -> State:
    """Move main's share so that main and lanes end together, if they were a tenth apart, and an environment at least.

    Main is the later one where it had not to wait; by how much is known but for the time that messages take.
    """
    plan, record = state.now, state.record(state.now)
    total = _sum(given.costs.values()).seconds
    shared = sum(given.costs[tag].seconds for tag in plan.out if tag in given.costs)
    work = max(total, record.usual(lambda call: call.local_s + plan.lanes * call.lane_s, state.steady))
    tenth = (1 - FASTER) * work / (plan.lanes + 1)
    late = record.usual(lambda call: call.idle_s, state.steady)
    if late <= (1 - FASTER) * tenth:
        late = record.usual(lambda call: call.lane_s - call.local_s, state.steady)
    surplus = late / (work * shared / total * (1 + 1 / plan.lanes)) if shared else 0.0
    if abs(late) <= tenth or abs(surplus) * max(given.members.get(tag, 0) for tag in plan.out) < 1:
        return state
    if _is_dear(given, plan, abs(surplus), state.steady * record.usual(lambda call: call.seconds)):
        return state
    half = plan.share / 2
    return state.sharing(replace(plan, share=min(0.5 + half, max(half, plan.share + surplus))))


def _challenged(state: State, given: Situation) -> State:
    """Try the plan of the best forecast, once the kept one was measured, lanes are there, and building is paid for."""
    found = _best_rival(state, given)
    if found is None or _is_dear(given, found, 1.0, state.episode * _usual(state, given)):
        return state
    known = state.record(state.kept).episodes > 1 or (not state.kept.out and _is_clear(state.record(ALL_MAIN)))
    if not known or found.lanes > given.ready:
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
    outs = [tags[: count + 1] for count in range(len(tags))]
    lanes = [given.limits.lanes(_sum(given.costs[tag] for tag in out).waits) for out in outs]
    return [Plan.even(out, count) for out, count in zip(outs, lanes, strict=True) if count]


def _forecast(state: State, given: Situation, plan: Plan) -> float:
    """Seconds of an episode that main and lanes share evenly, if sending a turn took as long as keeping book of it.

    On top of that, each call waits for a message to get to the lanes and back.
    """
    record, costs = state.record(ALL_MAIN), given.costs
    total, shared = _sum(costs.values()), _sum(costs[tag] for tag in plan.out if tag in costs)
    sent = plan.lanes / (plan.lanes + 1) * shared.turns / max(1, total.turns)
    playing = max(total.seconds - shared.seconds, total.seconds / (plan.lanes + 1))
    away = given.limits.round_trip_s * len(record.calls) if plan.lanes else 0.0
    return record.usual(lambda call: call.seconds - call.local_s) * (1 + sent) + playing * _calm(record) + away


def _calm(record: Record) -> float:
    """Where only one episode is known: what its environments' time would be if all its calls were usual ones."""
    calls = [calls[0] for place, calls in record.calls.items() if place != RESET]
    local = sum(call.local_s for call in calls)
    if record.episodes > 1 or not local:
        return 1.0
    usual = statistics.median_low([call.local_s / call.turns for call in calls])
    return min(1.0, usual * sum(call.turns for call in calls) / local)


def _is_clear(record: Record) -> bool:
    """Whether a few calls in main tell that all its overhead is little beside its environments' time."""
    local = record.usual(lambda call: call.local_s) * _calm(record)
    return len(record.calls) > 1 and record.usual(lambda call: call.seconds - call.local_s) <= (1 - FASTER) * local


def _sum(costs: Iterable[TagCosts]) -> TagCosts:
    """The costs of several tags together."""
    return TagCosts(*map(sum, zip(TagCosts(), *costs, strict=True)))


def _times(state: State, plan: Plan) -> float:
    """The time of a shared plan, relative to what main took, or would take for the same turns now: what is less."""
    record, main = state.record(plan), state.record(ALL_MAIN)
    now = record.usual(lambda call: _alone(state, plan, call))
    return max(record.usual(lambda call: call.seconds) / now if now else 0.0, record.against(main) or 0.0)


def _alone(state: State, plan: Plan, call: CallTime) -> float:
    """Seconds that a call of a shared plan would take in main now, by what it cost."""
    return call.local_s + plan.lanes * call.lane_s + call.turns * state.record(ALL_MAIN).overhead_s


def _mostly_resets(record: Record) -> bool:
    """Whether main is known to have spent more time in resets than in turns; they tell only where no share moves."""
    return RESET in record.calls and 2 * record.calls[RESET][-1].seconds > record.usual(lambda call: call.seconds)


def _is_dear(given: Situation, plan: Plan, part: float, played: float) -> bool:
    """Whether building this part of what is out elsewhere costs more than a tenth of so many seconds of play."""
    return part * sum(given.costs[tag].build_s for tag in plan.out if tag in given.costs) > (1 - FASTER) * played


def _building(state: State, given: Situation) -> float:
    """What it takes to build the environments elsewhere, and back, in episodes as they were."""
    usual = state.record(state.now).usual(lambda call: call.seconds)
    return 2 * sum(cost.build_s for cost in given.costs.values()) / usual if usual else 0.0
