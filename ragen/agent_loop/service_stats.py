"""The statistics of a service, and the metrics derived from them.

All fields except ``sessions`` and ``waiting`` only grow, so that the difference of two readings covers the time in
between (:meth:`ServiceStats.since`): a trainer reads them once per step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

from ragen.parallel.stats import LaneStats

PREFIX = "env_service/"
_SHORTEST = 1e-4  # seconds; the first bin holds all that is shorter
_BINS = 56  # each wider than the one before by the factor below: up to some hours
_FACTOR = math.sqrt(2)
_MOMENTS = ("sessions", "waiting")


@dataclass
class Times:
    """A histogram of durations, in bins with upper limits that grow by a factor of 1.41.

    Attributes:
        count: Number of durations.
        total: Their sum, in seconds.
        bins: Number of durations in each bin.
    """

    count: int = 0
    total: float = 0.0
    bins: list[int] = field(default_factory=lambda: [0] * _BINS)

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration ``times`` times."""
        place = 0 if seconds <= _SHORTEST else math.ceil(math.log(seconds / _SHORTEST, _FACTOR))
        self.bins[min(place, _BINS - 1)] += times
        self.count += times
        self.total += seconds * times

    def quantile(self, share: float) -> float:
        """The quantile in seconds, rounded up to the end of its bin; 0 without durations."""
        seen = 0
        for place, number in enumerate(self.bins):
            seen += number
            if number and seen >= share * self.count:
                return float(_SHORTEST * _FACTOR**place)
        return 0.0

    @property
    def mean(self) -> float:
        """The mean in seconds; 0 without durations."""
        return self.total / self.count if self.count else 0.0

    def plus(self, other: Times, sign: int = 1) -> Times:
        """The sum of both; with ``sign=-1`` the difference."""
        bins = [mine + sign * theirs for mine, theirs in zip(self.bins, other.bins, strict=True)]
        return Times(self.count + sign * other.count, self.total + sign * other.total, bins)


@dataclass
class ServiceStats:
    """The statistics of a service.

    Attributes:
        service: Its unique id.
        sessions: Number of open environments.
        waiting: Number of requests that wait for their lanes.
        opened: Environments opened so far.
        turns: Turns played so far.
        batches: Number of engine calls with turns.
        largest: Maximum number of turns that went in one call.
        failed: Turns and resets of environments that failed for good.
        refused: Environments not opened because too many were open.
        late_in_queue: Requests that timed out while they waited for their lane.
        late_at_work: Requests that timed out after their lane had started them.
        callers_lost: Callers that were gone without having left.
        abandoned: Environments closed because their callers were gone, or no longer used them.
        rebuilt: Environments that callers reopened after they had lost a service.
        queued: Durations that requests waited for their lanes.
        worked: Durations of the engine's calls, for each request in them.
        inside_s: Seconds spent inside closed environments.
        lanes: Statistics of each worker, see :class:`~ragen.parallel.stats.LaneStats`.
    """

    service: str = ""
    sessions: int = 0
    waiting: int = 0
    opened: int = 0
    turns: int = 0
    batches: int = 0
    largest: int = 0
    failed: int = 0
    refused: int = 0
    late_in_queue: int = 0
    late_at_work: int = 0
    callers_lost: int = 0
    abandoned: int = 0
    rebuilt: int = 0
    inside_s: float = 0.0
    queued: Times = field(default_factory=Times)
    worked: Times = field(default_factory=Times)
    lanes: list[LaneStats] = field(default_factory=list)

    @property
    def restarts(self) -> int:
        """Workers that had to be replaced."""
        return sum(lane.restarts for lane in self.lanes)

    def since(self, earlier: ServiceStats) -> ServiceStats:
        """The difference to an earlier reading of the same service; gauges, ``largest`` and ``lanes`` are kept."""
        grown = {name: getattr(self, name) - getattr(earlier, name) for name in _growing()}
        queued, worked = self.queued.plus(earlier.queued, -1), self.worked.plus(earlier.worked, -1)
        return replace(self, **grown, queued=queued, worked=worked)

    def plus(self, other: ServiceStats) -> ServiceStats:
        """The sum of both, with the lanes of this one."""
        summed = {name: getattr(self, name) + getattr(other, name) for name in (*_MOMENTS, *_growing())}
        queued, worked = self.queued.plus(other.queued), self.worked.plus(other.worked)
        return replace(self, **summed, largest=max(self.largest, other.largest), queued=queued, worked=worked)

    def metrics(self) -> dict[str, float]:
        """Metrics by name; times in seconds."""
        return together([self])


def together(services: Sequence[ServiceStats]) -> dict[str, float]:
    """Metrics of several services, one per node: sums, and times over all requests.

    Args:
        services: The statistics of each, for a step (:meth:`ServiceStats.since`) or in total.
    """
    values: dict[str, float] = {"services": len(services)}
    for name in (*_MOMENTS, *_growing(), "restarts"):
        values[name] = sum(getattr(stats, name) for stats in services)
    queued, worked = Times(), Times()
    for stats in services:
        queued, worked = queued.plus(stats.queued), worked.plus(stats.worked)
    for name, times in (("queued", queued), ("worked", worked)):
        values |= {f"{name}_s/mean": times.mean, f"{name}_s/p50": times.quantile(0.5)}
        values[f"{name}_s/p99"] = times.quantile(0.99)
    values["turns_per_batch"] = values["turns"] / values["batches"] if values["batches"] else 0.0
    return {f"{PREFIX}{name}": float(value) for name, value in values.items()}


def _growing() -> list[str]:
    """The names of the fields that only grow."""
    others = ("service", *_MOMENTS, "largest", "queued", "worked", "lanes")
    return [each.name for each in fields(ServiceStats) if each.name not in others]
