"""Who goes where: which environments live in main and which in lanes.

``False`` keeps all in main. ``True`` sends all to lanes but the types in ``sequential_env_types``; main only talks to
them then, so that nothing an environment does can harm it. ``"auto"`` sends what pays, and lets main play a share of
its own while lanes work. What pays is worked out from what was measured. An episode in which a tag's environments take
``L`` seconds, over ``n`` turns played in ``v`` calls, with a share ``s`` of them kept in main and ``k`` lanes, takes

    in main      L + (n + v * CALL) * keeping
    main         s * L + (n + v * CALL) * keeping + (1 - s) * n * SENDING + v * CALLING
    each lane    ((1 - s) * L + (1 - s) * n * SERVING) / k + v * CALLING + BEFORE * (n + v * CALL) * keeping

and for each byte that is shown ``CARRYING`` more on both sides. ``keeping``, main's own bookkeeping of a turn, is
measured while all are in main; the other figures are scaled as it is. The share ``s`` is first chosen so that main and
lanes should end together, and then, from reset to reset, so that they do. A tag goes out if that makes the whole at
least ``GAIN`` faster, and comes back only if it would be slower, so that nothing moves to and fro. Environments that
wait (for the network, say) rather than compute may use more lanes than there are processors, up to ``max_workers``.
Decisions are made at resets. The one exception: a tag about which nothing was known at its first reset is looked at
once more after its first turn.

A forecast can be wrong: other work may hold the processors. So the time that turns really took is kept for each way of
placing that was tried: call by call, the median of the last episodes, so that neither a disturbed call nor code that
runs for the first time decides anything. A way that turns out not to be faster than staying in main, twice in a row or
once by far, is left at the next reset and not tried again for a number of resets that doubles each time. Where lanes
gain so little that a forecast cannot be sure of it, an episode in main now and then keeps the comparison up to date.
"""

from __future__ import annotations

import logging
import statistics
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ragen.parallel.accounts import CallTime
from ragen.parallel.costs import TagCosts
from ragen.parallel.engine import Engine
from ragen.parallel.pool import Lane
from ragen.parallel.system import usable_cpus
from ragen.parallel.turn import EnvSpec

log = logging.getLogger(__name__)

Mode = bool | Literal["auto"]

# Seconds, as they were on a machine with two processors; the trials make up for other machines
KEEPING = 3e-6  # main's bookkeeping of a turn, wherever it was played
CALL = 32  # turns whose bookkeeping is as much as that of a call on top of its turns
BEFORE = 0.5  # part of main's bookkeeping that is done before the lanes get their work
SENDING = 1.5e-6  # what sending a turn away costs main on top
SERVING = 2e-6  # what receiving it and answering costs a lane
CARRYING = 0.5e-9  # what a byte of an observation costs on either side
CALLING = 300e-6  # a round trip to lanes that have nothing to do
STARTING = 0.3  # until the first lanes are ready, while main has to wait for them
GAIN = 0.2  # least part of the sequential time that must be saved before anything moves out
EPISODES_AHEAD = 400  # over which the start of the lanes may be written off
_TURNS_AHEAD = 4  # turns an episode is expected to go on after its first, for the look after the first turn
_WORTH, _FAR = 0.95, 1.3  # of main's time: what takes longer is left if it does so twice; at once
_SURE = 0.6  # of the time expected in main: what is faster than that is so even if lanes slowed each other down
_UNKNOWN, _OLD = 16, 32  # resets after which an episode in main is due that was never, or not lately, timed
_UNEVEN = 0.02  # least change of main's share that is worth rebuilding environments elsewhere
_LATELY = 3  # episodes that tell what is usual
_NONE: frozenset[str] = frozenset()
_LASTING = 8  # good episodes in a row after which failures are forgotten


@dataclass(frozen=True)
class Plan:
    """A way to place tags, and what it is expected to take.

    Attributes:
        out: Tags of which a share lives in lanes.
        lanes: Number of lanes.
        share: Part of those tags' environments that stays in main, 0 to 1.
        seconds: Expected time of an episode.
    """

    out: frozenset[str]
    lanes: int
    share: float
    seconds: float


