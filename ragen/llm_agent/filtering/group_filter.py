"""RAGEN's group filters: which groups of trajectories to train on.

The filter of 2025 (arXiv:2504.20073) keeps the fraction ``rollout_filter_ratio`` of the groups whose rewards vary most,
or that rank first by another ``rollout_filter_type``. RAGEN-2 has a strategy and a value instead. The keys are
``agent_proxy.rollout_filter_*``, or else ``actor_rollout_ref.rollout.rollout_filter_*``; those of RAGEN-2:

===========================  ====================  =================================================================
key                          default               meaning
===========================  ====================  =================================================================
``rollout_filter_strategy``  ``top_p``             ``top_p``, ``top_k`` (a fraction of all groups), ``top_k_abs`` (a
                                                   number of groups) or ``min_p`` (not below this share of the best)
``rollout_filter_value``     1.0                   the strategy's number
``rollout_filter_type``      ``largest``           whether the ``largest`` or the ``smallest`` rank first
``rollout_filter_metric``    ``reward_variance``   ``reward_variance`` (the standard deviation), ``reward`` (the
                                                   mean), ``reward_sum``, ``length`` (the mean number of tokens),
                                                   ``entropy`` (the mean over trajectories of a token's mean entropy,
                                                   in nats) or ``entropy_variance`` (their standard deviation)
``..include_zero``           true                  whether groups with measure 0 may be chosen
``..top_p_prob_mode``        ``linear``            ``linear``: shares are of the sum of the measures;
                                                   ``softmax``: of the sum of their softmax
``..selection_eps``          0.01                  tolerance of that share (``linear``)
===========================  ====================  =================================================================

Rewards include penalties. If no group is left, the tiny trainer skips the step, and verl's trainer samples again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

from ragen.errors import ConfigError
from ragen.settings import choice, count, number, setting
from ragen.statistics import sample_std

# Keys


PREFIX = "rollout_filter_"
NAMES = (
    "empty_stop_steps",
    "include_zero",
    "metric",
    "ratio",
    "selection_eps",
    "strategy",
    "top_p_prob_mode",
    "type",
    "value",
)
"""The keys without the prefix."""


def filter_key(config: Any, name: str) -> str:
    """The key of a filter setting: under ``agent_proxy`` if it is set there."""
    ours, ragens = f"agent_proxy.rollout_filter_{name}", f"actor_rollout_ref.rollout.rollout_filter_{name}"
    return ours if setting(config, ours, object, None) is not None else ragens


# Measures


ZERO = 1e-10  # measures up to this count as 0
KEPT_RATIO = "rollout/filter_kept_ratio"  # the fraction of groups that is kept


class Measured(Protocol):
    """A group of trajectories from the same initial state, as filters see it."""

    @property
    def scores(self) -> Sequence[float]:
        """The trajectories' rewards with penalties, which are trained on."""

    @property
    def rewards(self) -> Sequence[float]:
        """The trajectories' rewards without penalties."""

    @property
    def lengths(self) -> Sequence[int]:
        """Number of sampled tokens of each trajectory."""

    @property
    def entropies(self) -> Sequence[float]:
        """The mean entropy per token of each trajectory, in nats; empty if it was not computed."""


def reward_std(group: Measured) -> float:
    """The sample standard deviation of a group's rewards; 0 for a group of one."""
    return sample_std(group.rewards)


def reward_mean(group: Measured) -> float:
    """The mean of a group's rewards."""
    return fmean(group.rewards)


def kept_metrics(count: int, measures: Sequence[float]) -> dict[str, float]:
    """Metrics of the number of kept groups, under RAGEN's names.

    Args:
        count: Number of kept groups.
        measures: The measure of each group.
    """
    return {
        "rollout/filter_kept_count": float(count),
        KEPT_RATIO: count / len(measures) if measures else 0.0,
        "rollout/filter_zero_count": float(sum(abs(each) <= ZERO for each in measures)),
    }


def spread_metrics(name: str, values: Sequence[Sequence[float]], chosen: Sequence[int]) -> dict[str, float]:
    """Means over groups of the standard deviation, maximum and mean within each, under RAGEN's names.

    Args:
        name: Name of the values.
        values: The values of each group's trajectories.
        chosen: Indices of the kept groups.
    """
    found: dict[str, float] = {}
    for what, of in (("std", sample_std), ("max", max), ("mean", fmean)):
        measured = [float(of(each)) for each in values]
        kept = [measured[place] for place in chosen]
        found[f"rollout/in_group_{name}_{what}"] = fmean(measured) if measured else 0.0
        found[f"rollout/chosen_in_group_{name}_{what}"] = fmean(kept) if kept else 0.0
    return found


