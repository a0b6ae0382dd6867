"""Collects rollouts for an agent: one after the other, or in many environments at once.

The task, environment seed and agent noise of rollout i depend only on its index, and rollouts are stored in order; free
environments play the next ones. The buffer is therefore the same for any number of environments and workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from ragen.errors import ConfigError, InputError
from ragen.meta.acting import Actor, AgentActor, RandomActor
from ragen.meta.agents import AGENT_ARCHS
from ragen.meta.game import Transition
from ragen.meta.manager import ParallelEnvManager
from ragen.meta.rollouts import Draws, EpisodeBuffer, Rollout, StepBuffer, flat
from ragen.meta.task_set import TaskSet
from ragen.validity import env_error


class Learner:
    """Collects rollouts.

    Attributes:
        agent: The agent.
        agent_arch: Its kind.
        train_env: The environment of rollouts that are collected one after the other.
        train_tasks: Indices of the training tasks.
        max_trajectory_len: Maximum number of steps of a rollout.
        policy_storage: The buffer of rollouts.
        last_rollouts: The rollouts of the last collection, in order.
    """

    def __init__(
        self,
        agent: Any,
        env: Any,
        *,
        seed: int = 0,
        policy_storage: Any = None,
        buffer_size: int = 1_000_000,
        train_tasks: range | None = None,
        max_trajectory_len: int | None = None,
        forward_batch: int = 16,
        is_credit: bool = False,
    ) -> None:
        """Prepare to collect; nothing is reset yet.

        Args:
            agent: One of :mod:`ragen.meta.agents`.
            env: The environment, as returned by :func:`~ragen.meta.making.make_env`.
            seed: Seed of the rollouts.
            policy_storage: A :class:`StepBuffer` or :class:`EpisodeBuffer` (or an object with the same method); created
                by default.
            buffer_size: Its capacity in steps.
            train_tasks: Indices of the training tasks; by default, the environment's.
            max_trajectory_len: Maximum number of steps of a rollout; by default those of the environment.
            forward_batch: Rollouts per forward pass of the agent. Rollouts are equal only for the same number.
            is_credit: Whether the last step is terminal, whatever ended the episode.

        Raises:
            ConfigError: An argument is invalid.
        """
        if forward_batch < 1:
            raise ConfigError(f"forward_batch = {forward_batch!r}: expected an integer of at least 1.")
        self.agent, self.train_env = agent, env
        self.agent_arch = AGENT_ARCHS(agent.arch)
        self.max_trajectory_len = max_trajectory_len or getattr(env, "horizon_bamdp", None) or 0
        if self.max_trajectory_len < 1:
            raise ConfigError("the environment has no limit of steps: expected max_trajectory_len.")
        found = getattr(env, "tasks", None)
        tasks = found if isinstance(found, TaskSet) else TaskSet.of_env(getattr(env, "n_tasks", None))
        self.train_tasks = tasks.train if train_tasks is None else train_tasks
        self._draws = Draws(seed, tasks, self.train_tasks, env.action_space, self.max_trajectory_len)
        if policy_storage is None:
            width = 1 if isinstance(env.action_space, Discrete) else agent.action_dim
            is_markov = self.agent_arch == AGENT_ARCHS.Markov
            size = agent.observation_dim, width
            policy_storage = StepBuffer(buffer_size, *size) if is_markov else EpisodeBuffer(buffer_size)
        self.policy_storage = policy_storage
        self._forward_batch, self._is_credit = forward_batch, is_credit
        self.last_rollouts: list[Rollout] = []
        self._n_env_steps_total = self._n_rollouts_total = self._successes_in_buffer = self._failures_total = 0

    def collect_rollouts(self, num_rollouts: int, random_actions: bool = False) -> int:
        """Collect rollouts one after the other, in ``train_env``; returns their total number of steps."""
        return self.collect_rollouts_parallel(num_rollouts, random_actions)

    def collect_rollouts_parallel(
        self, num_rollouts: int, random_actions: bool = False, parallel_env: ParallelEnvManager | None = None
    ) -> int:
        """Collect rollouts, several at once. An interrupted call stores nothing.

        Args:
            num_rollouts: How many.
            random_actions: Whether actions are drawn uniformly, without the agent.
            parallel_env: The environments; None for one after the other, in ``train_env``.

        Returns:
            Their total number of steps. Those whose environment failed are in ``last_rollouts`` alone.

        Raises:
            InputError: ``num_rollouts`` is invalid, or a rollout has a single step, which buffers of episodes refuse.
            EnvError: An environment could not be reset.
        """
        if isinstance(num_rollouts, bool) or not isinstance(num_rollouts, int) or num_rollouts < 0:
            raise InputError(f"num_rollouts = {num_rollouts!r}: expected a number of rollouts.")
        first = self._n_rollouts_total
        planned = [self._draws.rollout(index, random_actions) for index in range(first, first + num_rollouts)]
        actor: Actor = RandomActor() if random_actions else AgentActor(self.agent, self._forward_batch)
        with self._environments(parallel_env) as manager:
            self._play(planned, actor, manager)
        return self._keep(planned)

    def evaluate(
        self,
        tasks: Sequence[Any],
        seed: int,
        parallel_env: ParallelEnvManager | None = None,
        deterministic: bool = False,
        actor: Actor | None = None,
    ) -> list[Rollout]:
        """Play a rollout of each task, and store nothing.

        Args:
            tasks: Indices or parameters.
            seed: Seed of the rollouts.
            parallel_env: The environments; None for ``train_env``.
            deterministic: Whether the agent takes the most likely actions.
            actor: Chooses actions instead of the agent.
        """
        draws = Draws(seed, self._draws.tasks, self.train_tasks, self._draws.action_space, self.max_trajectory_len)
        rollouts = [draws.rollout(index, task=task) for index, task in enumerate(tasks)]
        with self._environments(parallel_env) as manager:
            self._play(rollouts, actor or AgentActor(self.agent, self._forward_batch, deterministic), manager)
        return rollouts

    @contextmanager
    def _environments(self, parallel_env: ParallelEnvManager | None) -> Iterator[ParallelEnvManager]:
        if parallel_env is not None:
            yield parallel_env
            return
        env = _Kept(self.train_env)
        with ParallelEnvManager([env], settings={"use_lanes": False, "on_env_failure": "truncate"}) as manager:
            yield manager

    def _play(self, rollouts: Sequence[Rollout], actor: Actor, manager: ParallelEnvManager) -> None:
        coming = iter(rollouts)
        active: dict[int, Rollout] = {}
        self._begin(range(manager.num_envs), coming, active, manager)
        while active:
            actions = dict(zip(active, actor.act(list(active.values())), strict=True))
            steps = manager.step_some({env: self._for_env(action) for env, action in actions.items()})
            over = [env for env, step in steps.items() if self._add(active[env], actions[env], step)]
            for env in over:
                actor.end(active.pop(env))
            self._begin(over, coming, active, manager)

    def _begin(
        self, free: Sequence[int], coming: Iterator[Rollout], active: dict[int, Rollout], manager: ParallelEnvManager
    ) -> None:
        new = dict(zip(free, coming, strict=False)) if free else {}
        if not new:
            return
        options = {env: {} if rollout.task is None else {"task": rollout.task} for env, rollout in new.items()}
        shown = manager.reset_some(options, {env: rollout.env_seed for env, rollout in new.items()})
        for env, rollout in new.items():
            rollout.observations.append(flat(shown[env]))
            active[env] = rollout

    def _for_env(self, action: np.ndarray) -> Any:
        return int(action[0]) if isinstance(self._draws.action_space, Discrete) else action

    def _add(self, rollout: Rollout, action: np.ndarray, step: Transition) -> bool:
        """Add a step to its rollout; returns whether the rollout is over."""
        done = step.terminated or step.truncated
        rollout.error = env_error(step.info)
        if "is_goal_state" in step.info:
            terminal = bool(step.info["is_goal_state"])
            rollout.successes += terminal
        elif self._is_credit:
            terminal = done
        else:
            terminal = step.terminated and len(rollout) + 1 < self.max_trajectory_len
        rollout.add(action, step, terminal)
        return done or rollout.is_full

    def _keep(self, rollouts: list[Rollout]) -> int:
        """Store rollouts in order, except those whose environment failed; returns the number of steps."""
        is_markov = self.agent_arch == AGENT_ARCHS.Markov
        stored = [rollout for rollout in rollouts if rollout.error is None]
        if not is_markov and any(len(rollout) < 2 for rollout in stored):
            raise InputError("a rollout has a single step: an agent with a memory takes those of at least two.")
        for rollout in stored:
            arrays = rollout.arrays()
            if is_markov:
                names = [name.removesuffix("s") for name in arrays]
                for row in zip(*arrays.values(), strict=True):
                    self.policy_storage.add_sample(**dict(zip(names, row, strict=True)))
            else:
                self.policy_storage.add_episode(**arrays)
        steps = sum(map(len, rollouts))
        self._n_env_steps_total += steps
        self._n_rollouts_total += len(rollouts)
        self._successes_in_buffer += sum(rollout.successes > 0 for rollout in stored)
        self._failures_total += len(rollouts) - len(stored)
        self.last_rollouts = rollouts
        return steps


class _Kept:
    """A builder that returns an existing environment, which its user does not close."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.uses_global_rng = getattr(env.unwrapped, "uses_global_rng", True)

    def __call__(self) -> Any:
        return _Lent(self._env)


class _Lent:
    """An environment whose ``close`` does nothing."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.reset = env.reset
        self.step = env.step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def close(self) -> None:
        """Leave it open."""
