"""k episodes of a task as one."""

import gymnasium as gym
import numpy as np
import pytest

from ragen.errors import ConfigError
from ragen.meta import VariBadWrapper, make_env
from support import meta_envs  # noqa: F401

STAY = np.zeros(2)


def test_a_rollout_is_over_only_after_the_last_inner_episode():
    env = make_env("ragen/PointRobot-v0", 3, seed=0)
    env.reset()
    ends = [env.step(STAY) for _ in range(env.horizon_bamdp)]
    assert [index for index, step in enumerate(ends) if step[4]["done_mdp"]] == [59, 119, 179]
    assert [index for index, step in enumerate(ends) if step[2] or step[3]] == [179]
    assert [step[0][-1] for step in ends[58:61]] == [0.0, 1.0, 0.0]  # the flag


@pytest.mark.parametrize(("start", "other"), [("info", "start_state"), ("observe", "final_state")])
def test_between_inner_episodes_one_state_is_observed_and_the_other_told(start, other):
    env = make_env("ragen/PointRobot-v0", 2, seed=0, start=start)
    env.reset()
    steps = [env.step(np.ones(2)) for _ in range(60)]
    last, first = (steps[-1][0][:2], steps[-1][4][other])[:: 1 if start == "info" else -1]
    assert (last > 5).all() and (np.abs(first) < 0.1).all() and other not in steps[-2][4]


def test_an_inner_episode_that_ends_early_is_one_of_the_k():
    env = make_env("ragen-tests/Corridor-v0", 2, seed=0)
    env.reset(options={"task": 1.0})
    assert not env.step(2)[2]
    assert env.step(2)[2]


@pytest.mark.parametrize(("oracle", "k", "width"), [(False, 1, 2), (False, 2, 3), (True, 1, 4), (True, 2, 5)])
def test_observations_are_state_task_and_flag(oracle, k, width):
    env = make_env("ragen/PointRobot-v0", k, seed=0, oracle=oracle)
    seen, _ = env.reset(task=(0.0, 1.0))
    assert seen.shape == env.observation_space.shape == (width,)
    assert env.observation_space.contains(seen)
    if oracle:
        assert tuple(seen[2:4]) == (0.0, 1.0)


def test_observations_of_any_space_are_flattened():
    env = VariBadWrapper(gym.make("FrozenLake-v1"), 2)
    seen, _ = env.reset()
    assert seen.tolist() == [1.0] + [0.0] * 16 and env.observation_space.contains(seen)


def test_actions_are_clipped_and_scaled():
    env = make_env("ragen/PointRobot-v0", 1, seed=0)
    before, _ = env.reset()
    after, *_ = env.step(np.array([0.5, 7.0]))
    assert np.allclose(after - before, [0.05, 0.1], atol=1e-6)
    assert (env.action_space.low == -1).all() and (env.action_space.high == 1).all()


def test_the_goal_is_told_before_another_inner_episode_begins():
    env = make_env("ragen/SparsePointRobot-v0", 2, seed=0, max_episode_steps=10)
    env.reset(task=(0.0, 1.0))
    steps = [env.step(np.array([0.0, 1.0])) for _ in range(10)]
    assert steps[-1][4]["done_mdp"] and steps[-1][4]["is_goal_state"]


@pytest.mark.parametrize("wrong", [{"episodes_per_task": 0}, {"episodes_per_task": 2, "start": "both"}])
def test_arguments_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(reversed(wrong))):
        VariBadWrapper(gym.make("ragen/Wind-v0"), **wrong)