class _Usual:
    """What is usual for the first call of an episode, for the second, and so on."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._lately: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_LATELY))

    def __len__(self) -> int:
        """The number of episodes that it is known from, up to ``_LATELY``."""
        return len(self._lately[0])

    def note(self, values: Sequence[float]) -> list[float]:
        """Take down an episode's values; what is usual for each, the lower one where there are two."""
        for index, value in enumerate(values):
            self._lately[index].append(value)
        return [statistics.median_low(self._lately[index]) for index in range(len(values))]

    def forget(self) -> None:
        """Begin anew."""
        self._lately.clear()


@dataclass
class _Trial:
    """What came of a way of placing.

    Attributes:
        per_turn: Seconds of a turn in the last episodes, calls to lanes included; None before the first.
        usual: What it is worked out from.
        age: Resets since that was measured, or since this way was first thought of.
        losses: How often in a row it was not faster than main.
        pause: Resets until it may be tried again.
        failures: How often it was given up.
        successes: Episodes since then.
    """

    per_turn: float | None = None
    usual: _Usual = field(default_factory=_Usual)
    age: int = 0
    losses: int = 0
    pause: int = 0
    failures: int = 0
    successes: int = 0

    def wait(self) -> None:
        """Count a reset."""
        self.age += 1
        self.pause = max(0, self.pause - 1)

    def note(self, calls: Sequence[CallTime]) -> None:
        """Count an episode."""
        usual = self.usual.note([call.seconds / call.turns for call in calls])
        self.per_turn = _sum(usual, calls) / sum(call.turns for call in calls)
        self.age = 0
        self.successes += 1
        if self.successes >= _LASTING:
            self.failures = 0

    def loses(self, alone: float) -> bool:
        """Compare with the seconds of a turn in main: whether this way should be given up."""
        if self.per_turn is None or len(self.usual) < 2 or self.per_turn <= _WORTH * alone:
            self.losses = 0
            return False
        self.losses += 1
        return self.losses > 1 or self.per_turn > _FAR * alone

    def is_due(self) -> bool:
        """Whether its time should be taken again."""
        return self.age >= (_UNKNOWN if self.per_turn is None else _OLD)

    def give_up(self) -> None:
        """Not again for a while."""
        self.failures += 1
        self.successes = self.losses = 0
        self.pause = 2 ** min(self.failures + 2, 8)
        self.per_turn = None
        self.usual.forget()


