"""Rollouts, and buffers of rollouts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envlanes.gym import GymResult

FIELDS = ("observations", "actions", "rewards", "terminals", "next_observations")


Step = tuple[Any, Any, Any, Any, Any]
"""A step, in the order of :data:`FIELDS`."""


def arrays_of(steps: Iterable[Step]) -> dict[str, np.ndarray]:
    """Steps by field: ``(steps, width)``."""
    columns = zip(*steps, strict=True)
    return {name: np.array(column, np.float32) for name, column in zip(FIELDS, columns, strict=True)}


class StepBuffer:
    """A buffer of single steps, in order; the oldest are dropped.

    Attributes:
        steps: The steps.
    """

    def __init__(self, capacity: int) -> None:
        """Create a buffer for ``capacity`` steps."""
        self.steps: deque[Step] = deque(maxlen=capacity)

    @property
    def size(self) -> int:
        """Number of steps in it."""
        return len(self.steps)

    def add_sample(self, observation: Any, action: Any, reward: Any, terminal: Any, next_observation: Any) -> None:
        """Add a step."""
        self.steps.append((observation, action, reward, terminal, next_observation))

    def arrays(self) -> dict[str, np.ndarray]:
        """All steps, the oldest first, by field: ``(size, width)``."""
        return arrays_of(self.steps)

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
        steps: Its steps. An action is stored as an index ``(1,)``, or as numbers; a reward and a terminal as ``(1,)``.
        seen: The current observation, flat.
        successes: Number of steps in a goal state.
        error: The environment's failure; None if it has none.
    """

    index: int
    task: Any
    env_seed: int
    noise: np.ndarray
    steps: list[Step] = field(default_factory=list)
    seen: Any = None
    successes: int = 0
    error: str | None = None

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def rewards(self) -> list[float]:
        """The reward of each step."""
        return [reward for _, _, (reward,), _, _ in self.steps]

    def see(self, observation: Any) -> None:
        """Note an observation."""
        self.seen = np.asarray(observation, np.float32).reshape(-1)

    def add(self, action: np.ndarray, step: GymResult, terminal: bool) -> None:
        """Add a step; ``terminal`` is whether it was the last by the rules."""
        before = self.seen
        self.see(step.observation)
        self.steps.append((before, action, (step.reward,), (terminal,), self.seen))