# The filter of 2025


EPSILON = 1e-6  # of a group: tolerance for fractions that floats cannot represent

FILTER_TYPES: dict[str, tuple[Callable[[Measured], float], int]] = {
    "std": (reward_std, 1),
    "std_rev": (reward_std, -1),
    "mean": (reward_mean, 1),
    "mean_rev": (reward_mean, -1),
}
"""By ``rollout_filter_type``: the measure, and whether the largest (1) or the smallest (-1) are kept."""


@dataclass(frozen=True)
class BestShare:
    """Keeps a fraction of the groups.

    Attributes:
        ratio: The fraction of groups to keep, above 0 and up to 1.
        kind: Which ones, a key of ``FILTER_TYPES``.
    """

    ratio: float = 1.0
    kind: str = "std"

    def keeps_all(self) -> bool:
        """Whether all groups are always kept."""
        return self.ratio >= 1

    @property
    def needs_entropies(self) -> bool:
        """Whether the filter needs entropies."""
        return False

    def measures(self, groups: Sequence[Measured]) -> list[float]:
        """The measure of each group."""
        measure, _ = FILTER_TYPES[self.kind]
        return [measure(group) for group in groups]

    def chosen(self, measures: Sequence[float]) -> list[int]:
        """Indices of the groups to keep, ascending: at least one, if there is any; ties go to the earlier group.

        Args:
            measures: The measure of each group; the fraction of their number is rounded down, as in RAGEN.
        """
        _, sign = FILTER_TYPES[self.kind]
        wanted = max(1, int(self.ratio * len(measures) + EPSILON))
        return sorted(sorted(range(len(measures)), key=lambda place: -sign * measures[place])[:wanted])

    def metrics(self, groups: Sequence[Measured], chosen: Sequence[int]) -> dict[str, float]:
        """Metrics of all and of the chosen groups, under RAGEN's names; empty if all are kept."""
        if self.keeps_all():
            return {}
        rewards = [group.rewards for group in groups]
        return spread_metrics("reward", rewards, chosen) | kept_metrics(len(chosen), self.measures(groups))


# The filter of 2026


TOP_P, TOP_K, TOP_K_ABS, MIN_P = STRATEGIES = ("top_p", "top_k", "top_k_abs", "min_p")
LARGEST, SMALLEST = TYPES = ("largest", "smallest")
LINEAR, SOFTMAX = PROB_MODES = ("linear", "softmax")

METRICS: dict[str, Callable[[Measured], float]] = {
    "reward_variance": lambda group: sample_std(group.scores),
    "reward_std": lambda group: sample_std(group.scores),  # an alias
    "reward": lambda group: fmean(group.scores),
    "reward_sum": lambda group: sum(group.scores),
    "length": lambda group: fmean(group.lengths),
    "entropy": lambda group: fmean(group.entropies),
    "entropy_variance": lambda group: sample_std(group.entropies),
    "entropy_std": lambda group: sample_std(group.entropies),  # an alias
}
"""The measures, by name."""


