"""RAGEN-2's training in the tiny trainer: filters."""

import pytest

from support.later import training
from support.small_training import metrics_of, small_config


@pytest.mark.parametrize("metric", ["entropy", "reward_variance"])
def test_a_filter_leaves_groups_out_of_the_step(tmp_path, metric):
    keys = ("strategy=top_k_abs", "value=1", "type=largest", f"metric={metric}")
    config = small_config(tmp_path, *(f"++agent_proxy.rollout_filter_{key}" for key in keys), steps=1)
    training.train(config, quiet=True)
    step = metrics_of(tmp_path)[-1]
    assert (step["filter/groups_kept"], step["rollout/filter_kept_ratio"]) == (1, 0.5)
