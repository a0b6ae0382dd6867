"""A point that walks to a known goal in an unknown wind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from ragen.meta.tasks.base import TaskEnv
from ragen.meta.tasks.point_robot import moved

_FAR = 20.0  # no walk of an episode leads this far


class Wind(TaskEnv):
    """Rewarded with 1 for each step at the goal (0, 1). A task is the wind, up to 0.08 a step along each axis."""

    goal = (0.0, 1.0)
    radius = 0.03
    stride = 0.1
    strongest = 0.08

    def __init__(self) -> None:
        """Build it."""
        self.observation_space = Box(-_FAR, _FAR, (2,), np.float32)
        self.action_space = Box(-self.stride, self.stride, (2,), np.float32)
        self.task_space = Box(-self.strongest, self.strongest, (2,), np.float32)
        self._place = 0.0, 0.0

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **_: Any) -> tuple[float, float]:
        """A wind, uniform along each axis."""
        along, across = rng.uniform(-cls.strongest, cls.strongest, 2).tolist()
        return along, across

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Walk, and be blown."""
        along, across = moved(self._place, action, self.stride)
        self._place = along + self.task[0], across + self.task[1]
        return np.array(self._place, np.float32), float(self.is_goal_state()), False, False, {}

    def is_goal_state(self) -> bool:
        """Whether the point is at the goal."""
        return math.hypot(self._place[0] - self.goal[0], self._place[1] - self.goal[1]) <= self.radius

    def _begin(self) -> np.ndarray:
        self._place = 0.0, 0.0
        return np.zeros(2, np.float32)
