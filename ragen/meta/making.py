"""Creates environments with tasks by name: one, or many in workers. Tasks are sampled here, once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

import ragen.meta.tasks  # noqa: F401  (registers them)
from envlanes import EnvRng, outer_state_kept
from ragen.errors import UnknownEnvError
from ragen.meta.task_set import TaskSet
from ragen.meta.varibad import Start, VariBadWrapper

if TYPE_CHECKING:
    from ragen.meta.manager import ParallelEnvManager

_OF_THE_RUN = ("max_episode_steps", "render_mode")  # arguments of gym.make that do not concern tasks


def _build(
    env_id: str, episodes_per_task: int, oracle: bool, start: Start, tasks: TaskSet | None, arguments: dict[str, Any]
) -> VariBadWrapper:
    """Build one environment, in any process."""
    env = gym.make(env_id, disable_env_checker=True, **arguments)
    return VariBadWrapper(env, episodes_per_task, oracle, start, tasks)


def make_env(
    env_id: str,
    episodes_per_task: int,
    seed: int | None = None,
    oracle: bool = False,
    *,
    start: Start = "info",
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
        UnknownEnvError: gymnasium has no such environment.
        TaskError: The number of tasks is invalid.
    """
    maker = _maker(env_id, episodes_per_task, seed, oracle, start, kwargs)
    if maker.uses_global_rng:
        with outer_state_kept(), EnvRng(0).in_place():  # as in a worker, so that it samples the same tasks
            env = maker()
    else:
        env = maker()
    env.first_seed = seed
    return env


def make_parallel_env(
    env_id: str,
    episodes_per_task: int,
    num_workers: int,
    seed: int | None = None,
    oracle: bool = False,
    *,
    start: Start = "info",
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
    from ragen.meta.manager import ParallelEnvManager

    maker = _maker(env_id, episodes_per_task, seed, oracle, start, kwargs)
    manager = ParallelEnvManager([maker] * num_workers, settings=settings)
    if seed is not None:
        manager.seed([seed + worker for worker in range(num_workers)])
    return manager


def _maker(
    env_id: str, episodes_per_task: int, seed: int | None, oracle: bool, start: Start, kwargs: dict[str, Any]
) -> Any:
    if env_id not in gym.registry and f"ragen/{env_id}" in gym.registry:
        env_id = f"ragen/{env_id}"
    try:
        entry = gym.spec(env_id).entry_point
    except gym.error.Error as error:
        raise UnknownEnvError(f"gymnasium knows no environment {env_id!r}: {error}") from error
    env_class = load_env_creator(entry) if isinstance(entry, str) else entry
    sample, tasks = getattr(env_class, "sample_task", None), None
    if sample is not None:
        n_tasks, n_train, n_evaluation = (
            kwargs.pop(name, None) for name in ("n_tasks", "num_train_tasks", "num_eval_tasks")
        )
        if n_tasks is None and n_train is not None:
            n_tasks = n_train + (n_evaluation or 0)
        has_say = {name: value for name, value in kwargs.items() if name not in _OF_THE_RUN}
        tasks = TaskSet.drawn(partial(sample, **has_say), seed, n_tasks, n_train)
    maker: Any = partial(_build, env_id, episodes_per_task, oracle, start, tasks, kwargs)
    maker.uses_global_rng = getattr(env_class, "uses_global_rng", True)  # the engine reads it
    return maker
