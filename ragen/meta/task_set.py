"""The tasks of an environment: drawn once, in the main process, and known by their parameters everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragen.errors import TaskError

Sampler = Callable[[np.random.Generator], Any]


@dataclass(frozen=True)
class TaskSet:
    """Where tasks come from.

    Attributes:
        sample: Draws one; None where the environment draws its tasks itself, and knows them by their index.
        tasks: The parameters of each task; None for an unlimited number, or where the environment has them.
        count: How many there are; None for an unlimited number.
        train: Indices of those to learn from.
        evaluation: Indices of the others.
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
        """Draw tasks.

        Args:
            sample: Draws one.
            seed: What they follow from.
            n_tasks: How many; None for an unlimited number, each drawn when it is needed.
            n_train: How many of them, the first ones, are to learn from; all by default.

        Raises:
            TaskError: The numbers cannot be had.
        """
        if n_tasks is None:
            return cls(sample)
        taught = n_tasks if n_train is None else n_train
        if n_tasks < 1 or not 0 < taught <= n_tasks:
            raise TaskError(f"n_tasks = {n_tasks}, of which {taught} to learn from: expected at least 1 of each.")
        rng = np.random.default_rng(seed)
        tasks = tuple(sample(rng) for _ in range(n_tasks))
        return cls(sample, tasks, n_tasks, range(taught), range(taught, n_tasks))

    @classmethod
    def of_env(cls, count: int | None) -> TaskSet:
        """Tasks that the environment draws itself; ``count`` of them, known by their index."""
        return cls(count=count, train=range(count or 0))

    def parameters(self, task: Any) -> Any:
        """What ``reset`` is given for a task.

        Args:
            task: Its index, its parameters, or None.

        Raises:
            TaskError: There is no such task.
        """
        if task is None or isinstance(task, bool) or not isinstance(task, int | np.integer):
            return task
        if self.count is None:
            raise TaskError(
                f"task {int(task)}: there is no list of tasks (n_tasks is None); give its parameters, or "
                "None to draw one."
            )
        if not 0 <= task < self.count:
            raise TaskError(f"task {int(task)}: there are {self.count}, 0 to {self.count - 1}.")
        return int(task) if self.tasks is None else self.tasks[task]

    def draw(self, rng: np.random.Generator, among: range | None = None) -> Any:
        """The parameters of a task: one of the list, or a new one where there is none.

        Args:
            rng: What to draw from.
            among: Indices to choose from; those to learn from by default.
        """
        if self.count is not None:
            chosen = self.train if among is None else among
            return self.parameters(chosen[int(rng.integers(len(chosen)))])
        return None if self.sample is None else self.sample(rng)
