"""Large observations come through shared memory, and nobody can tell."""

import os

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv

from support.gym_envs import same, same_runs

pytestmark = pytest.mark.processes


class Pictures(gym.Env):
    """Shows noise, in one and the same array; ends its process in the middle of an episode where so told."""

    observation_space = Box(0, 255, (84, 84, 4), np.uint8)
    action_space = Discrete(3)

    def __init__(self, reuses=True):
        self._array, self._reuses, self.steps = np.zeros((84, 84, 4), np.uint8), reuses, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        if action == 2:
            os._exit(1)
        return self._seen(), float(self._array.mean()), self.steps == 4, False, {}

    def _seen(self):
        self._array[:] = self.np_random.integers(0, 256, self._array.shape, np.uint8)
        return self._array if self._reuses else self._array.copy()


def pictures(count=3, **given):
    return [lambda: Pictures(**given)] * count


@pytest.mark.parametrize(
    ("mode", "backend", "copy"),
    [("NextStep", "process", True), ("SameStep", "process", False), ("SameStep", "executor", True)],
)
def test_pictures_are_the_same_when_workers_are_killed(lanes, mode, backend, copy):
    envs = lanes(pictures(), autoreset_mode=mode, backend=backend, copy=copy, max_restarts=10)
    envs.action_space = gym.spaces.MultiDiscrete([2, 2, 2])
    same_runs(envs, SyncVectorEnv(pictures(reuses=False), autoreset_mode=mode), steps=12, kill_at=(2, 3, 9))


def test_what_was_shown_stays_as_it_was(lanes):
    envs = lanes(pictures())
    shown = [envs.reset(seed=0)[0]] + [envs.step(np.zeros(3, int))[0] for _ in range(6)]
    kept = [each.copy() for each in shown]
    envs.step_some([1], np.zeros(1, int))
    envs.reset(options={"reset_mask": np.array([True, False, False])})
    envs.close()
    same(shown, kept)
    shown[0][:] = 0  # and may be written to


def test_a_turn_that_fails_leaves_the_last_picture_whole(lanes):
    envs = lanes(pictures(), on_env_failure="truncate")
    envs.reset(seed=0)
    before = envs.step(np.zeros(3, int))[0]
    after = envs.step(np.array([0, 2, 0]))[0]
    same(after[1], before[1])
    assert (after[0] != before[0]).any()
