"""Rollouts, the random draws that determine them, and buffers of rollouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from ragen.errors import InputError
from ragen.meta.game import Transition
from ragen.meta.task_set import TaskSet

# Buffers


FIELDS = ("observations", "actions", "rewards", "terminals", "next_observations")


class StepBuffer:
    """A buffer of single steps, in order; the oldest are overwritten.

    Attributes:
        size: Number of steps in it.
        capacity: Maximum number of steps.
    """

    def __init__(self, capacity: int, observation_dim: int, action_dim: int) -> None:
        """Allocate the buffer.

        Args:
            capacity: Maximum number of steps.
            observation_dim: Size of an observation.
            action_dim: Size of an action; 1 for a discrete one.
        """
        self.capacity = capacity
        self.size = 0
        self._next = 0
        widths = (observation_dim, action_dim, 1, 1, observation_dim)
        self._columns = {
            name: np.zeros((capacity, width), np.float32) for name, width in zip(FIELDS, widths, strict=True)
        }

    def add_sample(self, observation: Any, action: Any, reward: Any, terminal: Any, next_observation: Any) -> None:
        """Add a step."""
        values = (observation, action, reward, terminal, next_observation)
        for column, value in zip(self._columns.values(), values, strict=True):
            column[self._next] = value
        self._next = (self._next + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def arrays(self) -> dict[str, np.ndarray]:
        """All steps, the oldest first, by field."""
        first = self._next if self.size == self.capacity else 0
        order = (first + np.arange(self.size)) % self.capacity
        return {name: column[order] for name, column in self._columns.items()}

    def clear(self) -> None:
        """Forget all."""
        self.size = self._next = 0


class EpisodeBuffer:
    """A buffer of whole episodes, in order; the oldest are dropped.

    Attributes:
        episodes: Each with arrays ``(steps, width)`` by field.
        capacity: Maximum number of steps.
    """

    def __init__(self, capacity: int) -> None:
        """Create a buffer for ``capacity`` steps."""
        self.capacity = capacity
        self.episodes: list[dict[str, np.ndarray]] = []
        self.size = 0

    def add_episode(
        self, observations: Any, actions: Any, rewards: Any, terminals: Any, next_observations: Any
    ) -> None:
        """Add an episode: arrays ``(L, d)``, ``(L, a)``, ``(L, 1)``, ``(L, 1)``, ``(L, d)``.

        Raises:
            InputError: It has fewer than two steps, more than the capacity, or arrays of different lengths.
        """
        values = (observations, actions, rewards, terminals, next_observations)
        episode = {name: np.array(value, np.float32) for name, value in zip(FIELDS, values, strict=True)}
        lengths = {len(column) for column in episode.values()}
        steps = min(lengths)
        if len(lengths) > 1 or not 2 <= steps <= self.capacity:
            raise InputError(
                f"an episode of {sorted(lengths)} steps: expected arrays of one length, at least 2 and at most "
                f"{self.capacity} (the capacity)."
            )
        self.episodes.append(episode)
        self.size += steps
        while self.size > self.capacity:
            self.size -= len(self.episodes.pop(0)["rewards"])

    def clear(self) -> None:
        """Forget all."""
        self.episodes, self.size = [], 0


# Rollouts


@dataclass
class Rollout:
    """One rollout: all its randomness is determined by the learner's seed and its index.

    Attributes:
        index: Its number among all rollouts of the learner.
        task: The task's parameters.
        env_seed: Seed of the environment's reset.
        noise: ``(steps, action)`` noise for the agent's sampling, or the actions themselves if they are random.
        observations: One more than steps, once it has begun.
        actions: As stored: an index ``(1,)``, or numbers.
        rewards: One per step.
        terminals: Whether the step was the last by the rules.
        successes: Number of steps in a goal state.
        error: Why the environment failed; None if it did not.
    """

    index: int
    task: Any
    env_seed: int
    noise: np.ndarray
    observations: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminals: list[bool] = field(default_factory=list)
    successes: int = 0
    error: str | None = None

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def is_full(self) -> bool:
        """Whether it has the maximum number of steps."""
        return len(self.rewards) >= len(self.noise)

    def add(self, action: np.ndarray, step: Transition, terminal: bool) -> None:
        """Add a step."""
        self.actions.append(action)
        self.rewards.append(step.reward)
        self.terminals.append(terminal)
        self.observations.append(flat(step.observation))

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays ``(steps, width)`` by field, as buffers take them."""
        seen = np.stack(self.observations)
        columns = (
            seen[:-1],
            np.stack(self.actions),
            np.array(self.rewards, np.float32)[:, None],
            np.array(self.terminals, np.float32)[:, None],
            seen[1:],
        )
        return dict(zip(FIELDS, columns, strict=True))


@dataclass(frozen=True)
class Draws:
    """The random draws of rollouts.

    Attributes:
        seed: Their seed, combined with the rollout's index.
        tasks: The tasks.
        among: Indices of the tasks to choose from.
        action_space: The action space.
        longest: Maximum number of steps of a rollout.
    """

    seed: int
    tasks: TaskSet
    among: range
    action_space: Any
    longest: int

    def rollout(self, index: int, random_actions: bool = False, task: Any = None) -> Rollout:
        """The rollout of an index, before it begins.

        Args:
            index: Its number.
            random_actions: Whether its actions are drawn uniformly.
            task: Its task; drawn by default.
        """
        rng = np.random.default_rng((self.seed, index))
        drawn = self.tasks.draw(rng, self.among) if task is None else self.tasks.parameters(task)
        env_seed = int(rng.integers(2**31))
        space = self.action_space
        noise: np.ndarray
        if isinstance(space, Discrete):
            shape = (self.longest, 1) if random_actions else (self.longest, int(space.n))
            noise = rng.integers(space.n, size=shape) if random_actions else rng.random(shape, np.float32)
        else:
            shape = (self.longest, *space.shape)
            noise = rng.uniform(space.low, space.high, shape) if random_actions else rng.standard_normal(shape)
        return Rollout(index, drawn, env_seed, noise.astype(np.float32))


def flat(observation: Any) -> np.ndarray:
    """An observation as a flat array."""
    return np.asarray(observation, np.float32).reshape(-1)
