"""RAGEN-2's training in the tiny trainer: weights, early stops, entropies."""

import json

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.filtering.advantages import AdvantageWeights
from ragen.llm_agent.filtering.early_stop import EMPTY, SUCCESS, VARIANCE, EarlyStop
from ragen.llm_agent.filtering.group_filter import GroupFilter
from ragen.training.filtering import FilterSettings, sample_groups
from ragen.training.trajectories import Group, Trajectory
from support.later import torch, training
from support.small_training import small_config

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
        with pytest.raises(ConfigError, match=r"is True with algorithm\.adv_estimator=gae; expected 'grpo'"):
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


def test_a_training_ends_where_a_tags_success_stays_below_one_percent():
    stop = EarlyStop(True, most_empty=0)
    for rate in [0.0] * 4 + [0.01] + [0.009] * 4:
        stop.after_validation({"Lake": rate, "Bandit": 1.0})
        assert stop.kind is None
    stop.after_validation({"Lake": 0.0, "Bandit": 1.0})
    assert stop.kind == SUCCESS


def test_a_training_ends_where_no_group_is_left_several_times_in_a_row():
    stop = EarlyStop(True, most_empty=2)
    for kept in (0, 1, 0):
        stop.after_step(0.0, kept)
    assert stop.kind is None
    stop.after_step(0.0, 0)
    assert stop.kind == EMPTY


def test_only_a_run_that_may_end_early_ends_by_itself():
    kinds = []
    for config in ({}, {"trainer": {"early_stop": True}}):
        stop = EarlyStop.read(config)
        for _ in range(5):
            stop.after_validation({"Lake": 0.0})
        kinds.append(stop.kind)
    assert kinds == [None, SUCCESS]


def a_group(name, *entropies):
    return Group(name, [Trajectory(0, "Lake", 0.0, 0.0, entropy=entropy) for entropy in entropies])


@pytest.mark.parametrize(("metric", "kept"), [("entropy", ["b"]), ("entropy_variance", ["a"]), ("entropy_std", ["a"])])
def test_groups_are_chosen_by_how_uncertain_the_model_was(metric, kept):
    known = {"a": a_group("a", 0.1, 0.9), "b": a_group("b", 0.8, 0.9), "c": a_group("c", 0.2, 0.3)}
    settings = FilterSettings(groups=GroupFilter(1, "top_k_abs", metric=metric))
    played = [a_group(name, None, None) for name in known]
    sample = sample_groups(lambda: played, settings, lambda groups: [known[group.uid] for group in groups])
    assert [group.uid for group in sample.groups] == kept
    assert sample.chosen["rollout/in_group_entropy_max"] == pytest.approx((0.9 + 0.9 + 0.3) / 3)


def test_an_analysis_of_gradients_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.gradient_analysis_mode"):
        training.train(small_config(tmp_path, "+trainer.gradient_analysis_mode=true"), quiet=True)


def test_keys_of_ragens_trainer_without_an_effect_are_named_once(tmp_path, capsys):
    asked = ["+system.CUDA_VISIBLE_DEVICES=0", "+trainer.validation_steps=1", "+agent_proxy.batch_adjust_mode=copy"]
    training.train(small_config(tmp_path, *asked, steps=1))
    named = "agent_proxy.batch_adjust_mode, system, trainer.validation_steps"
    assert capsys.readouterr().err.count(f"ignored: {named} (they have no effect here)\n") == 1
