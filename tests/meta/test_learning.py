"""The two runs of ``docs/meta_rl.md``, as configured: minutes each."""

import pytest

from ragen.meta.rl2.settings import load_settings
from support.later import meta

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def last(name, folder):
    with meta.Trainer(load_settings(name, [f"output_dir={folder}"])) as trainer:
        trainer.run()
        return trainer.history[-1]["eval"], trainer.bars


def test_the_bandit_is_learnt(tmp_path):
    regret, bars = last("bandit", tmp_path)
    assert regret < 1.1 * bars["thompson"]


def test_the_sparse_point_robot_is_learnt(tmp_path):
    returned, bars = last("point_robot", tmp_path)
    assert returned > 0.8 * bars["oracle"]
