"""Placement: which environments live in workers, and how many workers there are.

``use_multiprocessing: true`` sends all environments to workers but those of ``sequential_env_types``; ``false`` keeps
all in the main process. With ``"auto"``, the ``cost_hint`` of a class decides beforehand: ``"heavy"`` and ``"io"`` send
a tag to workers, ``"cheap"`` keeps it in main. Any other tag begins in main, and goes to workers once a turn or a reset
takes ``EACH_S`` or more, and a call ``CALL_S`` or more:

- This is looked at before each call, and after every ``LOOK_S`` of a call, by what main has measured so far. A turn
  counts as it usually is: without the first in each process, and without the longest of each call.
- What is left of the call goes with it if main would need longer for that than workers take to start; otherwise the tag
  goes before the first later call for which workers are up. Environments that were reset in main are reset again in
  workers, so if a reset takes longer than ``AHEAD`` turns, they stay until the next reset.
- At a reset, a tag returns to main if its last episode took less than ``BACK`` of both figures.
- There are ``max_workers`` workers, or as many as processors; or as many as keep the processors busy, if environments
  mostly wait. Where fewer than two are of use, as for turns that compute on all processors, the tag stays in main.

Main plays what stays in main, and no share of the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from envlanes.episode.clock import Spent
from envlanes.episode.spec import EnvSpec, by_tag
from envlanes.settings import Mode, Settings
from envlanes.stats import Costs
from envlanes.this_process import usable_cpus

# A message to a worker and back takes .2 ms, and .01 ms for each environment: with these figures workers always pay.
EACH_S, CALL_S = 1e-3, 1e-2  # seconds of one environment, and of all environments of a tag in one call
BACK = 0.3  # so that a tag near the threshold does not move at each reset
LOOK_S = 0.02  # seconds
AHEAD = 4  # turns
START_S = 0.3  # seconds; .2 to .5 were measured
WAITS, PARALLEL = 0.5, 1.5  # processors kept busy: up to here a turn mostly waits, from here on it has threads
MOST_WAITING, WORKER_BYTES = 64, 1e8  # most workers for environments that wait; bytes of one (half of what is free)

Homes = dict[int, int | None]
"""Index of a worker by env_id; None for the main process."""


@dataclass(frozen=True)
class Limits:
    """How many workers there may be.

    Attributes:
        given: The number of workers that was asked for; None if none was.
        cpus: Processors that workers may use.
        round_trip_s: Seconds that a message to a worker and back takes, beyond what it takes on one machine.
    """

    given: int | None
    cpus: int
    round_trip_s: float = 0.0

    @classmethod
    def here(cls, settings: Settings) -> Limits:
        """The limits of this machine."""
        return cls(settings.max_workers, settings.workers if settings.max_workers is None else usable_cpus())

    def workers(self, busy: float, envs: int) -> int:
        """The number of workers of use to environments that keep ``busy`` processors busy each; 0 if main is."""
        if WAITS < busy < PARALLEL:
            busy = 1.0  # within the accuracy of the measurement
        useful = int(min(self.cpus / busy, MOST_WAITING)) if busy > 0 else MOST_WAITING
        if useful > self.cpus:
            useful = max(self.cpus, min(useful, _fit_in_memory()))
        workers = min(self.given or useful, envs)
        return workers if min(workers, useful) > 1 else 0


def _fit_in_memory() -> int:
    import psutil  # late: only for environments that wait

    return int(psutil.virtual_memory().available / 2 / WORKER_BYTES)


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
        limits: Limits = Limits(None, 0),  # frozen
    ) -> None:
        """Register the environments.

        Args:
            specs: All environments to place.
            sequential_env_types: Types that stay in main.
            limits: How many workers there may be.
        """
        self._specs = {spec.env_id: spec for spec in specs}
        self._tags = by_tag(spec for spec in specs if spec.env_type not in sequential_env_types)
        self._hints = {tag: hint for tag, members in self._tags.items() if (hint := _hint(members[0]))}
        self._measured = self._tags.keys() - self._hints.keys()
        self.limits = limits
        self._workers: dict[str, int] = {}  # number of workers of use to a tag, by tag; of tags that go to workers
        self._due: set[str] = set()  # tags that have not moved yet
        self._follow_hints()

    @property
    def workers(self) -> int:
        """The number of workers that tags are in, or go to, under ``"auto"``."""
        return max(self._workers.values(), default=0)

    def workers_at_start(self, mode: Mode) -> int:
        """The number of workers that the first reset will need, so that they can start now."""
        if mode == "auto":
            return self.workers
        return min(self._most, sum(map(len, self._tags.values()))) if mode else 0

    def at_reset(self, mode: Mode, costs: Mapping[str, Costs], bound: Collection[int] = ()) -> Homes:
        """Homes for the episode that begins now, by the costs of the last one; those in ``bound`` stay in main."""
        if mode == "auto":
            self._follow_hints()
            for tag in self._measured & costs.keys():
                is_out, (turns, _) = tag in self._workers, costs[tag]
                if turns.number or not is_out:  # else its turns may take as long as before
                    part = BACK if is_out else 1.0
                    self._decide(tag, self._useful(costs[tag].usual_s, costs[tag].busy, len(self._tags[tag]), part))
        self._due.clear()
        return self.homes(mode, bound)

    def homes(self, mode: Mode, bound: Collection[int] = ()) -> Homes:
        """Homes of all environments as far as is decided; those in ``bound`` stay in main."""
        workers, tags = (self.workers, self._workers) if mode == "auto" else (self._most if mode else 0, self._tags)
        away = [
            spec for tag, members in self._tags.items() if tag in tags for spec in members if spec.env_id not in bound
        ]
        homes: Homes = dict.fromkeys(self._specs)
        return homes | dict(spread(away, min(workers, len(away)))) if away and workers else homes

    # Within an episode

    def before_turn(self, costs: Mapping[str, Costs]) -> None:
        """Send tags to workers by what the episode has cost so far."""
        for tag in self._measured & costs.keys() - self._workers.keys():
            if costs[tag].turns.usual or costs[tag].resets.usual:
                self._send(tag, costs[tag].usual_s, costs[tag].busy, len(self._tags[tag]))

    def within_call(self, requested: Collection[int], spent: Mapping[str, Spent]) -> None:
        """Send tags to workers by what main has spent on them in a call that plays or resets those ``requested``."""
        for tag in self._measured & spent.keys():
            if spent[tag].usual:
                envs = sum(spec.env_id in requested for spec in self._tags[tag])
                self._send(tag, spent[tag].usual_s, spent[tag].busy, envs)

    def _send(self, tag: str, each: float, busy: float, envs: int) -> None:
        is_open = tag not in self._workers or tag in self._due  # resets may compute, and turns wait
        if is_open and (workers := self._useful(each, busy, envs)):
            self._workers[tag] = workers
            self._due.add(tag)

    @property
    def is_due(self) -> bool:
        """Whether tags have yet to move."""
        return bool(self._due)

    def due(
        self, env_ids: Collection[int], spent: Mapping[str, Spent], costs: Mapping[str, Costs] | None, ready: int
    ) -> list[int]:
        """The environments that should move now.

        Args:
            env_ids: Environments that a call has yet to play or to reset.
            spent: Time of such turns or resets, by tag.
            costs: Costs of the episode so far, whose resets are done again; None if the call begins the episode.
            ready: Number of workers that are up.
        """
        found: list[int] = []
        for tag in self._due:
            left = [spec.env_id for spec in self._tags[tag] if spec.env_id in env_ids]
            each = spent.get(tag, Spent()).usual_s
            is_up = ready >= self.workers or len(left) * each > START_S
            if is_up and (costs is None or costs.get(tag, Costs()).resets.usual_s <= AHEAD * each):
                found += left
        return found

    # The rule

    def _useful(self, each: float, busy: float, envs: int, part: float = 1.0) -> int:
        """The number of workers for environments that take ``each`` seconds; 0 if they belong in main."""
        pays = each >= part * EACH_S and each * envs >= part * (CALL_S + 10 * self.limits.round_trip_s)
        return self.limits.workers(busy, envs) if pays else 0

    def _decide(self, tag: str, workers: int) -> None:
        """Set the number of workers of use to a tag, for the next episode.

        A number that was measured stays: in workers, environments wait for each other's processors.
        """
        before = self._workers.pop(tag, 0)
        if workers:
            self._workers[tag] = workers if self.limits.given else before or workers

    def _follow_hints(self) -> None:
        for tag, hint in self._hints.items():
            if hint != "cheap":
                self._decide(tag, self.limits.workers(float(hint == "heavy"), len(self._tags[tag])))

    @property
    def _most(self) -> int:
        return self.limits.given or self.limits.cpus

    def reasons(
        self, in_workers: Collection[str], held: Mapping[str, str], costs: Mapping[str, Costs], mode: Mode
    ) -> dict[str, str]:
        """Where each tag's environments live and why, by tag.

        Args:
            in_workers: Tags that live in workers.
            held: Reasons why tags must stay in main.
            costs: Costs of turns and resets, by tag.
            mode: ``use_multiprocessing``.
        """
        reasons = {}
        for tag in by_tag(self._specs.values()):
            where = "in workers" if tag in in_workers else "in main"
            why = costs.get(tag, Costs()).describe()
            if tag in held and tag not in in_workers:
                why = held[tag]
            elif tag not in self._tags:
                why = "named by sequential_env_types"
            elif mode != "auto":
                why = f"use_multiprocessing is {str(mode).lower()}"
            elif hint := self._hints.get(tag):
                why = f"its class declares cost_hint = {hint!r}; {why}"
            reasons[tag] = f"{where}: {why}"
        return reasons


def _hint(spec: EnvSpec) -> str:
    return getattr(spec.env_class, "cost_hint", None) or ""


def spread(specs: Sequence[EnvSpec], workers: int) -> dict[int, int]:
    """Assign environments to workers: each tag evenly over all, without splitting groups where that stays even.

    Where groups are split, members of one stay together as far as possible: in a worker they share a reset.

    Returns:
        Index of a worker by env_id.
    """
    homes: dict[int, int] = {}
    first = 0
    for members in by_tag(specs).values():
        for spec, part in zip(members, _parts(members, workers), strict=True):
            homes[spec.env_id] = (first + part) % workers
        first += len(members) % workers  # so that the remainders of tags do not all go to the same worker
    return homes


def _parts(members: Sequence[EnvSpec], parts: int) -> list[int]:
    """The even part of the tag that each member belongs to."""
    groups = {group_id: place for place, group_id in enumerate(dict.fromkeys(spec.group_id for spec in members))}
    largest = -(-len(groups) // parts) * len(members) / len(groups)
    if largest <= 1.1 * len(members) / parts:
        return [groups[spec.group_id] % parts for spec in members]
    each, more = divmod(len(members), parts)
    ends = list(accumulate(each + (part < more) for part in range(parts)))
    order = sorted(range(len(members)), key=lambda at: groups[members[at].group_id])  # neighbors share their reset
    part_of = {at: bisect_right(ends, position) for position, at in enumerate(order)}
    return [part_of[at] for at in range(len(members))]
