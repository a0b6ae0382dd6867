"""The tasks of an environment: sampled once, in the main process, and identified by their parameters elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragen.errors import TaskError

Sampler = Callable[[np.random.Generator], Any]


@dataclass(frozen=True)
class TaskSet:
    """A source of tasks.

    Attributes:
        sample: Samples a task; None if the environment samples its tasks itself, and identifies them by index.
        tasks: The parameters of each task; None if unlimited, or if the environment has them.
        count: Number of tasks; None if unlimited.
        train: Indices of the training tasks.
        evaluation: Indices of the other tasks.
    """

    sample: Sampler | None = None
    tasks: tuple[Any, ...] | None = None
    count: int | None = None
    train: range = range(0)
    evaluation: range = range(0)

    @classmethod
    def drawn(
        cls, sample: Sampler, seed: int | None, n_tasks: int | None = None, n_train: int | None = None
    ) -> TaskSet:
        """Sample tasks.

        Args:
            sample: Samples a task.
            seed: The seed.
            n_tasks: Number of tasks; None for an unlimited number, each sampled when needed.
            n_train: Number of training tasks, the first ones; all by default.

        Raises:
            TaskError: A number is invalid.
        """
        if n_tasks is None:
            return cls(sample)
        taught = n_tasks if n_train is None else n_train
        if not 0 < taught <= n_tasks:
            raise TaskError(f"n_tasks = {n_tasks}, of which {taught} to learn from: expected at least 1 of each.")
        rng = np.random.default_rng(seed)
        return cls(sample, tuple(sample(rng) for _ in range(n_tasks)), n_tasks, range(taught), range(taught, n_tasks))

    @classmethod
    def of_env(cls, env: Any) -> TaskSet:
        """The tasks of an environment: its ``tasks``, or its ``n_tasks`` if it samples and numbers them itself."""
        found, count = getattr(env, "tasks", None), getattr(env, "n_tasks", None)
        return found if isinstance(found, TaskSet) else cls(count=count, train=range(count or 0))

    def parameters(self, task: Any) -> Any:
        """The parameters of a task, for ``reset``.

        Args:
            task: Its index, its parameters, or None.

        Raises:
            TaskError: There is no such task.
        """
        if isinstance(task, bool) or not isinstance(task, int | np.integer):
            return task
        if not 0 <= task < (self.count or 0):
            raise TaskError(f"task {task}: there are {self.count or 0} with a number; give its parameters, or None.")
        return int(task) if self.tasks is None else self.tasks[task]

    def draw(self, rng: np.random.Generator, among: range | None = None) -> Any:
        """The parameters of a random task: one of the list, or a new one if there is no list.

        Args:
            rng: The generator.
            among: Indices to choose from; the training tasks by default.
        """
        if self.count is not None:
            chosen = self.train if among is None else among
            return self.parameters(chosen[int(rng.integers(len(chosen)))])
        return None if self.sample is None else self.sample(rng)
