"""Environments of the interface that ``gym`` had before 0.26, in the same vector environment as all others."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from support.gym_envs import same, walks


def Box(low, high):
    """A space as gym's: of a class of this name, which gymnasium does not know."""
    space = type("Box", (), {"__module__": "gym.spaces.box"})()
    space.low, space.high, space.shape, space.dtype = np.float32(low), np.float32(high), (3,), np.dtype(np.float32)
    return space


class OldWalk:
    """The walk of the other tests behind the older interface, with nothing of gymnasium's in sight."""

    def __init__(self):
        self._walk = walks(1)[0]()
        self.observation_space, self.action_space = Box(-np.inf, np.inf), gymnasium.spaces.Discrete(5)
        self._seed = None

    def seed(self, seed):
        self._seed = seed

    def reset(self, start=None):
        seed, self._seed = self._seed, None
        return self._walk.reset(seed=seed, options=None if start is None else {"start": start})[0]

    def step(self, action):
        observation, reward, terminated, truncated, _ = self._walk.step(action)
        cut = {"TimeLimit.truncated": True} if truncated and not terminated else {}
        return observation, reward, terminated or truncated, cut


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_they_run_like_others(lanes, mode):
    envs = lanes([OldWalk] * 3, old_api=True, autoreset_mode=mode)
    new = SyncVectorEnv(walks(3), autoreset_mode=mode)
    assert envs.single_observation_space == new.single_observation_space
    given = {"seed": 5, "options": {"start": 3.0, "mode": "train"}}  # reset takes one of these
    same(envs.reset(**given)[0], new.reset(**given)[0])
    for step in range(40):
        mine, its = (each.step(np.full(3, step % 5)) for each in (envs, new))
        same(mine[:4], (*its[:3], its[3] & ~its[2]))  # with one flag, an episode ends in one way
