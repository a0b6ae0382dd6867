"""Collects rollouts for an agent: one after the other, or in many environments at once.

The task, environment seed and agent noise of rollout i depend only on its index, and rollouts are stored in order; free
environments play the next ones. The rounding of matrix products depends on the batch size, and on a row's position in
the batch: rollout i is therefore always row ``i % size`` of a batch of a fixed size. The buffer is the same for any
number of environments and workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Wrapper
from gymnasium.spaces import Discrete

from envlanes.gym import GymResult
from ragen.errors import ConfigError, InputError
from ragen.extras import needs
from ragen.meta.agents import AGENT_ARCHS
from ragen.meta.manager import ParallelEnvManager
from ragen.meta.rollouts import EpisodeBuffer, Rollout, StepBuffer, arrays_of
from ragen.meta.task_set import TaskSet
from ragen.validity import env_error

with needs("meta", "an agent of meta-RL"):
    import torch


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
            policy_storage: A :class:`StepBuffer` or :class:`EpisodeBuffer` (or an object with the same method); by
                default, one for a million steps.
            train_tasks: Indices of the training tasks; by default, the environment's.
            max_trajectory_len: Maximum number of steps of a rollout; by default those of the environment.
            forward_batch: Rollouts per forward pass of the agent. Rollouts are equal only for the same number.
            is_credit: Whether the last step is terminal, whatever ended the episode.

        Raises:
            ConfigError: An argument is invalid.
        """
        self.agent, self.train_env = agent, env
        self.agent_arch = AGENT_ARCHS(agent.arch)
        self.max_trajectory_len = max_trajectory_len or getattr(env, "horizon_bamdp", None) or 0
        if min(forward_batch, self.max_trajectory_len) < 1:
            raise ConfigError(
                f"forward_batch = {forward_batch}, max_trajectory_len = {self.max_trajectory_len}: expected at least 1."
            )
        self._tasks = TaskSet.of_env(env)
        self.train_tasks = self._tasks.train if train_tasks is None else train_tasks
        self._is_markov = self.agent_arch == AGENT_ARCHS.Markov
        self.policy_storage: Any = policy_storage or (StepBuffer if self._is_markov else EpisodeBuffer)(1_000_000)
        self._seed, self._forward_batch, self._is_credit = seed, forward_batch, is_credit
        self.last_rollouts: list[Rollout] = []
        self._n_env_steps_total = self._n_rollouts_total = self._successes_in_buffer = 0

    def collect_rollouts(self, num_rollouts: int, random_actions: bool = False) -> int:
        """Collect rollouts one after the other, in ``train_env``; returns their total number of steps."""
        return self.collect_rollouts_parallel(num_rollouts, random_actions)

    def collect_rollouts_parallel(
        self, num_rollouts: int, random_actions: bool = False, parallel_env: ParallelEnvManager | None = None
    ) -> int:
        """Collect rollouts, several at once. An interrupted call stores nothing.

        Args:
            num_rollouts: Number of rollouts.
            random_actions: Whether actions are drawn uniformly, without the agent.
            parallel_env: The environments; None for one after the other, in ``train_env``.

        Returns:
            Their total number of steps. Those whose environment failed are in ``last_rollouts`` alone.

        Raises:
            InputError: ``num_rollouts`` is invalid, or a rollout has a single step, which buffers of episodes refuse.
            EnvError: An environment could not be reset.
        """
        if num_rollouts < 0:
            raise InputError(f"num_rollouts = {num_rollouts}: expected a number of rollouts.")
        first = self._n_rollouts_total
        planned = [self._planned(self._seed, i, random_actions) for i in range(first, first + num_rollouts)]
        self._play(planned, parallel_env, random_actions)
        return self._keep(planned)

    def evaluate(
        self, tasks: Sequence[Any], seed: int, parallel_env: ParallelEnvManager | None = None
    ) -> list[Rollout]:
        """Play a rollout of each task (its index or parameters), from ``seed``, and store nothing."""
        rollouts = [self._planned(seed, index, task=task) for index, task in enumerate(tasks)]
        self._play(rollouts, parallel_env)
        return rollouts

    def _planned(self, seed: int, index: int, random_actions: bool = False, task: Any = None) -> Rollout:
        """A rollout with all its random draws, before it begins."""
        rng = np.random.default_rng((seed, index))
        drawn = self._tasks.draw(rng, self.train_tasks) if task is None else self._tasks.parameters(task)
        env_seed = int(rng.integers(2**31))
        space, steps = self.train_env.action_space, self.max_trajectory_len
        noise: np.ndarray
        if isinstance(space, Discrete):
            noise = rng.integers(space.n, size=(steps, 1)) if random_actions else rng.random((steps, space.n), "f4")
        else:
            shape = (steps, *space.shape)
            noise = rng.uniform(space.low, space.high, shape) if random_actions else rng.standard_normal(shape)
        return Rollout(index, drawn, env_seed, noise.astype(np.float32))

    def _play(
        self, rollouts: Sequence[Rollout], parallel_env: ParallelEnvManager | None, random_actions: bool = False
    ) -> None:
        with nullcontext(parallel_env) if parallel_env else self._own_manager() as manager:
            coming, active, batches = iter(rollouts), dict[int, Rollout](), dict[int, _Batch]()
            free: Iterable[int] = range(manager.num_envs)
            while True:
                if new := dict(zip(free, coming, strict=False)):
                    seeds = {env: rollout.env_seed for env, rollout in new.items()}
                    shown = manager.reset_some({env: {"task": rollout.task} for env, rollout in new.items()}, seeds)
                    for env, rollout in new.items():
                        rollout.see(shown[env])
                    active |= new
                if not active:
                    return
                playing = list(active.values())
                chosen = [each.noise[len(each)] for each in playing] if random_actions else self._act(playing, batches)
                actions = dict(zip(active, chosen, strict=True))
                steps = manager.step_some({env: self._for_env(action) for env, action in actions.items()})
                free = [env for env, step in steps.items() if self._add(active[env], actions[env], step)]
                for env in free:
                    del active[env]

    def _own_manager(self) -> ParallelEnvManager:
        """One that plays in ``train_env``."""
        lent: Any = partial(_Lent, self.train_env)
        lent.uses_global_rng = getattr(self.train_env.unwrapped, "uses_global_rng", True)
        return ParallelEnvManager([lent], settings={"use_lanes": False, "on_env_failure": "truncate"})

    def _act(self, rollouts: Sequence[Rollout], batches: dict[int, _Batch]) -> list[np.ndarray]:
        """The agent's action in each rollout, in the form in which it is stored."""
        places = [divmod(rollout.index, self._forward_batch) for rollout in rollouts]
        for gone in batches.keys() - {number for number, _ in places}:
            del batches[gone]
        for rollout, (number, row) in zip(rollouts, places, strict=True):
            if number not in batches:
                batches[number] = _Batch(self.agent, self._forward_batch)
            batches[number].see(row, rollout)
        given = {number: batch.forward() for number, batch in batches.items()}
        return [given[number][row] for number, row in places]

    def _for_env(self, action: np.ndarray) -> Any:
        return int(action[0]) if isinstance(self.train_env.action_space, Discrete) else action

    def _add(self, rollout: Rollout, action: np.ndarray, step: GymResult) -> bool:
        """Add a step to its rollout; returns whether the rollout is over."""
        done, is_last = step.terminated or step.truncated, len(rollout) + 1 >= self.max_trajectory_len
        rollout.error = env_error(step.info)
        if "is_goal_state" in step.info:
            terminal = bool(step.info["is_goal_state"])
            rollout.successes += terminal
        else:
            terminal = done if self._is_credit else step.terminated and not is_last
        rollout.add(action, step, terminal)
        return done or is_last

    def _keep(self, rollouts: list[Rollout]) -> int:
        """Store rollouts in order, except those whose environment failed; returns the number of steps."""
        stored = [rollout for rollout in rollouts if rollout.error is None]
        if not self._is_markov and any(len(rollout) < 2 for rollout in stored):
            raise InputError("a rollout has a single step: an agent with a memory takes those of at least two.")
        for rollout in stored:
            if self._is_markov:
                for step in rollout.steps:
                    self.policy_storage.add_sample(*step)
            else:
                self.policy_storage.add_episode(**arrays_of(rollout.steps))
        steps = sum(map(len, rollouts))
        self._n_env_steps_total += steps
        self._n_rollouts_total += len(rollouts)
        self._successes_in_buffer += sum(rollout.successes > 0 for rollout in stored)
        self.last_rollouts = rollouts
        return steps


