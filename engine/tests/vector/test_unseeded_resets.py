"""Resets without a seed go on with what the last episode has left, whatever happens to an environment's home."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envlanes.gym import LaneVectorEnv
from support.gym_envs import kill

ENVS, STEPS = 3, 9
KILLS = {0, 3, 5, 8}  # steps before which workers are killed: before resets and within episodes


class Draws(gym.Env):
    """Shows what it draws, from its own generator and from spaces, which no seed decides; ends after three steps."""

    observation_space = Box(-9, 99, (6,), np.float64)
    action_space = Discrete(2)

    def __init__(self):
        self.action_space, self.many = Discrete(99), MultiBinary(30)
        self.parts = Dict({"part": Tuple([Box(-1, 1, (1,), np.float64)])})
        self.rng = np.random.RandomState(3)
        for each in (self.action_space, self.many, self.parts):
            each.seed(1)

    def drawn(self):
        many, part = self.many.sample(), self.parts.sample()["part"][0]
        return np.array([*self.np_random.random(2), self.action_space.sample(), many[:9].sum(), *part, self.rng.rand()])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 3
        return self.drawn(), {}

    def step(self, action):
        self.left -= 1
        return self.drawn(), float(self.np_random.random()), self.left == 0, False, {}


def wrapped():
    return gym.wrappers.OrderEnforcing(Draws())


class Saves(Draws):
    """Has a generator of its own that nobody finds, and declares snapshots."""

    def __init__(self):
        self.hidden = [np.random.default_rng(0)]

    def drawn(self):
        return self.hidden[0].random(6)

    def save(self):
        return self.left, self.hidden[0], self.np_random

    def load(self, state):
        self.left, self.hidden[0], self.np_random = state


def switched(envs):
    engine = envs._envs.engine
    engine.use_lanes = not engine.use_lanes


def nothing(envs):
    """No change."""


def played(envs, resets, change):
    """The observations of a run that is disturbed before its steps and resets, but the first."""
    mask = np.array([True, False, True])
    seen: list[Any] = [envs.reset(seed=5)[0]]
    for step in range(STEPS):
        if change is not kill or step in KILLS:
            change(envs)
        if resets == "plain" and step % 4 == 3:
            seen.append(envs.reset()[0])
        if resets == "mask" and step % 3 == 2:
            seen.append(envs.reset(options={"reset_mask": mask})[0])
        if resets == "disabled" and step % 3 == 0 and step:
            seen.append(envs.reset(options={"reset_mask": np.ones(ENVS, bool)})[0])
        observations, rewards, terminated, *_ = envs.step(np.zeros(ENVS, int))
        seen += [observations, rewards, terminated]
    envs.close()
    return [np.asarray(each).tolist() for each in seen]


MODES = {
    "plain": AutoresetMode.NEXT_STEP,
    "mask": AutoresetMode.NEXT_STEP,
    "next step": AutoresetMode.NEXT_STEP,
    "same step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


@pytest.mark.parametrize(
    ("kind", "resets", "change", "backend"),
    [
        *itertools.product([Draws], MODES, (nothing, kill, switched), ["process"]),
        *itertools.product([wrapped], ["next step"], (kill, switched), ["process"]),
        *itertools.product([Draws, Saves], ["plain", "mask"], [kill], ["executor"]),
        (Saves, "plain", kill, "process"),
    ],
)
def test_an_episode_without_a_seed_is_the_same_at_whatever_home(kind, resets, change, backend):
    expected = played(SyncVectorEnv([kind] * ENVS, autoreset_mode=MODES[resets]), resets, nothing)
    envs = LaneVectorEnv([kind] * ENVS, workers=2, backend=backend, autoreset_mode=MODES[resets], max_restarts=99)
    assert played(envs, resets, change) == expected
