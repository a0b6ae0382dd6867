"""The rule of ``auto``: which tags live in workers, and how many workers there are.

The ``cost_hint`` of a class decides beforehand: ``"heavy"`` and ``"io"`` send a tag to workers, ``"cheap"`` keeps it in
main. Any other tag begins in main, and goes to workers once a turn or a reset takes ``EACH_S`` or more, and a call
``CALL_S`` or more:

- This is looked at before each call, and after every ``LOOK_S`` of a call, by what main has measured so far. A turn
  counts as it usually is: without the first in each process, and without the longest of each call.
- What is left of the call goes with it if main would need longer for that than workers take to start; otherwise the tag
  goes before the first later call for which workers are up. Environments that were reset in main are reset again in
  workers, so if a reset takes longer than ``AHEAD`` turns, they stay until the next reset.
- At a reset, a tag returns to main if its last episode took less than ``BACK`` of both figures.
- There are ``max_workers`` workers, or as many as processors; or as many as keep the processors busy, if environments
  mostly wait. Where fewer than two are of use, as for turns that compute on all processors, the tag stays in main.

Main plays what stays in main, and no share of the rest. Nothing here knows where an environment is; that is
:mod:`envlanes.placement`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from envlanes.episode.spec import EnvSpec, by_tag
from envlanes.stats import Costs

# A message to a worker and back takes .2 ms, and .01 ms for each environment: with these figures workers always pay.
# Turns of .05 to 1 ms with many environments would gain some milliseconds a call on idle processors, and are left.
EACH_S, CALL_S = 1e-3, 1e-2  # seconds of one environment, and of all environments of a tag in one call
BACK = 0.3  # so that a tag near the threshold does not move at each reset
LOOK_S = 0.02  # two calls that pay: less would measure too little, more would be lost in a first call of 32 x 20 ms
AHEAD = 4  # turns that pay for a second reset within an episode of usual length, of ten turns or so
START_S = 0.3  # .2 to .5 were measured until the first worker answers
# Chosen, halfway between a turn that waits, one that computes, and one that computes on two processors.
WAITS, PARALLEL = 0.5, 1.5  # processors kept busy: up to here a turn mostly waits, from here on it has threads
# Most workers for environments that wait, since each is a process; and bytes of one, of half of what is free.
MOST_WAITING, WORKER_BYTES = 64, 1e8


@dataclass(frozen=True)
class WorkerLimits:
    """Limits on the number of workers.

    Attributes:
        max_workers: The configured number; None if none is.
        cpus: Processors that workers may use.
        round_trip_s: Seconds that a message to a worker and back takes, beyond what it takes on one machine.
    """

    max_workers: int | None
    cpus: int
    round_trip_s: float = 0.0

    @property
    def most(self) -> int:
        """The number of workers with ``use_multiprocessing: true``."""
        return self.max_workers or self.cpus

    def workers(self, busy: float, envs: int) -> int:
        """The number of workers of use to environments that keep ``busy`` processors busy each; 0 if main is."""
        if WAITS < busy < PARALLEL:
            busy = 1.0  # within the accuracy of the measurement
        useful = int(min(self.cpus / busy, MOST_WAITING)) if busy > 0 else MOST_WAITING
        if useful > self.cpus:
            useful = max(self.cpus, min(useful, _fit_in_memory()))
        workers = min(self.max_workers or useful, envs)
        return workers if min(workers, useful) > 1 else 0  # one worker plays no faster than main


def _fit_in_memory() -> int:
    import psutil  # late: only for environments that wait

    return int(psutil.virtual_memory().available / 2 / WORKER_BYTES)


class Auto:
    """Decides which tags live in workers.

    Attributes:
        limits: Limits on the number of workers; may change from one decision to the next.
        workers: The number of workers of use to each tag that lives in workers, or is about to move there.
    """

    def __init__(self, limits: WorkerLimits) -> None:
        self.limits = limits
        self.workers: dict[str, int] = {}
        self._members: dict[str, list[EnvSpec]] = {}
        self._due: set[str] = set()

    @property
    def is_due(self) -> bool:
        """Whether tags have yet to move."""
        return bool(self._due)

    @property
    def most(self) -> int:
        """The number of workers that tags live in, or are about to move to."""
        return max(self.workers.values(), default=0)

    def at_reset(self, specs: Sequence[EnvSpec], costs: Mapping[str, Costs]) -> None:
        """Decide for the environments that may move, by the costs of the last episode."""
        self._members = by_tag(specs)
        self._due.clear()
        for tag, members in self._members.items():
            before = self.workers.get(tag, 0)
            if hint := cost_hint(members[0]):
                workers = 0 if hint == "cheap" else self.limits.workers(float(hint == "heavy"), len(members))
            elif tag in costs and (costs[tag].turns.number or not before):
                workers = self._useful(costs[tag], len(members), BACK if before else 1.0)
            else:
                continue  # resets alone do not bring a tag back: its turns may take as long as before
            # A number that was measured stays: in workers, environments wait for each other's processors.
            self.workers[tag] = workers and (workers if self.limits.max_workers else before or workers)
        self.workers = {tag: count for tag, count in self.workers.items() if count and tag in self._members}

    def consider(self, costs: Mapping[str, Costs], left: Collection[int]) -> None:
        """Send tags to workers by what main has measured, in this episode or in this call.

        Args:
            costs: Costs by tag.
            left: The environments that a call has yet to play or to reset.
        """
        for tag in costs.keys() & self._members.keys():
            members = self._members[tag]
            cost = costs[tag]
            is_open = tag not in self.workers or tag in self._due  # resets may compute, and turns wait
            # More than the first of each process, which may have imported something.
            is_usual = cost.turns.usual or cost.resets.usual
            if is_open and is_usual and cost.usual_s >= EACH_S and not cost_hint(members[0]):
                envs = sum(spec.env_id in left for spec in members)
                if workers := self._useful(cost, envs):
                    self.workers[tag] = workers
                    self._due.add(tag)

    def due(
        self, left: Collection[int], spent: Mapping[str, Costs], so_far: Mapping[str, Costs], ready: int
    ) -> set[int]:
        """The environments that should move now.

        Args:
            left: Environments that main has yet to play or to reset in this call.
            spent: Costs of such calls, by tag, whose ``turns`` count.
            so_far: Costs of the episode, whose resets are done again; empty if the call begins it.
            ready: Number of workers that are up.
        """
        moving = set[int]()
        for tag in self._due:
            waiting = [spec.env_id for spec in self._members[tag] if spec.env_id in left]
            each = spent.get(tag, Costs()).turns.usual_s
            is_up = ready >= self.most or len(waiting) * each > START_S
            if is_up and so_far.get(tag, Costs()).resets.usual_s <= AHEAD * each:
                moving.update(waiting)
        return moving

    def _useful(self, costs: Costs, envs: int, part: float = 1.0) -> int:
        """The number of workers for environments of these costs; 0 if they belong in main."""
        # A call of less than ten round trips would lose a tenth of its time and more to the network.
        each, call_s = costs.usual_s, CALL_S + 10 * self.limits.round_trip_s
        return self.limits.workers(costs.busy, envs) if each >= part * EACH_S and each * envs >= part * call_s else 0


def cost_hint(spec: EnvSpec) -> str:
    """The cost that a class declares; ``""`` if it declares none."""
    return getattr(spec.env_class, "cost_hint", None) or ""


def spread(specs: Sequence[EnvSpec], workers: int) -> dict[int, int]:
    """Assign environments to workers: each tag evenly over all, neighbors together.

    Returns:
        Index of a worker by env_id.
    """
    homes: dict[int, int] = {}
    first = 0
    for members in by_tag(specs).values() if workers else ():
        parts = min(workers, len(members))
        for position, spec in enumerate(members):
            homes[spec.env_id] = (first + position * parts // len(members)) % workers
        first += len(members) % workers  # so that the remainders of tags do not all go to the same worker
    return homes
