"""Scores made comparable, on groups small enough to work out by hand."""

import numpy as np
import pytest

from ragen.llm_agent.batches.normalization import METHODS, group_of, normalize

TWO_GROUPS = ["a", "b", "a", "b"]


def test_mean_subtracts_the_mean_of_the_group():
    assert normalize([1, 2, 3, 5], TWO_GROUPS, "mean").tolist() == [-1, -1.5, 1, 1.5]


def test_mean_std_divides_by_the_sample_deviation_plus_a_millionth():
    found = normalize([1, 2, 3, 6], [0, 0, 0, 0], "mean_std")
    deviation = (((1 - 3) ** 2 + (2 - 3) ** 2 + 0 + (6 - 3) ** 2) / 3) ** 0.5
    assert found == pytest.approx(
        [-2 / (deviation + 1e-6), -1 / (deviation + 1e-6), 0, 3 / (deviation + 1e-6)], abs=1e-12
    )


def test_groups_are_normalised_apart():
    together = normalize([1, 2, 3, 6], TWO_GROUPS, "mean_std")
    assert together[[0, 2]] == pytest.approx(normalize([1, 3], [0, 0], "mean_std"))
    assert together[[1, 3]] == pytest.approx(normalize([2, 6], [0, 0], "mean_std"))


def test_asym_clip_cuts_below_minus_one_and_above_three():
    low = normalize([-10.0] + [0.0] * 20, [0] * 21, "asym_clip")
    high = normalize([10.0] + [0.0] * 20, [0] * 21, "asym_clip")
    assert low[0] == -1 and high[0] == 3
    assert 0 < low[1] < 1 and -1 < high[1] < 0


@pytest.mark.parametrize("method", ["mean", "mean_std", "asym_clip"])
def test_equal_scores_become_zero_and_not_nan(method):
    assert normalize([0.3, 0.3, 0.3], [1, 1, 1], method).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("method", ["mean", "mean_std", "asym_clip"])
def test_scores_that_are_equal_but_for_the_rounding_of_sums_become_exactly_zero(method):
    scores = [float(np.float32(0.1) * 3 - np.float32(0.3)), 0.1 + 0.2 - 0.3, 0.0]
    assert len(set(scores)) > 1
    assert normalize(scores, [1, 1, 1], method).tolist() == [0.0, 0.0, 0.0]


def test_scores_that_differ_by_less_than_a_millionth_count_as_equal():
    assert normalize([1.0, 1.0 + 1e-7], [0, 0], "mean_std").tolist() == [0, 0]


@pytest.mark.parametrize("method", METHODS)
def test_scores_stay_where_no_group_has_a_second_member(method):
    assert normalize([1.0, -2.0, 7.0], [0, 1, 2], method).tolist() == [1, -2, 7]


ROLLOUTS = [
    {"group_id": 0, "tag": "A"},
    {"group_id": 1, "tag": "A"},
    {"group_id": 1, "tag": "B"},
]


def test_state_groups_those_that_started_alike():
    assert group_of(ROLLOUTS, "state") == [0, 1, 1]


def test_inductive_groups_those_of_a_tag():
    assert group_of(ROLLOUTS, "inductive") == ["A", "A", "B"]


def test_batch_groups_all():
    assert len(set(group_of(ROLLOUTS, "batch"))) == 1
