"""A replay draws from an environment's spaces what the episode has drawn, though no seed decides it."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from envlanes.gym import LaneVectorEnv
from support.gym_envs import kill

STEPS = 4


class Draws(gym.Env):
    """Shows all that it has drawn in an episode from a space."""

    def __init__(self, space: str) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (STEPS + 1,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self.parts = gym.spaces.Dict({"part": gym.spaces.Tuple([gym.spaces.Box(-1, 1, (1,), np.float64)])})
        self.many = gym.spaces.MultiBinary(30)
        self.space = space

    def drawn(self) -> Any:
        sample = getattr(self, self.space).sample()
        sample = sample["part"][0] if self.space == "parts" else np.asarray(sample, np.float64)
        self.shown[self.turn] = sample.ravel() @ np.arange(1, sample.size + 1) / 1000
        return self.shown.copy()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.turn, self.shown = 0, np.zeros(STEPS + 1)
        return self.drawn(), {}

    def step(self, action: int) -> Any:
        self.turn += 1
        return self.drawn(), 0.0, False, False, {}


def make(space: str, wraps: bool) -> gym.Env[Any, Any]:
    env: Any = Draws(space)
    return gym.wrappers.TimeLimit(env, 100) if wraps else env


@pytest.mark.parametrize(
    ("space", "wraps", "seed"),
    [("observation_space", True, None), ("action_space", False, 3), ("parts", False, None), ("many", True, 3)],
)
def test_a_killed_worker_changes_nothing_that_a_space_has_drawn(space, wraps, seed):
    with closing(LaneVectorEnv([partial(make, space, wraps)] * 2, workers=1)) as envs:
        for _ in range(2):  # the second episode begins where the first has left the generators
            shown, _ = envs.reset(seed=seed)
            for turn in range(STEPS):
                kill(envs)
                before = shown.copy()
                shown = envs.step(np.zeros(2, int))[0]
                assert shown[:, : turn + 1].tolist() == before[:, : turn + 1].tolist()
