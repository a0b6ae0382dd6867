"""What is written for gymnasium's vector environments runs on ours unchanged, with the same numbers."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

from envlanes.errors import ConfigError
from envlanes.gym import LaneVectorEnv, make_vec
from support.gym_envs import kill, same, walks

pytestmark = pytest.mark.processes


def cartpoles(count=4):
    return [lambda: gym.make("CartPole-v1")] * count


WRAPPERS = {
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "NormalizeObservation": wrappers.NormalizeObservation,
}


def without_times(info):
    """An episode's statistics without the seconds that it took."""
    if isinstance(info, dict) and "episode" in info:
        return {**info, "episode": {key: value for key, value in info["episode"].items() if key not in ("t", "_t")}}
    return info


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_of_vector_environments_run_unchanged(lanes, name):
    inner = lanes(walks(3, length=3))
    envs, other = WRAPPERS[name](inner), WRAPPERS[name](SyncVectorEnv(walks(3, length=3)))
    same(envs.reset(seed=0), other.reset(seed=0))
    actions = np.array([0, 2, 4])
    for step in range(20):
        if step == 11:
            kill(inner)
        mine, its = envs.step(actions), other.step(actions)
        same((*mine[:4], without_times(mine[4])), (*its[:4], without_times(its[4])))


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
        envs.reset(seed=0)
    finally:
        envs.close()


@pytest.mark.parametrize("name", ["worker", "wrkers", "n_workers"])
def test_an_argument_of_make_vec_that_is_misspelt_is_refused_with_what_was_meant(name):
    with pytest.raises(ConfigError, match="'workers'"):
        make_vec("CartPole-v1", 2, **{name: 2})


@pytest.mark.models
def test_stable_baselines3_learns_on_lanes_as_on_its_own(lanes):
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv

    from envlanes.gym.sb3 import LaneVecEnv

    def weights(envs):
        model = sb3.PPO("MlpPolicy", envs, n_steps=32, batch_size=32, n_epochs=1, seed=3, device="cpu")
        model.learn(256)
        return [value.clone() for value in model.policy.state_dict().values()]

    mine = LaneVecEnv(lanes(cartpoles(), autoreset_mode="SameStep"))
    for one, other in zip(weights(mine), weights(DummyVecEnv(cartpoles())), strict=True):
        assert (one == other).all()
    mine.set_attr("gravity", 1.5, indices=[2])
    assert mine.get_attr("gravity", indices=[1, 2]) == [9.8, 1.5]
    assert len(mine.env_method("get_wrapper_attr", "gravity", indices=2)) == 1


class Scaled(gym.RewardWrapper):
    def reward(self, reward):
        return reward / 10


def monitored():
    from stable_baselines3.common.monitor import Monitor

    return Scaled(Monitor(gym.make("CartPole-v1")))


@pytest.mark.models
@pytest.mark.parametrize("workers", [0, 2])
def test_stable_baselines3_sees_wrappers_and_evaluates_as_on_its_own(lanes, workers):
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from envlanes.gym.sb3 import LaneVecEnv

    mine = LaneVecEnv(lanes([monitored] * 2, autoreset_mode="SameStep", workers=workers))
    other = DummyVecEnv([monitored] * 2)
    model = sb3.PPO("MlpPolicy", other, seed=0, device="cpu")
    returns = []
    for envs in (mine, other):
        envs.seed(0)
        returns.append(evaluate_policy(model, envs, 5))
    assert returns[0] == returns[1] and returns[0][0] > 100
    assert mine.env_is_wrapped(Monitor) == [True, True] and mine.env_is_wrapped(Scaled, indices=1) == [True]
    assert mine.env_is_wrapped(gym.wrappers.TimeLimit, [0]) == [True]
    assert mine.env_is_wrapped(gym.wrappers.ClipAction, [0]) == [False]
