"""Intervals, ``pass@k`` and exact tests, against scipy, published values and counting."""

from itertools import combinations
from math import sqrt

import pytest

from ragen.statistics import (
    effective_episodes,
    mean_pass_at_k,
    mean_pass_hat_k,
    paired_interval,
    sign_test,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [  # from R: prop.test(successes, episodes, correct = FALSE)
        (8, 10, 0.4901625, 0.9433178),
        (0, 10, 0.0, 0.2775328),
        (10, 10, 0.7224672, 1.0),
        (50, 100, 0.4038315, 0.5961685),
    ],
)
def test_wilsons_interval_is_the_published_one(successes, episodes, low, high):
    assert wilson_interval(successes, episodes) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize("successes", [0, 1, 7, 20, 39, 40])
def test_interval_and_sign_test_are_those_of_scipy(successes):
    stats = pytest.importorskip("scipy.stats")
    exact = stats.binomtest(successes, 40)
    assert wilson_interval(successes, 40) == pytest.approx(tuple(exact.proportion_ci(method="wilson")), abs=1e-12)
    assert sign_test([1.0] * successes + [-0.5] * (40 - successes)) == pytest.approx(exact.pvalue, rel=1e-12)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([[1], [0], [1]], 3),
        ([[1, 1, 1, 1], [0, 0, 0, 0]] * 10, pytest.approx(20, abs=1)),
        ([[1, 0], [0, 1]] * 10, 40),
        ([[1, 1], [1, 1], [1, 1]], 3),
        ([[1, 0, 1]], 1),
    ],
)
def test_independent_episodes_count_in_full_and_copies_once(groups, expected):
    assert effective_episodes(groups) == expected


@pytest.mark.parametrize(
    ("episodes", "successes", "k"), [(5, 2, 1), (5, 2, 3), (4, 0, 2), (4, 4, 4), (6, 1, 6), (6, 5, 2)]
)
@pytest.mark.parametrize(("estimate", "succeeds"), [(mean_pass_at_k, any), (mean_pass_hat_k, all)])
def test_pass_at_k_is_the_share_of_draws_that_succeed(estimate, succeeds, episodes, successes, k):
    members = [1.0] * successes + [0.0] * (episodes - successes)
    draws = list(combinations(members, k))
    assert estimate([members, [1.0] * (k - 1)], k) == pytest.approx(sum(map(succeeds, draws)) / len(draws))


def test_the_paired_interval_of_single_episodes_is_that_of_bonett_and_price():
    only_b, only_a, same = 9, 3, 38
    total = only_b + only_a + same + 2
    up, down = (only_b + 1) / total, (only_a + 1) / total
    half = 1.959964 * sqrt((up + down - (up - down) ** 2) / total)
    expected = (up - down - half, up - down + half)
    assert paired_interval([1.0] * only_b + [-1.0] * only_a + [0.0] * same) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("better", "worse", "p"), [(9, 1, 22 / 1024), (0, 5, 2 / 32), (3, 3, 1.0), (0, 0, 1.0), (1, 0, 1.0)]
)
def test_the_sign_test_counts_coins(better, worse, p):
    assert sign_test([0.5] * better + [-1.0] * worse + [0.0] * 7) == pytest.approx(p)
