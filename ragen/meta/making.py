"""Creates environments with tasks by name: one, or many in workers. Tasks are sampled here, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

import ragen.meta.tasks  # noqa: F401  (registers them)
from ragen.errors import ConfigError, UnknownEnvError
from ragen.meta.task_set import TaskSet
from ragen.meta.varibad import Start, VariBadWrapper
from ragen.parallel import EnvRng, outer_state_kept

if TYPE_CHECKING:
    from ragen.meta.manager import ParallelEnvManager

_OF_THE_RUN = ("max_episode_steps", "render_mode")  # arguments of gym.make that do not concern tasks
_COUNTS = ("n_tasks", "num_train_tasks", "num_eval_tasks")


@dataclass(frozen=True)
class EnvMaker:
    """Builds one environment, in any process.

    Attributes:
        env_id: Its name with gymnasium.
        episodes_per_task: See :class:`VariBadWrapper`.
        oracle: Whether observations contain the task.
        start: The observation between two inner episodes.
        tasks: The tasks.
        arguments: Arguments of the environment.
        uses_global_rng: Whether it may draw from the global generators.
    """

    env_id: str
    episodes_per_task: int
    oracle: bool = False
    start: Start = "info"
    tasks: TaskSet | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    uses_global_rng: bool = True

    def __call__(self) -> VariBadWrapper:
        """Build it."""
        env = gym.make(self.env_id, disable_env_checker=True, **self.arguments)
        return VariBadWrapper(env, self.episodes_per_task, self.oracle, self.start, self.tasks)


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
    env = _build(_maker(env_id, episodes_per_task, seed, oracle, start, kwargs))
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
        settings: A :class:`~ragen.parallel.Settings`, or a mapping of some of its fields.
        kwargs: Arguments of ``gym.make``.

    Raises:
        ConfigError: An argument is invalid.
    """
    from ragen.meta.manager import ParallelEnvManager

    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 1:
        raise ConfigError(f"num_workers = {num_workers!r}: expected an integer of at least 1.")
    maker = _maker(env_id, episodes_per_task, seed, oracle, start, kwargs)
    seeds = None if seed is None else [seed + worker for worker in range(num_workers)]
    return ParallelEnvManager([maker] * num_workers, settings=settings, tasks=maker.tasks, seeds=seeds)


def _maker(
    env_id: str, episodes_per_task: int, seed: int | None, oracle: bool, start: Start, kwargs: Mapping[str, Any]
) -> EnvMaker:
    if env_id not in gym.registry and f"ragen/{env_id}" in gym.registry:
        env_id = f"ragen/{env_id}"
    try:
        spec = gym.spec(env_id)
    except gym.error.Error as error:
        raise UnknownEnvError(f"gymnasium knows no environment {env_id!r}: {error}") from error
    entry = spec.entry_point
    env_class = load_env_creator(entry) if isinstance(entry, str) else entry
    arguments = dict(kwargs)
    maker = EnvMaker(
        env_id, episodes_per_task, oracle, start, None, arguments, getattr(env_class, "uses_global_rng", True)
    )
    sample = getattr(env_class, "sample_task", None)
    if sample is None:
        return maker
    n_tasks, n_train, n_evaluation = (arguments.pop(name, None) for name in _COUNTS)
    if n_tasks is None and n_train is not None:
        n_tasks = n_train + (n_evaluation or 0)
    has_say = {name: value for name, value in arguments.items() if name not in _OF_THE_RUN}
    return replace(maker, tasks=TaskSet.drawn(partial(sample, **has_say), seed, n_tasks, n_train))


def _build(maker: EnvMaker) -> VariBadWrapper:
    """Build one here, with the same states of the global generators as in a worker."""
    if not maker.uses_global_rng:
        return maker()
    with outer_state_kept(), EnvRng(0).in_place():
        return maker()
