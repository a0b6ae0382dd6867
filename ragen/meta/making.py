"""Creates environments with tasks by name: one, or many in workers. Tasks are sampled here, once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator

import ragen.meta.tasks  # noqa: F401  (registers them)
from envlanes import EnvRng, outer_state_kept
from ragen.errors import TaskError
from ragen.meta.manager import ParallelEnvManager
from ragen.meta.varibad import VariBadWrapper


def make_env(
    env_id: str,
    episodes_per_task: int,
    seed: int | None = None,
    oracle: bool = False,
    *,
    start: str = "info",
    **kwargs: Any,
) -> VariBadWrapper:
    """An environment in which several episodes of one task form a single episode.

    Args:
        env_id: A name that gymnasium knows, such as ``ragen/PointRobot-v0``; ``ragen/`` may be omitted.
        episodes_per_task: Number of inner episodes.
        seed: Seed of its tasks, and of its own generator at the first reset.
        oracle: Whether observations contain the task.
        start: See :class:`VariBadWrapper`.
        kwargs: Arguments of ``gym.make``; except ``n_tasks``, or ``num_train_tasks`` and ``num_eval_tasks``, if the
            environment's class samples tasks (``sample_task``), as all of ``ragen/...`` do.

    Raises:
        gymnasium.error.Error: gymnasium has no such environment.
        TaskError: The number of tasks is invalid.
    """
    build = _builder(env_id, seed, kwargs, episodes_per_task, oracle, start)
    with outer_state_kept(), EnvRng(0).in_place():  # as in a worker, so that one with global draws has the same tasks
        env = build()
    env.first_seed = seed
    return env


def make_parallel_env(
    env_id: str,
    episodes_per_task: int,
    num_workers: int,
    seed: int | None = None,
    oracle: bool = False,
    *,
    start: str = "info",
    settings: Any = None,
    **kwargs: Any,
) -> ParallelEnvManager:
    """Copies of the environment of :func:`make_env`, with the same tasks, in workers.

    Args:
        env_id: See :func:`make_env`.
        episodes_per_task: Number of inner episodes.
        num_workers: Number of copies; copy ``r`` begins with seed ``seed + r``. They share ``settings.max_workers``
            processes.
        seed: Seed of the tasks and of the copies.
        oracle: Whether observations contain the task.
        start: The observation between two inner episodes.
        settings: Some fields of the engine's :class:`~envlanes.Settings`.
        kwargs: Arguments of ``gym.make``.

    Raises:
        ConfigError: An argument is invalid.
    """
    build = _builder(env_id, seed, kwargs, episodes_per_task, oracle, start)
    manager = ParallelEnvManager([build] * num_workers, settings=settings)
    if seed is not None:
        manager.seed(range(seed, seed + num_workers))
    return manager


def _builder(env_id: str, seed: int | None, kwargs: dict[str, Any], *wrapping: Any) -> Callable[[], VariBadWrapper]:
    if f"ragen/{env_id}" in gym.registry:
        env_id = f"ragen/{env_id}"
    entry: Any = gym.spec(env_id).entry_point
    env_class = load_env_creator(entry) if isinstance(entry, str) else entry
    tasks = _tasks(env_class.sample_task, seed, kwargs) if hasattr(env_class, "sample_task") else ()

    def build() -> VariBadWrapper:
        return VariBadWrapper(gym.make(env_id, disable_env_checker=True, **kwargs), *wrapping, *tasks)

    # For the engine.
    build.uses_global_rng = getattr(env_class, "uses_global_rng", True)  # type: ignore[attr-defined]
    return build


def _tasks(sample_task: Any, seed: int | None, kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Sample as many tasks as the arguments say, which are taken from them: tasks, training tasks, the sampler."""
    names = "n_tasks", "num_train_tasks", "num_eval_tasks"
    n_tasks, n_train, n_evaluation = (kwargs.pop(name, None) for name in names)
    n_train = n_tasks if n_train is None else n_train
    sample = partial(sample_task, **kwargs)
    if n_train is None:
        return None, None, sample
    count = n_train + (n_evaluation or 0) if n_tasks is None else n_tasks
    if not 0 < n_train <= count:
        raise TaskError(f"n_tasks = {count}, of which {n_train} to learn from: expected at least 1 of each.")
    rng = np.random.default_rng(seed)
    return [sample(rng) for _ in range(count)], range(n_train), sample