class _Lent(Wrapper):  # type: ignore[type-arg]
    """An environment that its borrower does not close."""

    def close(self) -> None:
        """Leave it open."""


class _Batch:
    """The rollouts of one forward pass: row ``index % size`` of batch ``index // size``."""

    def __init__(self, agent: Any, size: int) -> None:
        self._agent = agent
        self._obs, self._noise = torch.zeros(size, agent.observation_dim), torch.full((size, agent.action_dim), 0.5)
        self._memory = agent.get_initial_info(size) if agent.arch == AGENT_ARCHS.Memory else None

    def see(self, row: int, rollout: Rollout) -> None:
        self._obs.numpy()[row] = rollout.seen  # far faster than torch's assignment
        self._noise.numpy()[row] = rollout.noise[len(rollout)]
        if self._memory is not None:
            action, reward, state = self._memory
            if rollout.steps:
                reward[row] = rollout.steps[-1][2][0]
            else:
                action[row] = reward[row] = 0.0
                for part in state if isinstance(state, tuple) else (state,):
                    part[:, row] = 0.0

    @torch.no_grad()
    def forward(self) -> np.ndarray:
        if self._memory is None:
            (actions, *_) = self._agent.act(self._obs, False, self._noise)
        else:
            action, reward, state = self._memory
            (actions, *_), state = self._agent.act(state, action, reward, self._obs, False, self._noise)
            self._memory = actions, reward, state
        taken: np.ndarray = actions.numpy().copy()
        return taken.argmax(-1)[:, None].astype(np.float32) if self._agent.is_discrete else taken
