"""Environments with tasks; importing this module registers them with gymnasium under ``ragen/...``.

Each takes its task from ``reset(options={"task": ...})``, and samples one from its own generator if none is given. Its
class defines how tasks are sampled (``sample_task``), so that the main process can sample them once for all copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import register
from gymnasium.spaces import Box, Discrete


class TaskEnv(gym.Env[Any, Any]):
    """An environment whose rules depend on a task.

    A class has ``sample_task(rng, **arguments)``, which gets all arguments of ``gym.make``, and ``_begin()``, which
    begins an episode and returns the first observation.

    Attributes:
        task: The current task: a number, or a tuple of numbers.
        task_space: The space of tasks as arrays of numbers.
    """

    uses_global_rng = False
    task: Any = None
    task_space: Box
    sample_task: Callable[..., Any]
    _begin: Callable[[], Any]
    _arguments: Mapping[str, Any] = {}  # of sample_task

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of ``options["task"]``; without it, of the previous task, or initially of a random one."""
        begun = super().reset(seed=seed)
        task = (options or {}).get("task", self.task)
        self.task = self.sample_task(self.np_random, **self._arguments) if task is None else task
        return begun or (self._begin(), {})


class Bandit(TaskEnv):
    """A bandit with rewards 0 or 1, of probabilities uniform over [0, 1] (Duan et al. 2016, "RL^2", section 3.1).

    The observation is a constant 0.
    """

    def __init__(self, arms: int = 10) -> None:
        """Build it, with this number of arms."""
        self._arguments = {"arms": arms}
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(arms)
        self.task_space = Box(0.0, 1.0, (arms,), np.float32)

    @classmethod
    def sample_task(cls, rng: np.random.Generator, arms: int = 10, **_: Any) -> tuple[float, ...]:
        """Success probabilities of the arms, each uniform over [0, 1]."""
        return tuple(rng.random(arms).tolist())

    def step(self, action: Any) -> Any:
        """Pull an arm."""
        return self._begin(), float(self.np_random.random() < self.task[int(action)]), False, False, {}

    def _begin(self) -> np.ndarray:
        return np.zeros(1, np.float32)


class PointRobot(TaskEnv):
    """A point that walks to a goal: the reward is minus the distance. A task is the goal's two coordinates."""

    radius = 0.2
    """Distance from the goal within which it counts as reached."""
    stride = 0.1
    """Maximum length of a step along each axis."""
    jitter = 0.05
    """Maximum distance of the start from the origin along each axis."""
    task_space = Box(-1.0, 1.0, (2,), np.float32)
    goal: Any = property(attrgetter("task"))
    wind: Any = 0.0, 0.0
    _place: list[float]

    def __init__(self) -> None:
        """Build it."""
        self.observation_space = Box(-20.0, 20.0, (2,), np.float32)  # no walk of an episode leads this far
        self.action_space = Box(-self.stride, self.stride, (2,), np.float32)

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **_: Any) -> tuple[float, ...]:
        """A goal on the upper half circle."""
        angle = rng.uniform(0.0, math.pi)
        return math.cos(angle), math.sin(angle)

    def step(self, action: Any) -> Any:
        """Walk at most ``stride`` along each axis; plain numbers are faster here than arrays."""
        self._place = [
            at + min(max(float(by), -self.stride), self.stride) + wind
            for at, by, wind in zip(self._place, action, self.wind, strict=True)
        ]
        return np.array(self._place, np.float32), self._reward(), False, False, {}

    def is_goal_state(self) -> bool:
        """Whether the point is at the goal."""
        return math.dist(self._place, self.goal) <= self.radius

    def _begin(self) -> np.ndarray:
        self._place = self.np_random.uniform(-self.jitter, self.jitter, 2).tolist()
        return np.array(self._place, np.float32)

    def _reward(self) -> float:
        return -math.dist(self._place, self.goal)


class SparsePointRobot(PointRobot):
    """Reward 1 for each step within the radius of the goal, else 0."""

    def _reward(self) -> float:
        return float(self.is_goal_state())


class Wind(SparsePointRobot):
    """The goal is always (0, 1). A task is the wind, up to 0.08 per step along each axis."""

    radius, jitter, strongest = 0.03, 0.0, 0.08
    task_space = Box(-strongest, strongest, (2,), np.float32)
    goal = 0.0, 1.0
    wind = property(attrgetter("task"))

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **_: Any) -> tuple[float, ...]:
        """A wind, uniform along each axis."""
        return tuple(rng.uniform(-cls.strongest, cls.strongest, 2).tolist())


for _path, _steps in {
    "tasks:Bandit": 100,
    "tasks:PointRobot": 60,
    "tasks:SparsePointRobot": 60,
    "tasks:Wind": 75,
    "locomotion:HalfCheetahVel": 200,
    "locomotion:HalfCheetahDir": 200,
    "locomotion:AntDir": 200,
}.items():
    register(f"ragen/{_path.split(':')[1]}-v0", entry_point=f"ragen.meta.{_path}", max_episode_steps=_steps)
