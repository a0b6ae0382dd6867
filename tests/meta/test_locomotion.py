"""MuJoCo's tasks, where MuJoCo is installed."""

import importlib.util

import numpy as np
import pytest

from ragen.meta import make_env
from support.checkouts import ROOT, python

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="needs the extra ragen-lanes[meta]")
IDS = ["ragen/HalfCheetahVel-v0", "ragen/HalfCheetahDir-v0", "ragen/AntDir-v0"]


def play(env, task):
    env.reset(seed=0, options={"task": task})
    return [env.step(np.ones(env.action_space.shape, np.float32)) for _ in range(5)]


RUN = ["reward_ctrl", "reward_contact", "reward_survive"]


@pytest.mark.parametrize(
    ("name", "task", "expected"),
    [
        (IDS[0], 2.0, lambda x, y: -abs(x - 2.0)),
        (IDS[1], -1.0, lambda x, y: -x),
        (IDS[2], (0.6, 0.8), lambda x, y: 0.6 * x + 0.8 * y),
    ],
)
def test_rewards_are_made_of_what_the_environment_tells(name, task, expected):
    env = make_env(name, 1, seed=0)
    assert env.horizon_bamdp == 200
    for _, reward, _, _, info in play(env, task):
        costs = sum(info.get(part, 0.0) for part in RUN)
        assert reward == pytest.approx(expected(info["x_velocity"], info.get("y_velocity")) + costs)


def test_sizes_and_costs_are_those_of_the_literature():
    assert make_env(IDS[2], 1).observation_space.shape == (27,)
    assert play(make_env(IDS[0], 1), 1.0)[0][4]["reward_ctrl"] == pytest.approx(-0.05 * 6)


def test_mujoco_writes_no_file_of_its_own_into_the_current_folder(tmp_path):
    code = f"from ragen.meta import make_env; env = make_env({IDS[0]!r}, 1); env.reset(seed=0); env.close()"
    ran = python("-c", code, cwd=tmp_path, path=ROOT)
    assert ran.returncode == 0 and "settotalmass" not in ran.stderr, ran.stderr
    assert list(tmp_path.iterdir()) == []
