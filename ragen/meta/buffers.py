"""Where rollouts go: single steps for agents without memory, whole episodes for those with one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ragen.errors import InputError

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

    def random_batch(self, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Steps drawn with replacement, by field."""
        chosen = rng.integers(self.size, size=count)
        return {name: column[chosen] for name, column in self._columns.items()}

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