@dataclass(frozen=True)
class GroupFilter:
    """RAGEN-2's filter; the table above describes its settings."""

    value: float = 1.0
    strategy: str = TOP_P
    kind: str = LARGEST
    metric: str = "reward_variance"
    include_zero: bool = True
    prob_mode: str = LINEAR
    eps: float = 0.01

    @classmethod
    def read(cls, config: Any) -> GroupFilter | None:
        """Read and check the keys; None if neither a strategy nor a value is set.

        Raises:
            ConfigError: A key has an invalid value.
        """
        keys = {name: filter_key(config, name) for name in ("strategy", "value", "type", "metric", "include_zero")}
        keys |= {name: filter_key(config, name) for name in ("top_p_prob_mode", "selection_eps")}
        if all(setting(config, keys[name], object, None) is None for name in ("strategy", "value")):
            return None
        chosen = cls(
            value=number(config, keys["value"], 1.0, 0.0),
            strategy=choice(config, keys["strategy"], TOP_P, STRATEGIES),
            kind=choice(config, keys["type"], LARGEST, TYPES),
            metric=choice(config, keys["metric"], "reward_variance", METRICS),
            include_zero=setting(config, keys["include_zero"], bool, True),
            prob_mode=choice(config, keys["top_p_prob_mode"], LINEAR, PROB_MODES),
            eps=number(config, keys["selection_eps"], 0.01, 0.0),
        )
        if chosen.strategy != TOP_K_ABS and chosen.value > 1:
            raise ConfigError(
                f"configuration key {keys['value']!r} is {chosen.value:g} with {chosen.strategy!r}; expected a share "
                "from 0 to 1."
            )
        return chosen

    def keeps_all(self) -> bool:
        """Whether all groups are always kept."""
        return self.include_zero and self.value >= 1 and self.strategy in (TOP_P, TOP_K)

    @property
    def needs_entropies(self) -> bool:
        """Whether the filter needs entropies, which a model computes."""
        return self.metric.startswith("entropy") and not self.keeps_all()

    def measures(self, groups: Sequence[Measured]) -> list[float]:
        """The measure of each group."""
        return [METRICS[self.metric](group) for group in groups]

    def chosen(self, measures: Sequence[float]) -> list[int]:
        """Indices of the groups to keep, ascending, possibly none; ties go to the earlier group.

        Args:
            measures: The measure of each group.
        """
        places = [i for i, measure in enumerate(measures) if self.include_zero or abs(measure) > ZERO]
        if not places or (self.strategy == TOP_P and self.value >= 1):
            return places
        sign = 1 if self.kind == LARGEST else -1
        ranked = sorted(places, key=lambda place: -sign * measures[place])
        if self.strategy == MIN_P:
            return [place for place in places if self._is_near(measures[place], measures[ranked[0]])]
        if self.strategy == TOP_P:
            count = self._nucleus([measures[place] for place in ranked], sign)
        else:
            share = self.value * len(measures) if self.strategy == TOP_K else self.value
            count = max(1, int(share))
        return sorted(ranked[:count])

    def _is_near(self, measure: float, best: float) -> bool:
        if self.kind == LARGEST:
            return measure >= best * self.value - ZERO
        return measure <= best / (self.value + ZERO) + max(ZERO, abs(best) * 1e-7)  # RAGEN compares in float32

    def _nucleus(self, ranked: Sequence[float], sign: int) -> int:
        """How many of the ranked measures add up to the share."""
        if self.prob_mode == SOFTMAX:
            weights = [math.exp(sign * measure - sign * ranked[0]) for measure in ranked]
            wanted, shares = self.value, [weight / sum(weights) for weight in weights]
        else:
            wanted, shares = self.value * sum(ranked) - self.eps, list(ranked)
        total = 0.0
        for taken, share in enumerate(shares):
            if total >= wanted:
                return taken if self.prob_mode == LINEAR else max(1, taken)
            if self.prob_mode == LINEAR and share <= 0:
                return 0  # the rest adds nothing, and the share is not reached
            total += share
        return len(ranked) if total >= wanted or self.prob_mode == SOFTMAX else 0

    def metrics(self, groups: Sequence[Measured], chosen: Sequence[int]) -> dict[str, float]:
        """Metrics of all and of the chosen groups, under RAGEN's names."""
        found = spread_metrics("reward", [group.scores for group in groups], chosen)
        if self.metric == "length":
            found |= spread_metrics("length", [group.lengths for group in groups], chosen)
        if self.needs_entropies:
            found |= spread_metrics("entropy", [group.entropies for group in groups], chosen)
        return found | kept_metrics(len(chosen), self.measures(groups))


# Configuration


EMPTY_STOP = 10  # consecutive steps without a group


def read_filter(config: Any) -> BestShare | GroupFilter:
    """RAGEN-2's filter if its strategy or value is set, else that of 2025, which by default keeps all groups.

    Raises:
        ConfigError: A key has an invalid value, or both filters are configured.
    """
    newer = GroupFilter.read(config)
    ratio_key, type_key = (filter_key(config, name) for name in ("ratio", "type"))
    ratio = number(config, ratio_key, 1.0, 0.0, 1.0)
    if ratio == 0:
        raise ConfigError(f"configuration key {ratio_key!r} is 0; expected a share above 0, 1 keeps all groups.")
    if newer is None:
        return BestShare(ratio, choice(config, type_key, "std", FILTER_TYPES))
    if ratio != 1:
        raise ConfigError(
            f"configuration key {ratio_key!r} is {ratio:g} beside rollout_filter_strategy or rollout_filter_value; "
            "expected one of the two ways to choose groups, that of 2025 or that of 2026."
        )
    return newer


def read_empty_stop(config: Any) -> int:
    """After how many consecutive steps without a group training stops (RAGEN-2); 0 for never.

    Raises:
        ConfigError: It is not a whole number of at least 0.
    """
    return count(config, filter_key(config, "empty_stop_steps"), EMPTY_STOP)
