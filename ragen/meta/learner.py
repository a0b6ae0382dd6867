"""Collects rollouts for an agent: one after the other, or in many environments at once.

The task, environment seed and agent noise of rollout i depend only on its index, and rollouts are stored in order; free
environments play the next ones. The rounding of matrix products depends on the batch size, and on a row's position in
the batch: rollout i is therefore always row ``i % size`` of a batch of a fixed size. The buffer is the same for any
number of environments and workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Wrapper
from gymnasium.spaces import Discrete

from ragen.errors import ConfigError
from ragen.extras import needs
from ragen.meta.agents import AGENT_ARCHS
from ragen.meta.manager import ParallelEnvManager
from ragen.meta.varibad import VariBadWrapper
from ragen.validity import env_error

with needs("meta", "an agent of meta-RL"):
    import torch

FIELDS = ("observations", "actions", "rewards", "terminals", "next_observations")
Step = tuple[Any, ...]
"""A step, in the order of :data:`FIELDS`."""


def arrays_of(steps: Iterable[Step]) -> dict[str, np.ndarray]:
    """Steps by field: ``(steps, width)``."""
    columns = zip(*steps, strict=True)
    return {name: np.array(column, np.float32) for name, column in zip(FIELDS, columns, strict=True)}


@dataclass
class RolloutBuffer:
    """The rollouts collected so far, in order, until it is cleared.

    Attributes:
        steps: The steps of agents without memory.
        episodes: The episodes of the others, each with arrays ``(steps, width)`` by field.
    """

    steps: list[Step] = field(default_factory=list)
    episodes: list[dict[str, np.ndarray]] = field(default_factory=list)

    def add_sample(self, observation: Any, action: Any, reward: Any, terminal: Any, next_observation: Any) -> None:
        """Add a step."""
        self.steps.append((observation, action, reward, terminal, next_observation))

    def add_episode(self, **arrays: Any) -> None:
        """Add an episode: by :data:`FIELDS`, ``(L, d)``, ``(L, a)``, ``(L, 1)``, ``(L, 1)``, ``(L, d)``."""
        self.episodes.append(arrays)

    def clear(self) -> None:
        """Forget all."""
        self.steps, self.episodes = [], []


@dataclass
class Rollout:
    """One rollout: all its randomness is determined by the learner's seed and its index.

    Attributes:
        index: Its number among all rollouts of the learner.
        task: The task's parameters; what :meth:`Learner.evaluate` was given for it.
        env_seed: Seed of the environment's reset.
        noise: ``(steps, action)`` noise for the agent's sampling, or the actions themselves if they are random.
        memory: Previous action, previous reward, and the agent's state.
        steps: Its steps. An action is stored as an index ``(1,)``, or as numbers; a reward and a terminal as ``(1,)``.
        seen: The current observation, flat.
        action: The current action, as it is stored.
        successes: Number of steps in a goal state.
        error: The environment's failure; None if it has none.
    """

    index: int
    task: Any
    env_seed: int
    noise: np.ndarray
    memory: list[Any]
    steps: list[Step] = field(default_factory=list)
    seen: Any = None
    action: Any = None
    successes: int = 0
    error: str | None = None


class Learner:
    """Collects rollouts.

    Attributes:
        agent: The agent.
        agent_arch: Its kind.
        train_env: The environment of rollouts that are collected one after the other.
        max_trajectory_len: Maximum number of steps of a rollout.
        policy_storage: The buffer of rollouts; any object with the methods of :class:`RolloutBuffer`.
        last_rollouts: The rollouts of the last collection, in order.
    """

    def __init__(
        self,
        agent: Any,
        env: VariBadWrapper,
        *,
        seed: int = 0,
        max_trajectory_len: int | None = None,
        forward_batch: int = 16,
        is_credit: bool = False,
    ) -> None:
        """Prepare to collect; nothing is reset yet.

        Args:
            agent: One of :mod:`ragen.meta.agents`.
            env: The environment of rollouts that are collected one after the other.
            seed: Seed of the rollouts.
            max_trajectory_len: Maximum number of steps of a rollout; by default those of the environment.
            forward_batch: Rollouts per forward pass of the agent. Rollouts are equal only for the same number.
            is_credit: Whether the last step is terminal, whatever ended the episode.

        Raises:
            ConfigError: An argument is invalid.
        """
        self.agent, self.train_env = agent, env
        self.agent_arch = AGENT_ARCHS(agent.arch)
        self.max_trajectory_len = max_trajectory_len or env.horizon_bamdp or 0
        if min(forward_batch, self.max_trajectory_len) < 1:
            raise ConfigError(
                f"forward_batch = {forward_batch}, max_trajectory_len = {self.max_trajectory_len}: expected at least 1."
            )
        self.policy_storage: Any = RolloutBuffer()
        self._seed, self._forward_batch, self._is_credit = seed, forward_batch, is_credit
        self._is_discrete = isinstance(env.action_space, Discrete)
        self._has_memory = self.agent_arch == AGENT_ARCHS.Memory
        self._forgotten = agent.get_initial_info() if self._has_memory else [None] * 3
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
            EnvError: An environment could not be reset.
        """
        first = self._n_rollouts_total
        planned = [self._planned(self._seed, i, random_actions) for i in range(first, first + num_rollouts)]
        self._play(planned, parallel_env, random_actions)
        stored = [rollout for rollout in planned if rollout.error is None]
        for rollout in stored:
            if self.agent_arch == AGENT_ARCHS.Markov:
                for step in rollout.steps:
                    self.policy_storage.add_sample(*step)
            else:
                self.policy_storage.add_episode(**arrays_of(rollout.steps))
        steps = sum(len(rollout.steps) for rollout in planned)
        self._n_env_steps_total += steps
        self._n_rollouts_total += num_rollouts
        self._successes_in_buffer += sum(rollout.successes > 0 for rollout in stored)
        self.last_rollouts = planned
        return steps

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
        env: Any = self.train_env
        noise: Any
        steps = self.max_trajectory_len
        drawn = env.draw(rng) if task is None else task
        env_seed, space = int(rng.integers(2**31)), env.action_space
        if self._is_discrete:
            noise = rng.integers(space.n, size=(steps, 1)) if random_actions else rng.random((steps, space.n), "f4")
        else:
            shape = (steps, *space.shape)
            noise = rng.uniform(space.low, space.high, shape) if random_actions else rng.standard_normal(shape)
        return Rollout(index, drawn, env_seed, noise.astype(np.float32), list(self._forgotten))

    def _play(
        self, rollouts: Sequence[Rollout], parallel_env: ParallelEnvManager | None, random_actions: bool = False
    ) -> None:
        own: Any = partial(_Lent, self.train_env)
        own.uses_global_rng = getattr(self.train_env.unwrapped, "uses_global_rng", True)
        alone = {"use_lanes": False, "on_env_failure": "truncate"}
        with nullcontext(parallel_env) if parallel_env else ParallelEnvManager([own], settings=alone) as manager:
            coming, active = iter(rollouts), dict[int, Rollout]()
            free: Iterable[int] = range(manager.num_envs)
            while True:
                if new := dict(zip(free, coming, strict=False)):
                    begun = manager.ask("reset", {i: {"task": r.task, "seed": r.env_seed} for i, r in new.items()})
                    for i, rollout in new.items():
                        rollout.seen = begun[i]
                    active |= new
                if not active:
                    return
                if random_actions:
                    for rollout in active.values():
                        rollout.action = rollout.noise[len(rollout.steps)]
                else:
                    self._act(active.values())
                actions = {i: int(r.action[0]) if self._is_discrete else r.action for i, r in active.items()}
                free = [i for i, step in manager.ask("step", actions).items() if self._add(active[i], *step)]
                for i in free:
                    del active[i]

    @torch.no_grad()
    def _act(self, rollouts: Iterable[Rollout]) -> None:
        """Let the agent choose the next action of each rollout."""
        batches: dict[int, dict[int, Rollout]] = {}
        for rollout in rollouts:
            number, row = divmod(rollout.index, self._forward_batch)
            batches.setdefault(number, {})[row] = rollout
        for batch in batches.values():
            spare = next(iter(batch.values()))  # in rows without a rollout; their results are unused
            rows = [batch.get(row, spare) for row in range(self._forward_batch)]
            obs = torch.from_numpy(np.stack([each.seen for each in rows], dtype=np.float32))
            noise = torch.from_numpy(np.stack([each.noise[len(each.steps)] for each in rows]))
            previous, rewards, states = map(list, zip(*(each.memory for each in rows), strict=True))
            if self._has_memory:
                results, states = self.agent.act(states, torch.cat(previous), torch.cat(rewards), obs, False, noise)
            else:
                results = self.agent.act(obs, False, noise)
            actions = results[0]
            taken = (actions.argmax(-1, keepdim=True).float() if self._is_discrete else actions).numpy()
            for row, rollout in batch.items():
                rollout.action, rollout.memory = taken[row], [actions[row : row + 1], rollout.memory[1], states[row]]

    def _add(self, rollout: Rollout, observation: Any, reward: float, done: bool, info: dict[str, Any]) -> bool:
        """Add a step to its rollout; returns whether the rollout is over."""
        is_last = len(rollout.steps) + 1 >= self.max_trajectory_len
        rollout.error = env_error(info)
        if "is_goal_state" in info:
            terminal = bool(info["is_goal_state"])
            rollout.successes += terminal
        else:
            terminal = done and (self._is_credit or not (is_last or info.get("TimeLimit.truncated")))
        before, rollout.seen = rollout.seen, observation
        rollout.steps.append((before, rollout.action, (reward,), (terminal,), rollout.seen))
        rollout.memory[1] = torch.full((1, 1), float(reward))
        return done or is_last


class _Lent(Wrapper):  # type: ignore[type-arg]
    """An environment that its borrower does not close."""

    def close(self) -> None:
        """Leave it open."""
