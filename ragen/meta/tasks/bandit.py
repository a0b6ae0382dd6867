"""The multi-armed bandit: a task is the chance of each arm to pay 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from ragen.meta.tasks.base import TaskEnv


class Bandit(TaskEnv):
    """Pull an arm, get 0 or 1; chances are uniform over [0, 1] (Duan et al. 2016, "RL^2", section 3.1).

    There is nothing to see: the observation is a constant 0.
    """

    def __init__(self, arms: int = 10) -> None:
        """Build it.

        Args:
            arms: How many arms there are.
        """
        self.arms = arms
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(arms)
        self.task_space = Box(0.0, 1.0, (arms,), np.float32)

    @classmethod
    def sample_task(cls, rng: np.random.Generator, arms: int = 10, **_: Any) -> tuple[float, ...]:
        """Chances of the arms, each uniform over [0, 1]."""
        return tuple(rng.random(arms).tolist())

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Pull an arm."""
        reward = float(self.np_random.random() < self.task[int(action)])
        return np.zeros(1, np.float32), reward, False, False, {}

    def _draw(self) -> tuple[float, ...]:
        return self.sample_task(self.np_random, self.arms)

    def _begin(self) -> np.ndarray:
        return np.zeros(1, np.float32)
