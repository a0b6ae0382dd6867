"""Scores within groups: each method, equal scores, groups of one."""

import numpy as np
import pytest

from ragen.llm_agent.batches.normalization import normalize

HALF, ROUNDED = 0.5**0.5, 0.1 + 0.2
TABLE = [
    ("mean", [1, 2, 6], "aaa", [-2, -1, 3]),
    ("mean_std", [1, 3], "aa", [-HALF, HALF]),
    ("mean", [1, 3, 10, 20], "abab", [-4.5, -8.5, 4.5, 8.5]),
    ("asym_clip", [0] * 40 + [100], "a" * 41, [-0.15617] * 40 + [3]),
    ("asym_clip", [100] * 40 + [0], "a" * 41, [0.15617] * 40 + [-1]),
    *((method, [2, 2, 2], "aaa", [0, 0, 0]) for method in ("mean", "mean_std", "asym_clip")),
    *((method, [ROUNDED, 0.3], "aa", [0, 0]) for method in ("mean", "mean_std", "asym_clip")),
    ("mean_std", [1, 1 + 5e-7], "aa", [0, 0]),
    ("identity", [2, 2], "aa", [2, 2]),
    ("mean_std", [1, 5], "ab", [1, 5]),
    ("mean_std", [1, 5, 7], "abb", [0, -HALF, HALF]),
]


@pytest.mark.parametrize(("method", "scores", "groups", "expected"), TABLE)
def test_scores_are_compared_with_their_groups(method, scores, groups, expected):
    found = normalize(scores, list(groups), method)
    assert found.dtype == np.float64 and found == pytest.approx(expected, abs=1e-5)
    if not any(expected):
        assert not found.any()
