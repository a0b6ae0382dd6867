"""Rollouts, and what each of them is made of, before it begins and as it goes on."""

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
    """Steps one by one, in order; the oldest make room for new ones.

    Attributes:
        size: How many steps there are.
        capacity: How many there is room for.
    """

    def __init__(self, capacity: int, observation_dim: int, action_dim: int) -> None:
        """Make room.

        Args:
            capacity: Steps.
            observation_dim: Numbers of an observation.
            action_dim: Numbers of an action; 1 for a discrete one.
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
    """Whole episodes, in order; the oldest make room for new ones.

    Attributes:
        episodes: Each with arrays ``(steps, width)`` by field.
        capacity: Steps that there is room for.
    """

    def __init__(self, capacity: int) -> None:
        """Make room for so many steps."""
        self.capacity = capacity
        self.episodes: list[dict[str, np.ndarray]] = []
        self.size = 0

    def add_episode(
        self, observations: Any, actions: Any, rewards: Any, terminals: Any, next_observations: Any
    ) -> None:
        """Add an episode: arrays ``(L, d)``, ``(L, a)``, ``(L, 1)``, ``(L, 1)``, ``(L, d)``.

        Raises:
            InputError: It has fewer than two steps, more than there is room for, or arrays of different lengths.
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
    """One rollout: everything that is random in it follows from the learner's seed and its index.

    Attributes:
        index: Its number, over all that the learner has ever collected.
        task: The task's parameters.
        env_seed: Seed of the environment's reset.
        noise: ``(steps, action)`` for the agent to draw with, or the actions themselves where they are random.
        observations: One more than there are steps, once it has begun.
        actions: As they are stored: an index ``(1,)``, or numbers.
        rewards: One each step.
        terminals: Whether the step was the last by the rules.
        successes: How many steps were in a goal state.
        error: Why the environment failed, if it did.
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
    error: str = ""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def is_full(self) -> bool:
        """Whether it has as many steps as it may have."""
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
    """What rollouts are made of.

    Attributes:
        seed: What they follow from, with their index.
        tasks: The tasks.
        among: Indices of the tasks to choose from.
        action_space: Where actions lie.
        longest: Most steps of a rollout.
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
    """An observation as numbers in a row."""
    return np.asarray(observation, np.float32).reshape(-1)
