"""RAGEN-2's choice of groups, on measures made by hand, and within a step's sampling."""

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.filtering.group_filter import BestShare, GroupFilter
from ragen.training.filtering import FilterSettings, sample_groups
from ragen.training.trajectories import Group, TokenRow, Trajectory

MEASURES = [0.0, 0.4, 0.1, 0.5]


def group(uid, *scores, tokens=1):
    rows = [TokenRow([1] * tokens, [1] * tokens, [0.0] * tokens)]
    return Group(uid, [Trajectory(place, "Tag", score, score, rows) for place, score in enumerate(scores)])


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ({}, [0, 1, 2, 3]),
        ({"include_zero": False}, [1, 2, 3]),
        ({"value": 0.9}, [1, 3]),  # 0.9 * 1.0 - 0.01 = 0.89 is in 0.5 + 0.4
        ({"value": 0.5}, [3]),
        ({"value": 0.92}, [1, 2, 3]),
        ({"value": 0.0}, []),
        ({"value": 0.9, "kind": "smallest"}, []),  # the smallest adds nothing, and the share is not reached
        ({"value": 0.9, "kind": "smallest", "include_zero": False}, [1, 2, 3]),
        ({"value": 0.3, "prob_mode": "softmax"}, [3]),  # exp(0.5) is 0.316 of the sum
        ({"value": 0.4, "prob_mode": "softmax"}, [1, 3]),
        ({"value": 0.0, "prob_mode": "softmax"}, [3]),
        ({"value": 0.2, "prob_mode": "softmax", "kind": "smallest"}, [0]),
        ({"value": 0.5, "strategy": "top_k"}, [1, 3]),
        ({"value": 0.1, "strategy": "top_k"}, [3]),
        ({"value": 0.5, "strategy": "top_k", "kind": "smallest"}, [0, 2]),
        ({"value": 1.0, "strategy": "top_k", "include_zero": False}, [1, 2, 3]),
        ({"value": 3, "strategy": "top_k_abs"}, [1, 2, 3]),
        ({"value": 9, "strategy": "top_k_abs"}, [0, 1, 2, 3]),
        ({"value": 0.8, "strategy": "min_p"}, [1, 3]),
        ({"value": 0.5, "strategy": "min_p", "kind": "smallest", "include_zero": False}, [2]),
    ],
)
def test_which_groups_are_chosen(settings, chosen):
    assert GroupFilter(**settings).chosen(MEASURES) == chosen


def test_of_nothing_nothing_is_chosen():
    assert GroupFilter(value=0.5, include_zero=False).chosen([0.0, 0.0]) == []
    assert GroupFilter(value=0.5).chosen([0.0, 0.0]) == []  # of groups that all measure 0, a share is 0 as well


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("reward_variance", 0.5**0.5), ("reward", 0.5), ("reward_sum", 1.0), ("length", 3.0)],
)
def test_what_is_measured(metric, expected):
    assert GroupFilter(metric=metric).measures([group("a", 0.0, 1.0, tokens=3)]) == [pytest.approx(expected)]


def test_the_numbers_are_told_under_ragens_names():
    groups = [group("flat", 1.0, 1.0), group("mixed", 0.0, 1.0)]
    settings = FilterSettings(groups=GroupFilter(value=0.9))
    sample = sample_groups(lambda: groups, settings)
    assert [each.uid for each in sample.groups] == ["mixed"]
    told = sample.metrics()
    assert told["rollout/filter_kept_count"] == 1 and told["rollout/filter_kept_ratio"] == 0.5
    assert told["rollout/filter_zero_count"] == 1
    assert told["rollout/in_group_reward_mean"] == 0.75 and told["rollout/chosen_in_group_reward_mean"] == 0.5
    assert told["rollout/in_group_reward_std"] == pytest.approx(0.5**0.5 / 2)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 0.25), ("sqrt", 0.5)])
def test_the_loss_is_scaled_by_the_share_of_the_groups_kept(scaling, factor):
    actor = {
        "actor_rollout_ref": {"actor": {"filter_loss_scaling": scaling}, "rollout": {"rollout_filter_ratio": 0.25}}
    }
    groups = [group(str(place), 0.0, float(place)) for place in range(4)]
    sample = sample_groups(lambda: groups, FilterSettings.read(actor))
    assert sample.loss_scale == factor and ("rollout/filter_loss_scale" in sample.metrics()) == (scaling != "none")
    actor["actor_rollout_ref"]["rollout"] = {}
    assert sample_groups(lambda: groups, FilterSettings.read(actor)).loss_scale == 1.0  # none is left out


def config(**rollout):
    return {"actor_rollout_ref": {"rollout": {f"rollout_filter_{key}": value for key, value in rollout.items()}}}


def test_ragens_own_settings_are_read():
    read = FilterSettings.read(config(value=0.9, strategy="top_p", type="largest", metric="length", include_zero=False))
    assert read.groups == GroupFilter(0.9, metric="length", include_zero=False)
    assert FilterSettings.read(config(ratio=0.25, type="std")).groups == BestShare(0.25)


@pytest.mark.parametrize(
    ("rollout", "told"),
    [
        ({"value": 2.0}, "rollout_filter_value' is 2 with 'top_p'; expected a share"),
        ({"strategy": "best"}, "rollout_filter_strategy"),
        ({"value": 0.5, "type": "std"}, "rollout_filter_type"),
        ({"value": 0.5, "metric": "surprise"}, "rollout_filter_metric"),
        ({"value": 0.5, "ratio": 0.5}, "one of the two ways"),
    ],
)
def test_what_cannot_work_is_refused(rollout, told):
    with pytest.raises(ConfigError, match=told):
        FilterSettings.read(config(**rollout))
