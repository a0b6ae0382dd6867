"""How sure one can be of a share of successes, and of the difference of two: intervals, ``pass@k``, a sign test.

Members of a group play the same seed, so they are not independent: a group counts as fewer episodes than it has, by as
much as its members resemble each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import comb, sqrt
from statistics import NormalDist, fmean, stdev

CONFIDENCE = 0.95


def wilson_interval(successes: float, episodes: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's score interval of a share (E. B. Wilson, 1927); it stays within 0 and 1, also for few episodes.

    Args:
        successes: How many of the episodes succeeded.
        episodes: How many there were; fractions are taken, see :func:`effective_episodes`. 0 gives ``(0, 1)``.
        confidence: How often such an interval holds the true share.
    """
    if not episodes:
        return 0.0, 1.0
    z, share = z_value(confidence), successes / episodes
    scale = 1 + z * z / episodes
    middle = (share + z * z / (2 * episodes)) / scale
    half = z / scale * sqrt(share * (1 - share) / episodes + z * z / (4 * episodes * episodes))
    return max(0.0, middle - half), min(1.0, middle + half)


def z_value(confidence: float = CONFIDENCE) -> float:
    """How many standard deviations a two-sided interval reaches to each side."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def effective_episodes(groups: Sequence[Sequence[float]]) -> float:
    """As how many independent episodes the members of groups count.

    The number of episodes, divided by how much more the groups' sums vary than those of independent episodes would
    (the design effect of cluster samples, L. Kish, 1965). How alike members are is not known from a few groups, so a
    group in which all succeed and one in which none does are added before it is estimated.

    Args:
        groups: The successes of each group's members, 0 or 1.

    Returns:
        Between the number of groups and that of episodes.
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


def pass_at_k(episodes: int, successes: int, k: int) -> float:
    """The chance that some of k episodes succeeds, drawn without replacement from a group's (M. Chen et al., 2021).

    Args:
        episodes: How many the group has, at least k.
        successes: How many of them succeeded.
        k: How many are drawn.
    """
    return 1.0 - comb(episodes - successes, k) / comb(episodes, k)


def pass_hat_k(episodes: int, successes: int, k: int) -> float:
    """``pass^k``: the chance that all of k episodes succeed, drawn without replacement from a group's.

    The unbiased estimator of reliability (tau-bench: S. Yao et al., 2024), as :func:`pass_at_k` is that of one
    success.

    Args:
        episodes: How many the group has, at least k.
        successes: How many of them succeeded.
        k: How many are drawn.
    """
    return comb(successes, k) / comb(episodes, k)


def mean_pass_at_k(groups: Iterable[Sequence[float]], k: int) -> float | None:
    """``pass@k`` over groups, of those that have so many episodes; None where none has.

    Args:
        groups: The successes of each group's members, 0 or 1.
        k: How many are drawn from each.
    """
    return _mean_of_groups(pass_at_k, groups, k)


def mean_pass_hat_k(groups: Iterable[Sequence[float]], k: int) -> float | None:
    """``pass^k`` over groups, of those that have so many episodes; None where none has. See :func:`mean_pass_at_k`."""
    return _mean_of_groups(pass_hat_k, groups, k)


def _mean_of_groups(
    estimate: Callable[[int, int, int], float], groups: Iterable[Sequence[float]], k: int
) -> float | None:
    each = [estimate(len(group), int(sum(group)), k) for group in groups if len(group) >= k]
    return fmean(each) if each else None


def solved_in_group(groups: Iterable[Sequence[float]]) -> float:
    """The share of groups of which some member succeeded, however many members each has; 0 of no groups.

    For groups of the same size k this is ``pass@k`` with all members drawn.

    Args:
        groups: The successes of each group's members, 0 or 1.
    """
    return mean([float(any(group)) for group in groups])


def paired_interval(differences: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a mean difference between two models that played the same seeds.

    One seed in favor of each side is added first, which keeps the interval honest where few seeds differ (for single
    episodes this is the interval of D. G. Bonett and R. M. Price, 2012).

    Args:
        differences: One for each seed, from -1 to 1.
        confidence: How often such an interval holds the true difference.
    """
    count = len(differences) + 2
    mean = sum(differences) / count
    variance = (sum(value * value for value in differences) + 2) / count - mean * mean
    half = z_value(confidence) * sqrt(variance / count)
    return max(-1.0, mean - half), min(1.0, mean + half)


def sign_test(differences: Sequence[float]) -> float:
    """How likely so uneven a split, or a more uneven one, is if neither model is better: exact, two-sided.

    Seeds on which the two do not differ say nothing; for single episodes this is McNemar's exact test.
    """
    better, worse = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    decided = better + worse
    tail = sum(comb(decided, lower) for lower in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / 2**decided)


def holm(values: Sequence[float]) -> list[float]:
    """Several tests' p, each as it is when all of them were looked at (S. Holm, 1979): errors are bounded together.

    Args:
        values: The p of each test, in any order.
    """
    adjusted, least = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        least = max(least, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = least
    return adjusted


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of no values."""
    return fmean(values) if values else 0.0


def sample_std(values: Sequence[float]) -> float:
    """The sample standard deviation (n - 1); 0 of fewer than two values."""
    return stdev(values) if len(values) > 1 else 0.0
