"""Statistics of success rates and their differences: confidence intervals, ``pass@k``, and a sign test.

The members of a group play the same seed and are not independent: a group counts as fewer episodes than it has,
depending on how similar its members are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import comb, isfinite, nan, sqrt
from statistics import NormalDist, fmean, stdev
from typing import TypeVar

ALL = "all"
"""The name of the row over all tags in tables and results; no tag may have it."""
CONFIDENCE = 0.95
EPSILON = 1e-6  # scores that differ by at most this count as equal: RAGEN's number

Item = TypeVar("Item", bound=Hashable)


def wilson_interval(successes: float, episodes: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's score interval of a success rate (E. B. Wilson, 1927); it is within 0 and 1 even for few episodes.

    Args:
        successes: Number of successes.
        episodes: Number of episodes, possibly fractional; see :func:`effective_episodes`. 0 returns ``(0, 1)``.
        confidence: The confidence level.
    """
    if not episodes:
        return 0.0, 1.0
    z, share = z_value(confidence), successes / episodes
    scale = 1 + z * z / episodes
    middle = (share + z * z / (2 * episodes)) / scale
    half = z / scale * sqrt(share * (1 - share) / episodes + z * z / (4 * episodes * episodes))
    return max(0.0, middle - half), min(1.0, middle + half)


def z_value(confidence: float = CONFIDENCE) -> float:
    """The half-width of a two-sided interval in standard deviations."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def effective_episodes(groups: Sequence[Sequence[float]]) -> float:
    """The number of independent episodes to which the members of groups are equivalent.

    This is the number of episodes divided by the design effect of cluster samples (L. Kish, 1965): the variance of the
    groups' sums relative to that of independent episodes. Since a few groups do not show how similar members are, a
    group of successes and one of failures are added before the estimate.

    Args:
        groups: The successes of each group's members, 0 or 1.

    Returns:
        A number from the number of groups to the number of episodes.
    """
    episodes, count = sum(map(len, groups)), len(groups)
    if episodes == count:
        return float(episodes)
    size = round(episodes / count)
    sums = [*((sum(group), len(group)) for group in groups), (size, size), (0, size)]
    total = episodes + 2 * size
    share = sum(successes for successes, _ in sums) / total
    between = sum((successes - share * members) ** 2 for successes, members in sums) * len(sums) / (len(sums) - 1)
    design_effect = between / (total * share * (1 - share))
    return min(float(episodes), max(float(count), episodes / design_effect))


def mean_pass_at_k(groups: Sequence[Sequence[float]], k: int) -> float:
    """``pass@k``: the probability that at least one of k episodes of a group succeeds (M. Chen et al., 2021).

    For reports; the metric of whole groups is :func:`envlanes.ragen.metrics.add_pass_at_k`.

    Args:
        groups: The successes of each group's members, 0 or 1; groups with fewer than k members do not count.
        k: Number of episodes drawn from each, without replacement; at most the size of the largest group.
    """
    return 1.0 - mean_pass_hat_k([[1 - success for success in group] for group in groups], k)


def mean_pass_hat_k(groups: Sequence[Sequence[float]], k: int) -> float:
    """``pass^k``: the probability that all of k episodes of a group succeed.

    The unbiased estimator of reliability (tau-bench: S. Yao et al., 2024); compare :func:`mean_pass_at_k`.
    """
    return fmean(comb(int(sum(group)), k) / comb(len(group), k) for group in groups if len(group) >= k)


def paired_interval(differences: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The confidence interval of the mean difference between two models that played the same seeds.

    One seed in favor of each side is added first, since the interval would be too narrow if few seeds differ. Their
    difference is the largest one seen (1 if there is none); for single episodes, this is the interval of D. G. Bonett
    and R. M. Price (2012).

    Args:
        differences: The difference for each seed, from -1 to 1.
        confidence: The confidence level.
    """
    count, largest = len(differences) + 2, max(map(abs, differences), default=0.0) or 1.0
    mean = sum(differences) / count
    variance = (sum(value * value for value in differences) + 2 * largest * largest) / count - mean * mean
    half = z_value(confidence) * sqrt(variance / count)
    return max(-1.0, mean - half), min(1.0, mean + half)


def sign_test(differences: Sequence[float]) -> float:
    """The p-value of the exact two-sided sign test, with the hypothesis that neither model is better.

    Seeds without a difference are ignored; for single episodes, this is McNemar's exact test.
    """
    better, worse = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    decided = better + worse
    tail = sum(comb(decided, lower) for lower in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / 2**decided)


def differ(scores: Iterable[float]) -> bool:
    """Whether the scores of a group differ by more than rounding."""
    ordered = sorted(scores)
    return bool(ordered) and ordered[-1] - ordered[0] > EPSILON


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of no values."""
    return fmean(values) if values else 0.0


def sample_std(values: Sequence[float]) -> float:
    """The sample standard deviation (n - 1); 0 of fewer than two values, NaN where one is not finite."""
    if not all(map(isfinite, values)):
        return nan  # the standard library's raises an AttributeError
    return stdev(values) if len(values) > 1 else 0.0


def numbered(items: Iterable[Item]) -> tuple[list[Item], list[int]]:
    """The distinct items in order of their first appearance, and for each item its index among them.

    Args:
        items: Items, some of them equal.
    """
    places: dict[Item, int] = {}
    index = [places.setdefault(item, len(places)) for item in items]
    return list(places), index
