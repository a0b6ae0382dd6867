"""Small environments with tasks: a bandit, point robots and wind; and their base class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class TaskEnv(gym.Env[Any, Any]):
    """An environment whose rules depend on a task.

    Attributes:
        task: The current task: a number, or a tuple of numbers.
        task_space: The space of :meth:`task_vector`.
    """

    uses_global_rng = False
    task: Any = None
    task_space: Box

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **arguments: Any) -> Any:
        """Sample a task.

        Args:
            rng: The generator.
            arguments: Arguments of the environment, some of which influence its tasks.
        """
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of ``options["task"]``; without it, of the previous task, or initially of a random one."""
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is not None:
            self.task = task
        elif self.task is None:
            self.task = self._draw()
        return self._begin(), {}

    def reset_task(self, task: Any) -> None:
        """Use this task from the next reset on; None samples one."""
        self.task = self._draw() if task is None else task

    def task_vector(self) -> np.ndarray:
        """The task as numbers, for an oracle's observation."""
        return np.atleast_1d(np.asarray(self.task, np.float32))

    def _draw(self) -> Any:
        return self.sample_task(self.np_random)

    def _begin(self) -> Any:
        """Begin an episode; returns the first observation."""
        raise NotImplementedError


# Bandit


class Bandit(TaskEnv):
    """A bandit with rewards 0 or 1, of probabilities uniform over [0, 1] (Duan et al. 2016, "RL^2", section 3.1).

    The observation is a constant 0.
    """

    def __init__(self, arms: int = 10) -> None:
        """Build it.

        Args:
            arms: Number of arms.
        """
        self.arms = arms
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(arms)
        self.task_space = Box(0.0, 1.0, (arms,), np.float32)

    @classmethod
    def sample_task(cls, rng: np.random.Generator, arms: int = 10, **_: Any) -> tuple[float, ...]:
        """Success probabilities of the arms, each uniform over [0, 1]."""
        return tuple(rng.random(arms).tolist())

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Pull an arm."""
        reward = float(self.np_random.random() < self.task[int(action)])
        return np.zeros(1, np.float32), reward, False, False, {}

    def _draw(self) -> tuple[float, ...]:
        return self.sample_task(self.np_random, self.arms)

    def _begin(self) -> np.ndarray:
        return np.zeros(1, np.float32)


# Point robots


_FAR = 10.0  # no walk of an episode leads this far


class PointRobot(TaskEnv):
    """A point that walks to a goal: the reward is minus the distance. A task is the goal's two coordinates."""

    radius = 0.2
    """Distance from the goal within which it counts as reached."""
    stride = 0.1
    """Maximum length of a step along each axis."""
    jitter = 0.05
    """Maximum distance of the start from the origin along each axis."""

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
    """The position after a step of at most ``stride`` along each axis; plain numbers are faster here than arrays."""
    along, across = float(action[0]), float(action[1])
    return place[0] + min(max(along, -stride), stride), place[1] + min(max(across, -stride), stride)


class SparsePointRobot(PointRobot):
    """Reward 1 for each step within the radius of the goal, else 0."""

    def _reward(self, distance: float) -> float:
        return float(distance <= self.radius)


# Wind


_FARTHEST = 20.0  # no walk of an episode leads this far


class Wind(TaskEnv):
    """Reward 1 for each step at the goal (0, 1). A task is the wind, up to 0.08 per step along each axis."""

    goal = (0.0, 1.0)
    radius = 0.03
    stride = 0.1
    strongest = 0.08

    def __init__(self) -> None:
        """Build it."""
        self.observation_space = Box(-_FARTHEST, _FARTHEST, (2,), np.float32)
        self.action_space = Box(-self.stride, self.stride, (2,), np.float32)
        self.task_space = Box(-self.strongest, self.strongest, (2,), np.float32)
        self._place = 0.0, 0.0

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **_: Any) -> tuple[float, float]:
        """A wind, uniform along each axis."""
        along, across = rng.uniform(-cls.strongest, cls.strongest, 2).tolist()
        return along, across

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Walk, with the wind added."""
        along, across = moved(self._place, action, self.stride)
        self._place = along + self.task[0], across + self.task[1]
        return np.array(self._place, np.float32), float(self.is_goal_state()), False, False, {}

    def is_goal_state(self) -> bool:
        """Whether the point is at the goal."""
        return math.hypot(self._place[0] - self.goal[0], self._place[1] - self.goal[1]) <= self.radius

    def _begin(self) -> np.ndarray:
        self._place = 0.0, 0.0
        return np.zeros(2, np.float32)
