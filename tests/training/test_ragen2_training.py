"""RAGEN-2's training in the tiny trainer: weights, early stops, filters."""

import json

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.filtering.advantages import AdvantageWeights
from ragen.llm_agent.filtering.early_stop import EMPTY, SUCCESS, VARIANCE, EarlyStop
from support.later import torch, training
from support.small_training import metrics_of, small_config

ROWS = {
    "lengths": [2, 4, 3, 1, 5, 2],
    "episodes": ["a", "a", "b", "c", "d", "e"],
    "groups": ["g", "g", "g", "h", "h", "i"],
    "scores": [1.0, 1.0, 0.0, 0.25, 0.5, 0.75],
}
ADVANTAGES = [0.707106, 0.707106, -0.707106, -0.707103, 0.707103, 0.749999]
SOFT = [0.499999, 0.499999, -0.499999, -0.124999, 0.124999, 0.749999]
BOTH = [0.708331, 0.354166, -0.472221, -0.354164, 0.070833, 1.062497]
"""What RAGEN's advantages, its reweighting and then its length weight (commit 20daedc) made of these rows."""


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (AdvantageWeights(soft=True), SOFT),
        (AdvantageWeights(soft=True, by_length=True), BOTH),
        (AdvantageWeights(soft=True, zero_task=True), [0.0] * 6),
    ],
)
def test_advantages_are_weighed_as_ragen_weighed_them(weights, expected):
    factors, told = weights.of_rows(**ROWS)
    found = weights.multiplied(torch.tensor(ADVANTAGES)[:, None], factors)[:, 0].tolist()
    assert found == pytest.approx(expected, abs=2e-6)
    assert told["train/soft_reweight_mean"] == pytest.approx(0.6279605627)


def test_weights_of_a_group_need_grpo():
    for asked in ({"algorithm": {"soft_advantage_reweight": True}}, {"grpo_advantage_length_weight": True}):
        assert AdvantageWeights.read(asked)
        asked = {**asked, "algorithm": {**asked.get("algorithm", {}), "adv_estimator": "gae"}}
        with pytest.raises(ConfigError):
            AdvantageWeights.read(asked)


def test_a_training_ends_where_rewards_of_a_group_no_longer_differ():
    stop = EarlyStop(True, most_empty=0)
    for spread in [0.4] * 10 + [0.03] * 9 + [0.05] + [0.03] * 9:
        stop.after_step(spread, 1)
        assert stop.metrics == {}
    again = EarlyStop(True, most_empty=0)
    again.load_state_dict(json.loads(json.dumps(stop.state_dict())))
    for each in (stop, again):
        each.after_step(0.03, 1)
        assert each.metrics == {f"early_stopped/{VARIANCE}": 1.0}


@pytest.mark.parametrize(
    ("call", "values", "kind"),
    [
        (
            "after_validation",
            [({"Lake": rate, "Bandit": 1.0},) for rate in (0, 0, 0, 0, 0.01, *[0.009] * 4, 0)],
            SUCCESS,
        ),
        ("after_step", [(0.0, kept) for kept in (0, 1, 0, 0)], EMPTY),
    ],
)
def test_a_training_ends_where_success_stays_low_or_no_group_is_left(call, values, kind):
    stop = EarlyStop(True, most_empty=2)
    for value in values:
        assert stop.kind is None
        getattr(stop, call)(*value)
    assert stop.kind == kind


def test_only_a_run_that_may_end_early_ends_by_itself():
    kinds = []
    for config in ({}, {"trainer": {"early_stop": True}}):
        stop = EarlyStop.read(config)
        for _ in range(5):
            stop.after_validation({"Lake": 0.0})
        kinds.append(stop.kind)
    assert kinds == [None, SUCCESS]


@pytest.mark.parametrize("metric", ["entropy", "reward_variance"])
def test_a_filter_leaves_groups_out_of_the_step(tmp_path, metric):
    keys = ("strategy=top_k_abs", "value=1", "type=largest", f"metric={metric}")
    config = small_config(tmp_path, *(f"++agent_proxy.rollout_filter_{key}" for key in keys), steps=1)
    training.train(config, quiet=True)
    step = metrics_of(tmp_path)[-1]
    assert (step["filter/groups_kept"], step["rollout/filter_kept_ratio"]) == (1, 0.5)
