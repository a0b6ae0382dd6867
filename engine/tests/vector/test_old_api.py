"""Environments of the interface that ``gym`` had before 0.26, in the same vector environment as all others."""

import types

import gymnasium
import numpy as np
import pytest

from envlanes.gym.game import GYM_OLD, GymTurn
from support.gym_envs import same_runs, walks


def Box(low, high):
    """A space as gym's: of a class of this name, which gymnasium does not know."""
    kind = type("Box", (), {"__module__": "gym.spaces.box"})
    space = kind()
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

    @property
    def np_random(self):
        return self._walk.np_random


class NewWalk(gymnasium.Env):
    """The same as gymnasium has it."""

    def __init__(self):
        self._walk = walks(1)[0]()
        self.observation_space, self.action_space = self._walk.observation_space, self._walk.action_space

    def reset(self, *, seed=None, options=None):
        return self._walk.reset(seed=seed, options=options)[0], {}

    def step(self, action):
        observation, reward, terminated, truncated, _ = self._walk.step(action)
        truncated = truncated and not terminated
        return observation, reward, terminated, truncated, {"TimeLimit.truncated": True} if truncated else {}


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_they_run_like_others_also_when_workers_are_killed(lanes, mode):
    """Autoresets have seeds of their own: the walk's generator is where no journal would look for it."""
    seeds = {"autoreset_seeds": lambda index, episode: 100 * index + episode}
    envs = lanes([OldWalk] * 3, old_api=True, autoreset_mode=mode, max_restarts=10, **seeds)
    new = lanes([NewWalk] * 3, workers=0, autoreset_mode=mode, **seeds)
    assert envs.single_observation_space == new.single_observation_space
    same_runs(envs, new, steps=25, kill_at=(0, 11))


def test_options_that_reset_takes_are_given_and_a_reset_with_an_info_is_taken():
    env = OldWalk()
    shown = GYM_OLD.reset(env, 7, {"start": 3.0, "mode": "train"})
    assert shown.observation[0] == 3.0 and shown.info == {}
    env.reset = lambda: (np.zeros(3), {"told": 1})
    assert GYM_OLD.reset(env, None, None).info == {"told": 1}


def test_what_was_cut_short_is_told_apart_from_an_end():
    env = types.SimpleNamespace()
    told = [(False, {}), (True, {}), (True, {"TimeLimit.truncated": True})]
    env.step = lambda _: (np.zeros(2), 1.0, *told.pop(0))
    flags = [(result.terminated, result.truncated) for result in (GYM_OLD.play(env, GymTurn(1)) for _ in range(3))]
    assert flags == [(False, False), (True, False), (False, True)]
