"""Environments with tasks that are awkward in one way each."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from envlanes.episode import program
from ragen.meta.tasks import TaskEnv


class Corridor(TaskEnv):
    """Walk to a cell that is the task; ends there, or after ``length`` steps. Draws from its own generator."""

    def __init__(self, length: int = 6, fault: str = "", at: int = 2) -> None:
        self.length, self.fault, self.at = length, fault, at
        self.observation_space = Box(-100.0, 100.0, (2,), np.float32)
        self.action_space = Discrete(3)
        self.task_space = Box(0.0, 1.0, (1,), np.float32)

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **_: Any) -> float:
        return float(rng.integers(1, 4))

    def step(self, action: Any) -> Any:
        self.place += int(action) - 1
        self.steps += 1
        if self.fault and self.steps == self.at and self.task == 1.0:
            self._fail()
        noise = self.np_random.normal()
        there = self.place == self.task
        return self._seen(), float(there) + 0.01 * noise, there, self.steps >= self.length, {"place": self.place}

    def _fail(self) -> None:
        if self.fault == "raises":
            raise RuntimeError("a step that cannot be taken")
        if self.fault.startswith("kill once "):
            mark = Path(self.fault.removeprefix("kill once "))
            if program.in_worker and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def _begin(self) -> Any:
        self.place, self.steps = 0, 0
        return self._seen()

    def _seen(self) -> Any:
        return np.array([self.place, self.np_random.random()], np.float32)


class Goal(Corridor):
    """In its goal state in every other step; over after ``length``."""

    def step(self, action: Any) -> Any:
        seen, reward, _, _, info = super().step(action)
        return seen, reward, False, False, info

    def is_goal_state(self) -> bool:
        return self.steps % 2 == 0


class GlobalTasks(gym.Env[Any, Any]):
    """Draws its list of tasks, and its noise, from NumPy's global generator, as many environments do."""

    def __init__(self, n_tasks: int = 8) -> None:
        self.n_tasks = n_tasks
        self.goals = np.random.uniform(size=n_tasks)
        self.observation_space = Box(-100.0, 100.0, (1,), np.float32)
        self.action_space = Box(-2.0, 2.0, (1,), np.float32)
        self.goal = 0.0

    def reset_task(self, task: int | None) -> None:
        self.goal = self.goals[task or 0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.array([self.goal], np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        seen = np.array([self.goal + np.random.normal()], np.float32)
        return seen, float(action[0]), False, self.steps >= 4, {}


class OldTasks:
    """The interface before gymnasium: ``seed``, ``reset(task)``, four values; and no ``n_tasks``."""

    observation_space = Box(-100.0, 100.0, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    @property
    def unwrapped(self) -> OldTasks:
        return self

    def seed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def reset(self, task: Any = None) -> Any:
        self.task, self.steps = task, 0
        return np.array([self.rng.random()], np.float32)

    def step(self, action: int) -> Any:
        self.steps += 1
        info = {"TimeLimit.truncated": True, "task": self.task} if self.steps == 3 else {"task": self.task}
        return np.array([self.rng.random()], np.float32), action, self.steps == 3, info

    def is_goal_state(self) -> bool:
        return self.steps == 2


class OldWrapper:
    """A wrapper of the interface before gymnasium: it passes on all that its ``reset`` is given."""

    def __init__(self) -> None:
        self.env = OldTasks()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **arguments: Any) -> Any:
        return self.env.reset(**arguments)


gym.register("ragen-tests/Corridor-v0", "support.meta_envs:Corridor", max_episode_steps=6)
gym.register("ragen-tests/Goal-v0", "support.meta_envs:Goal", max_episode_steps=6)
gym.register("ragen-tests/GlobalTasks-v0", "support.meta_envs:GlobalTasks", max_episode_steps=4)
