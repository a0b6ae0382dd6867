"""Gives every environment its home: the rule's state from episode to episode, and its plans as environments."""

from __future__ import annotations

import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.placement import auto
from ragen.parallel.placement.auto import RESET, Limits, Situation
from ragen.parallel.placement.costs import CallTime, CostMeter, Episode, usual_costs
from ragen.parallel.placement.records import ALL_MAIN, Plan, State
from ragen.parallel.placement.spread import local_share, spread
from ragen.parallel.settings import Mode

log = logging.getLogger(__name__)

NEVER = sys.maxsize  # a place that no call of an episode has
Homes = dict[int, int | None]  # index of a lane by env_id, None for main
Spread = Callable[[Sequence[EnvSpec], int], Mapping[int, int]]


class Placer:
    """Decides the homes of one engine's environments.

    ``False`` keeps all in main. ``True`` sends all to lanes but the types in ``sequential_env_types``, so that nothing
    an environment does can harm main. ``"auto"`` sends what was measured to pay, see
    :mod:`~ragen.parallel.placement.auto`. Homes are indices of lanes; where fewer lanes can be used, it is the
    caller's business to take others.

    Attributes:
        limits: How many lanes there may be; may change from one decision to the next.
    """

    def __init__(
        self,
        specs: Sequence[EnvSpec],
        sequential_env_types: Collection[str],
        limits: Limits,
        spread: Spread = spread,
    ) -> None:
        self._specs = list(specs)
        self._sequential = frozenset(sequential_env_types)
        self.limits = limits
        self._spread = spread
        self._meters: dict[str, CostMeter] = defaultdict(CostMeter)
        self._state = State()
        self._mode: Mode | None = None
        self._homes: Homes = {}
        self._first = RESET  # place of the first call of this episode that tells of the present plan

    @property
    def lanes_to_start(self) -> int:
        """How many lanes should be starting now, since a plan waits for them."""
        return self._state.starting

    def lanes_at_start(self, mode: Mode) -> int:
        """How many lanes the first reset is going to need; they may as well start now."""
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
            lanes_ready: Lanes that can be used without waiting for their start.
        """
        self._note(episode)
        if mode == "auto":
            self._decide(bound_to_main, lanes_ready)
        before, self._first = self._homes, RESET
        homes = self._follow(mode, bound_to_main)
        if homes != before:
            self._first = RESET + 1  # a reset that builds environments is none that is usual
        return homes

    def at_switch(self, mode: Mode, bound_to_main: Collection[int] = frozenset()) -> Homes:
        """Homes for the rest of the episode after ``use_multiprocessing`` was set; it tells of no plan then."""
        self._first = NEVER
        return self._follow(mode, bound_to_main)

    def may_look_again(self, calls: int) -> bool:
        """Whether :meth:`before_turn` has something to look at: after 2, 4, 8, ... calls, or while lanes start."""
        if calls < 2 or (calls & (calls - 1) and not self._state.starting):
            return False
        return self._mode == "auto" and (self._state.episode == 1 or bool(self._state.now.out))

    def before_turn(
        self, episode: Episode, bound_to_main: Collection[int] = frozenset(), lanes_ready: int = 0
    ) -> Homes | None:
        """Before a further turn is played: new homes, where that should not wait for the next reset.

        That is so where the first episode shows that lanes clearly pay, and where lanes clearly lose. The arguments are
        those of :meth:`at_reset`, of the present episode.
        """
        count = len(episode.calls)
        if not self.may_look_again(count):
            return None
        played = self._places(episode)
        given = self._situation(bound_to_main, lanes_ready)
        given = replace(given, costs={tag: cost for tag, cost in episode.tags.items() if cost.turns})
        before = self._state.noted(played)
        if not self._state.now.out:
            after = auto.look_again(before, given, count)
        else:
            after = auto.break_off(before, given, played) if played else before
        if after.now == before.now:
            self._state = replace(self._state, starting=after.starting)
            return None
        self._state, self._first = after, count + 1  # the call that builds environments does not count
        return self._follow("auto", bound_to_main)

    def reasons(self, in_lanes: Collection[str], held: Mapping[str, str]) -> dict[str, str]:
        """Where each tag's environments live and why, by tag; ``held``: what holds tags in main."""
        return {spec.tag: self._reason(spec, spec.tag in in_lanes, held.get(spec.tag, "")) for spec in self._specs}

    def _reason(self, spec: EnvSpec, is_out: bool, held: str) -> str:
        where = "in lanes" if is_out else "in main"
        if spec.env_type in self._sequential:
            return f"{where}: listed in sequential_env_types"
        if held and not is_out:
            return f"{where}: {held}"
        if self._mode != "auto":
            return f"{where}: use_multiprocessing is {str(bool(self._mode)).lower()}"
        share = self._state.now.share
        shared = f" but a share of {share:.0%}" if is_out and share else ""
        return f"{where}{shared}: {self._meters[spec.tag].usual().describe()}"

    # The rule

    def _note(self, episode: Episode) -> None:
        if self._mode == "auto":
            self._state = self._state.noted(self._places(episode))
        for tag, costs in episode.tags.items():
            self._meters[tag].note(costs)

    def _places(self, episode: Episode) -> dict[int, CallTime]:
        """The calls of an episode that tell of the present plan, by their places."""
        calls = {RESET: episode.reset} if episode.reset else {}
        calls |= dict(enumerate(episode.calls))
        return {place: call for place, call in calls.items() if place >= self._first and call.turns}

    def _decide(self, bound_to_main: Collection[int], lanes_ready: int) -> None:
        given, before = self._situation(bound_to_main, lanes_ready), self._state.now
        if not self._state.episode:
            self._state = self._state.keeping(self._hinted(bound_to_main))
        self._state = auto.decide(self._state, given)
        if self._state.now.out != before.out:
            log.info("placement: %s", _words(self._state.now))

    def _situation(self, bound_to_main: Collection[int], lanes_ready: int) -> Situation:
        members = Counter(spec.tag for spec in self._hosted(bound_to_main))
        return Situation(usual_costs(self._meters), members, self.limits, lanes_ready)

    # Environments

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
        """Environments that may live in lanes."""
        return [
            spec for spec in self._specs if spec.env_type not in self._sequential and spec.env_id not in bound_to_main
        ]

    def _hinted(self, bound_to_main: Collection[int]) -> Plan:
        """Before anything was measured: out go tags of which their classes say that it pays, or which wait together."""
        hosted = self._hosted(bound_to_main)
        hints = {spec.tag: getattr(spec.env_class, "cost_hint", None) for spec in hosted}
        hints |= {spec.tag: "io" for spec in hosted if spec.overlap_waits}
        out = {tag: hint for tag, hint in hints.items() if hint in ("heavy", "io")}
        lanes = self.limits.lanes(all(hint == "io" for hint in out.values())) if out else 0
        return Plan.even(out, lanes) if lanes else ALL_MAIN

    def _most_lanes(self, hosted: Sequence[EnvSpec]) -> int:
        return min(self.limits.max_workers, len(hosted))


def _words(plan: Plan) -> str:
    return f"{', '.join(sorted(plan.out))} shared with {plan.lanes} lanes" if plan.out else "all in main"
