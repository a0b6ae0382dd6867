"""What environments with tasks have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box


class TaskEnv(gym.Env[Any, Any]):
    """An environment whose rules are a task.

    Attributes:
        task: The present task: a number, or a tuple of numbers.
        task_space: Where :meth:`task_vector` lies.
    """

    uses_global_rng = False
    task: Any = None
    task_space: Box

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **arguments: Any) -> Any:
        """Draw a task.

        Args:
            rng: What to draw from.
            arguments: What the environment is built with; some have a say in its tasks.
        """
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of ``options["task"]``; without it, of the task before, and of a drawn one at first."""
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is not None:
            self.task = task
        elif self.task is None:
            self.task = self._draw()
        return self._begin(), {}

    def reset_task(self, task: Any) -> None:
        """Have this task from the next reset on; None draws one."""
        self.task = self._draw() if task is None else task

    def task_vector(self) -> np.ndarray:
        """The task as numbers, which an oracle is shown."""
        return np.atleast_1d(np.asarray(self.task, np.float32))

    def _draw(self) -> Any:
        return self.sample_task(self.np_random)

    def _begin(self) -> Any:
        """Begin an episode; the first observation."""
        raise NotImplementedError