class Placement:
    """Decides the homes of one manager's environments."""

    def __init__(self, engine: Engine, sequential_env_types: Sequence[str]) -> None:
        """Decide for this engine's environments."""
        self._engine = engine
        self._sequential = set(sequential_env_types)
        self._plan = Plan(_NONE, 0, 1.0, 0.0)
        self._unseen: set[str] = set()
        self._why = ""
        self._wants_all = False
        self._mixed = False
        self._keeping = KEEPING
        self._slack = _Usual()  # with main's present share
        self._visiting: Plan | None = None  # what main's environments go back to after an episode at home
        self._trials: dict[frozenset[str], _Trial] = defaultdict(_Trial)

    def prepare(self, mode: Mode) -> None:
        """Start the workers that the first reset will need, without waiting for them."""
        if mode is True and (hosted := self._hosted()):
            self._engine.lanes(self._lane_count(hosted))
        elif mode == "auto" and (hinted := self._hinted()):
            self._engine.lanes(self._lane_count(hinted))

    def decide(self, mode: Mode) -> None:
        """Give every environment its home; those that change it are moved."""
        self._engine.bounds_main = mode is not False
        hosted = self._hosted()
        self._wants_all = mode is True
        if mode is True and hosted:
            self._place(hosted, self._lane_count(hosted), share=0.0)
            self._why = "use_multiprocessing is true"
        elif mode == "auto":
            self._learn()
            self._decide_by_costs()
        else:
            self._place([], 0, share=1.0)
            self._why = "use_multiprocessing is false"
        self._mixed |= mode != "auto"

    def look_again(self) -> None:
        """After the first turn of a tag that nothing was known about: move it out at once if that clearly pays."""
        so_far = {tag: self._engine.costs[tag].so_far() for tag in self._unseen}
        self._unseen = set()
        ahead = {tag: costs.ahead(_TURNS_AHEAD) for tag, costs in so_far.items()}
        plan = self._best_plan(ahead)
        rebuilding = sum(so_far[tag].seconds for tag in plan.out) / (plan.lanes + 1) + self._starting()
        if plan.out and plan.seconds + rebuilding < sum(costs.seconds for costs in ahead.values()):
            self._mixed = True
            self._follow(replace(plan, out=plan.out | self._plan.out))

    @property
    def wants_to_look_again(self) -> bool:
        """Whether :meth:`look_again` has something to look at."""
        return any(self._engine.costs[tag].so_far().turns for tag in self._unseen)

    # auto

    def _decide_by_costs(self) -> None:
        costs = {spec.tag: self._engine.costs[spec.tag].episode() for spec in self._engine.specs()}
        measured = {tag: cost for tag, cost in costs.items() if cost.turns}
        if self._is_doubtful():
            self._visiting = self._plan
            self._follow(Plan(_NONE, 0, 1.0, 0.0))
            return
        self._unseen = set(costs) - set(measured) - {spec.tag for spec in self._hinted("cheap", "heavy", "io")}
        hinted = {spec.tag for spec in self._hinted() if spec.tag not in measured}
        plan = self._once_ready(self._best_plan(measured), self._expected(measured, (), 0).seconds)
        now = self._expected(measured, self._plan.out & set(measured), self._plan.lanes)
        known = self._plan.out <= {*measured, *hinted} and not self._trials[self._plan.out].pause
        if known and now.seconds <= plan.seconds * (1 + GAIN):
            plan = replace(self._plan, seconds=now.seconds)  # no gain worth a move
        if hinted - plan.out:
            waits = len(self._hinted("io")) == len(self._hinted())
            lanes = max(plan.lanes, self._counts(waits)[-1])
            plan = Plan(plan.out | hinted, lanes, 1 / (lanes + 1), plan.seconds)
        self._follow(plan)

    def _learn(self) -> None:
        """Take down how the present placement did, and leave it if main alone does as well."""
        for trial in self._trials.values():
            trial.wait()
        calls, mixed = self._engine.calls(), self._mixed
        self._mixed = False
        tells = bool(calls) and not mixed  # an episode in which lanes started, or homes changed, tells of neither way
        if tells:
            self._note(calls)
        if self._visiting is not None:
            self._plan, self._visiting = self._visiting, None
        trial, alone = self._trials[self._plan.out], self._trials[_NONE]
        if self._plan.out and alone.per_turn and tells and trial.loses(alone.per_turn):
            trial.give_up()

    def _note(self, calls: Sequence[CallTime]) -> None:
        """Take down an episode in which nothing moved."""
        trial = self._trials[self._plan.out]
        trial.note(calls)
        if self._plan.out:
            self._plan = replace(self._plan, share=self._balanced(calls))
        else:
            kept = statistics.median([(call.seconds - call.own) / (call.turns + CALL) for call in calls])
            self._keeping = 0.5 * (self._keeping + kept) if len(trial.usual) > 2 else kept

    def _is_doubtful(self) -> bool:
        """Whether an episode in main is due, for lack of another way to know how long it takes.

        Not so where building the environments there, and in the lanes again, would take longer than an episode does.
        """
        trial, alone = self._trials[self._plan.out], self._trials[_NONE]
        if not self._plan.out or trial.per_turn is None or not alone.is_due():
            return False
        meters = self._engine.costs
        building = 2 * sum(meters[tag].building() for tag in self._plan.out)
        episode = trial.per_turn * sum(meter.episode().turns for meter in meters.values())
        return trial.per_turn > _SURE * self._alone_per_turn() and building < episode

    def _alone_per_turn(self) -> float:
        """Seconds that a turn should take if main played all."""
        costs = [meter.episode() for meter in self._engine.costs.values()]
        turns = sum(cost.turns for cost in costs)
        seconds = sum(cost.seconds - cost.reset_s for cost in costs) + self._kept(costs)
        return seconds / turns if turns else 0.0

    def _kept(self, costs: Collection[TagCosts]) -> float:
        """Seconds of main's bookkeeping for turns that cost so much."""
        calls = max((cost.calls for cost in costs), default=0.0)
        return self._keeping * (sum(cost.turns for cost in costs) + CALL * calls)

    def _balanced(self, calls: Sequence[CallTime]) -> float:
        """Main's share with which it would have ended together with the lanes in the last episode."""
        share, turn = self._plan.share, self._alone_per_turn()
        slack = _sum(self._slack.note([(call.slack or 0.0) / call.turns for call in calls]), calls)
        shared = sum(self._engine.costs[tag].episode().turns for tag in self._plan.out)
        if not shared or not turn or not self._plan.lanes:
            return share
        surplus = slack / (turn * (1 + 1 / self._plan.lanes)) / shared  # as a part of the turns that are shared
        if len(self._slack) < 2:
            surplus *= 0.5  # one episode alone may be an exception
        if abs(surplus) <= _UNEVEN:
            return share
        self._slack.forget()
        return min(1.0, max(0.0, share - surplus))

    def _best_plan(self, costs: dict[str, TagCosts]) -> Plan:
        """The fastest way; the sequential one unless another saves at least ``GAIN``."""
        hosted = {spec.tag for spec in self._hosted()}
        by_weight = sorted(costs, key=lambda tag: costs[tag].per_turn, reverse=True)
        candidates = [tag for tag in by_weight if tag in hosted]
        sequential = self._expected(costs, _NONE, 0)
        best = sequential
        for size in range(1, len(candidates) + 1):
            out = frozenset(candidates[:size])
            if self._trials[out].pause:
                continue
            for lanes in self._counts(all(costs[tag].waits for tag in out)):
                plan = self._expected(costs, out, lanes)
                best = min(best, plan, key=lambda plan: plan.seconds)
        gain = sequential.seconds - best.seconds
        pays = gain > GAIN * sequential.seconds and gain * EPISODES_AHEAD > self._starting()
        return best if pays else sequential

    def _once_ready(self, plan: Plan, alone: float) -> Plan:
        """The plan, unless its lanes would be waited for longer than they save: they start for the next episode then.

        Not before main alone was timed twice: the first time, code ran for the first time there.

        Args:
            plan: The best one.
            alone: Seconds that main alone would take.
        """
        if not plan.out or self._engine.has_pool or alone - plan.seconds > STARTING:
            return plan
        if len(self._trials[_NONE].usual) < 2:
            return Plan(_NONE, 0, 1.0, alone)
        self._engine.lanes(plan.lanes)
        self._mixed = True
        return Plan(_NONE, 0, 1.0, alone)

    def _starting(self) -> float:
        """Seconds until lanes can be used."""
        return 0.0 if self._engine.has_pool else STARTING

    def _counts(self, waits: bool) -> list[int]:
        """Numbers of lanes worth considering: a processor each beside main, or as many as allowed."""
        most = self._engine.settings.max_workers
        return [most] if waits else [min(most, max(1, usable_cpus() - 1))]

    def _expected(self, costs: dict[str, TagCosts], out: Iterable[str], lanes: int) -> Plan:
        """What an episode takes, and main's share of the tags that are out, when lanes and main end together."""
        out = frozenset(out)
        kept = self._kept(costs.values())
        home = kept + sum(cost.seconds for tag, cost in costs.items() if tag not in out)
        away = sum(costs[tag].seconds for tag in out)
        if not away or not lanes:
            return Plan(_NONE, 0, 1.0, home + away)
        turns = sum(costs[tag].turns for tag in out)
        speed = min(4.0, max(0.5, self._keeping / KEEPING))  # of this machine
        calling = speed * CALLING * max(costs[tag].calls for tag in out)
        waits = all(costs[tag].waits for tag in out)
        abreast = lanes if waits else min(lanes, usable_cpus() - 1)  # lanes that run beside main
        if not abreast:
            return Plan(_NONE, 0, 1.0, home + away)
        carrying = CARRYING * sum(costs[tag].size for tag in out)
        sent = speed * (turns * SENDING + carrying)
        served = (away + speed * (turns * SERVING + carrying)) / abreast
        share = min(1.0, max(0.0, (served + BEFORE * kept - home - sent) / (served + away - sent)))
        main = home + calling + share * away + (1 - share) * sent
        return Plan(out, lanes, share, max(main, (1 - share) * served + calling + BEFORE * kept))

    def _follow(self, plan: Plan) -> None:
        changed = plan.out != self._plan.out
        self._mixed |= changed and bool(plan.out) and self._trials[plan.out].per_turn is None
        if changed:
            self._slack.forget()
        self._plan = plan
        hosted = [spec for spec in self._hosted() if spec.tag in plan.out]
        lanes = min(plan.lanes, len(hosted))
        self._place(hosted, lanes, plan.share)
        self._why = ""
        if changed:
            log.info("placement: %s", "; ".join(f"{tag} {why}" for tag, why in sorted(self.reasons().items())))

    def reasons(self) -> dict[str, str]:
        """Where each tag's environments live and why, by tag."""
        return {tag: self._reason(members[0]) for tag, members in _by_tag(self._engine.specs()).items()}

    def _reason(self, spec: EnvSpec) -> str:
        if spec.env_type in self._sequential:
            return "in main: listed in sequential_env_types"
        where = "in main" if not self._engine.lives_in_lane(spec.tag) else "in lanes"
        if where == "in main" and (kept := self._keeps_home(spec)):
            return f"in main: {kept}"
        if self._why:
            return f"{where}: {self._why}"
        meter = self._engine.costs[spec.tag]
        shared = f" but a share of {self._plan.share:.0%}" if where == "in lanes" and self._plan.share else ""
        return f"{where}{shared}: {(meter.episode() if meter.episode().turns else meter.so_far()).describe()}"

    def _keeps_home(self, spec: EnvSpec) -> str:
        """What keeps a tag in main that was to live in lanes; "" if nothing does."""
        if self._engine.is_bound_to_main(spec.env_id):
            return "does not work in a worker"
        wanted = self._wants_all or (spec.tag in self._plan.out and self._plan.share < 1)
        if not wanted or not (episodes := self._engine.rest()):
            return ""
        return f"the lanes' workers do not start, tried again in {episodes} episode{'s' if episodes > 1 else ''}"

    # Homes

    def _place(self, hosted: Sequence[EnvSpec], count: int, share: float) -> None:
        homes: dict[int, Lane | None] = {spec.env_id: None for spec in self._engine.specs()}
        kept = _main_share(hosted, share)
        away = [spec for spec in hosted if spec.env_id not in kept]
        if away and count and (lanes := self._engine.lanes(min(count, len(away)))):
            homes.update({env_id: lanes[index] for env_id, index in spread(away, len(lanes)).items()})
        self._engine.place(homes)

    def _hosted(self) -> list[EnvSpec]:
        """Environments that may live in lanes."""
        return [
            spec
            for spec in self._engine.specs()
            if spec.env_type not in self._sequential and not self._engine.is_bound_to_main(spec.env_id)
        ]

    def _hinted(self, *hints: str) -> list[EnvSpec]:
        """Environments that declare one of these costs, by default one that pays in lanes."""
        hints = hints or ("heavy", "io")
        return [spec for spec in self._hosted() if getattr(spec.env_class, "cost_hint", None) in hints]

    def _lane_count(self, hosted: Sequence[EnvSpec]) -> int:
        return min(self._engine.settings.max_workers, len(hosted))


