"""Code for gymnasium's vector environments runs on ours unchanged, with the same numbers."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

from envlanes.errors import ConfigError
from envlanes.gym import LaneVectorEnv, make_vec
from support.gym_envs import kill, same, walks

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("wrapper", [wrappers.RecordEpisodeStatistics, wrappers.NormalizeObservation])
def test_wrappers_of_vector_environments_run_unchanged(lanes, wrapper):
    inner = lanes(walks(3, length=3))
    envs, other = wrapper(inner), wrapper(SyncVectorEnv(walks(3, length=3)))
    same(envs.reset(seed=0), other.reset(seed=0))
    for step in range(20):
        if step == 11:
            kill(inner)
        mine, its = (each.step(np.array([0, 2, 4])) for each in (envs, other))
        for infos in (mine[4], its[4]):
            infos.get("episode", {}).pop("t", None)  # seconds
        same(mine, its)


def test_make_vec_takes_what_gymnasium_s_takes():
    envs = make_vec(
        "CartPole-v1",
        num_envs=2,
        wrappers=[gym.wrappers.RecordEpisodeStatistics],
        vector_kwargs={"autoreset_mode": "SameStep"},
        workers=1,
        render_mode="rgb_array",
    )
    try:
        assert isinstance(envs, LaneVectorEnv) and envs.render_mode == "rgb_array"
        assert envs.metadata["autoreset_mode"] is gym.vector.AutoresetMode.SAME_STEP
        assert envs.spec.id == "CartPole-v1" and envs.spec.kwargs["num_envs"] == 2
        assert "CartPole-v1" in repr(envs)
    finally:
        envs.close()


@pytest.mark.parametrize("name", ["worker", "wrkers", "n_workers"])
def test_an_argument_of_make_vec_that_is_misspelt_is_refused_with_what_was_meant(name):
    with pytest.raises(ConfigError, match="'workers'"):
        make_vec("CartPole-v1", 2, **{name: 2})


class Scaled(gym.RewardWrapper):
    def reward(self, reward):
        return reward / 10


def monitored():
    from stable_baselines3.common.monitor import Monitor

    return Scaled(Monitor(gym.make("CartPole-v1")))


@pytest.mark.models
@pytest.mark.parametrize("workers", [0, 2])
def test_stable_baselines3_learns_and_evaluates_as_on_its_own(lanes, workers):
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from envlanes.gym.sb3 import LaneVecEnv

    mine = LaneVecEnv(lanes([monitored] * 2, autoreset_mode="SameStep", workers=workers))
    learned = []
    for envs in (mine, DummyVecEnv([monitored] * 2)):
        model = sb3.PPO("MlpPolicy", envs, n_steps=32, batch_size=32, n_epochs=1, seed=3, device="cpu").learn(256)
        weights = [value.tolist() for value in model.policy.state_dict().values()]
        infos = envs.step(np.array([0, 1]))[3]
        envs.seed(0)
        learned.append((weights, evaluate_policy(model, envs, 5), infos))
    same(*learned)
    mine.set_attr("gravity", 1.5, indices=[1])
    assert mine.get_attr("gravity") == [9.8, 1.5] and mine.get_attr("get_wrapper_attr")[1]("gravity") == 1.5
    assert mine.env_is_wrapped(Monitor) == [True, True] and mine.env_is_wrapped(Scaled, indices=1) == [True]
    assert mine.env_is_wrapped(gym.wrappers.ClipAction, [0]) == [False]
