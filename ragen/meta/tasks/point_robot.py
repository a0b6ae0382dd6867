"""A point that walks to a goal on the upper half of the unit circle, which it is not shown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from ragen.meta.tasks.base import TaskEnv

_FAR = 10.0  # no walk of an episode leads this far


class PointRobot(TaskEnv):
    """Rewarded by nearness: minus the distance to the goal. A task is the goal's two coordinates."""

    radius = 0.2
    """Distance from the goal within which the point is there."""
    stride = 0.1
    """How far it walks in a step at most, along each axis."""
    jitter = 0.05
    """How far from the origin an episode starts at most, along each axis."""

    def __init__(self) -> None:
        """Build it."""
        self.observation_space = Box(-_FAR, _FAR, (2,), np.float32)
        self.action_space = Box(-self.stride, self.stride, (2,), np.float32)
        self.task_space = Box(-1.0, 1.0, (2,), np.float32)
        self._place = 0.0, 0.0

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **_: Any) -> tuple[float, float]:
        """A goal on the upper half circle."""
        angle = rng.uniform(0.0, math.pi)
        return math.cos(angle), math.sin(angle)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Walk."""
        self._place = moved(self._place, action, self.stride)
        return self._seen(), self._reward(self._distance()), False, False, {}

    def is_goal_state(self) -> bool:
        """Whether the point is at the goal."""
        return self._distance() <= self.radius

    def _begin(self) -> np.ndarray:
        along, across = self.np_random.uniform(-self.jitter, self.jitter, 2).tolist()
        self._place = along, across
        return self._seen()

    def _seen(self) -> np.ndarray:
        return np.array(self._place, np.float32)

    def _distance(self) -> float:
        return math.hypot(self._place[0] - self.task[0], self._place[1] - self.task[1])

    def _reward(self, distance: float) -> float:
        return -distance


def moved(place: tuple[float, float], action: Any, stride: float) -> tuple[float, float]:
    """Where a step leads that is at most a stride along each axis; numbers, which are faster here than arrays."""
    along, across = float(action[0]), float(action[1])
    return place[0] + min(max(along, -stride), stride), place[1] + min(max(across, -stride), stride)


class SparsePointRobot(PointRobot):
    """Rewarded with 1 for each step within the radius of the goal, else with 0."""

    def _reward(self, distance: float) -> float:
        return float(distance <= self.radius)