def _sum(per_turn: Sequence[float], calls: Sequence[CallTime]) -> float:
    """The sum over all turns of calls, of which one in each takes so much."""
    return sum(value * call.turns for value, call in zip(per_turn, calls, strict=True))


def default_workers() -> int:
    """``max_workers: null``: as many as processors, but no more than 8."""
    return min(8, usable_cpus())


def spread(specs: Sequence[EnvSpec], lanes: int) -> dict[int, int]:
    """Give each environment a lane, every tag evenly over all lanes, groups whole where that stays even.

    Args:
        specs: The environments to host.
        lanes: Number of lanes, at least 1.

    Returns:
        Lane index by env_id.
    """
    homes: dict[int, int] = {}
    first = 0
    for members in _by_tag(specs).values():
        for spec, part in zip(members, _parts(members, lanes), strict=True):
            homes[spec.env_id] = (first + part) % lanes
        first += len(members) % lanes  # tags with a remainder do not all burden the same lane
    return homes


def _parts(members: Sequence[EnvSpec], parts: int) -> list[int]:
    """Which of the tag's even parts each member belongs to."""
    groups = {group_id: place for place, group_id in enumerate(dict.fromkeys(spec.group_id for spec in members))}
    largest = -(-len(groups) // parts) * len(members) / len(groups)
    if largest <= 1.1 * len(members) / parts:
        return [groups[spec.group_id] * parts // len(groups) for spec in members]
    return [position * parts // len(members) for position in range(len(members))]


def _main_share(specs: Sequence[EnvSpec], share: float) -> set[int]:
    """Ids of the environments of each tag that main plays itself: the last ones, so that lanes keep whole groups."""
    kept: set[int] = set()
    for members in _by_tag(specs).values():
        kept.update(spec.env_id for spec in members[len(members) - round(share * len(members)) :])
    return kept


def _by_tag(specs: Iterable[EnvSpec]) -> dict[str, list[EnvSpec]]:
    by_tag: dict[str, list[EnvSpec]] = defaultdict(list)
    for spec in specs:
        by_tag[spec.tag].append(spec)
    return by_tag
