"""Rollouts, and buffers of rollouts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envlanes.gym import GymResult

FIELDS = ("observations", "actions", "rewards", "terminals", "next_observations")


class StepBuffer:
    """A buffer of single steps, in order; the oldest are dropped.

    Attributes:
        steps: Each a tuple, in the order of :data:`FIELDS`.
    """

    def __init__(self, capacity: int) -> None:
        """Create a buffer for ``capacity`` steps."""
        self.steps: deque[tuple[Any, ...]] = deque(maxlen=capacity)

    @property
    def size(self) -> int:
        """Number of steps in it."""
        return len(self.steps)

    def add_sample(self, observation: Any, action: Any, reward: Any, terminal: Any, next_observation: Any) -> None:
        """Add a step."""
        self.steps.append((observation, action, reward, terminal, next_observation))

    def arrays(self) -> dict[str, np.ndarray]:
        """All steps, the oldest first, by field: ``(size, width)``."""
        columns = (np.array(column, np.float32) for column in zip(*self.steps, strict=True))
        return dict(zip(FIELDS, columns, strict=True))

    def clear(self) -> None:
        """Forget all."""
        self.steps.clear()


class EpisodeBuffer:
    """A buffer of whole episodes, in order; the oldest are dropped.

    Attributes:
        episodes: Each with arrays ``(steps, width)`` by field.
        size: Number of steps in it.
    """

    def __init__(self, capacity: int) -> None:
        """Create a buffer for ``capacity`` steps."""
        self._capacity = capacity
        self.clear()

    def add_episode(self, **arrays: Any) -> None:
        """Add an episode.

        Args:
            arrays: By :data:`FIELDS`, ``(L, d)``, ``(L, a)``, ``(L, 1)``, ``(L, 1)``, ``(L, d)``.
        """
        self.episodes.append({name: np.array(arrays[name], np.float32) for name in FIELDS})
        self.size += len(arrays["rewards"])
        while self.size > self._capacity:
            self.size -= len(self.episodes.pop(0)["rewards"])

    def clear(self) -> None:
        """Forget all."""
        self.episodes: list[dict[str, np.ndarray]] = []
        self.size = 0


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

    def see(self, observation: Any) -> None:
        """Add an observation, as a flat array."""
        self.observations.append(np.asarray(observation, np.float32).reshape(-1))

    def add(self, action: np.ndarray, step: GymResult, terminal: bool) -> None:
        """Add a step."""
        self.actions.append(action)
        self.rewards.append(step.reward)
        self.terminals.append(terminal)
        self.see(step.observation)

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays ``(steps, width)`` by field, as buffers take them."""
        seen = np.stack(self.observations)
        rewards, terminals = (np.array(each, np.float32)[:, None] for each in (self.rewards, self.terminals))
        return dict(zip(FIELDS, (seen[:-1], np.stack(self.actions), rewards, terminals, seen[1:]), strict=True))
