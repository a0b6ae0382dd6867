"""What a choice of groups looks at."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Protocol

ZERO = 1e-10  # what measures no more than this measures nothing
KEPT_RATIO = "rollout/filter_kept_ratio"  # the metric that says which share of the groups is kept


class Measured(Protocol):
    """A group of trajectories from the same start, as far as a choice looks at it."""

    @property
    def scores(self) -> Sequence[float]:
        """What its trajectories are trained on: rewards and penalties."""

    @property
    def rewards(self) -> Sequence[float]:
        """What its trajectories earned, without penalties."""

    @property
    def lengths(self) -> Sequence[int]:
        """How many tokens the model chose in each trajectory."""

    @property
    def entropies(self) -> Sequence[float]:
        """The mean entropy of a token of each trajectory, in nats; empty where it was not asked for."""


def spread(values: Sequence[float]) -> float:
    """The standard deviation (n - 1); 0 of a single value."""
    return stdev(values) if len(values) > 1 else 0.0


def reward_std(group: Measured) -> float:
    """The standard deviation (n - 1) of a group's rewards; 0 for a group of one."""
    return spread(group.rewards)


def reward_mean(group: Measured) -> float:
    """The mean of a group's rewards."""
    return fmean(group.rewards)


def kept_metrics(count: int, measures: Sequence[float]) -> dict[str, float]:
    """How many groups are kept, under RAGEN's names.

    Args:
        count: How many are.
        measures: What was measured of each group.
    """
    return {
        "rollout/filter_kept_count": float(count),
        KEPT_RATIO: count / len(measures) if measures else 0.0,
        "rollout/filter_zero_count": float(sum(abs(each) <= ZERO for each in measures)),
    }


def spread_metrics(name: str, values: Sequence[Sequence[float]], chosen: Sequence[int]) -> dict[str, float]:
    """Means over groups of the spread, the largest and the mean within each, under RAGEN's names.

    Args:
        name: What the values are.
        values: A group's, for each of its trajectories.
        chosen: The places of the groups that are kept.
    """
    found: dict[str, float] = {}
    for what, of in (("std", spread), ("max", max), ("mean", fmean)):
        measured = [float(of(each)) for each in values]
        kept = [measured[place] for place in chosen]
        found[f"rollout/in_group_{name}_{what}"] = fmean(measured) if measured else 0.0
        found[f"rollout/chosen_in_group_{name}_{what}"] = fmean(kept) if kept else 0.0
    return found
