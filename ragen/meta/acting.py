"""Actors: choose the next actions in many rollouts at once.

The rounding of matrix products depends on the batch size, and on a row's position in the batch. To make rollouts
independent of each other, batches have a fixed size here, and a rollout's position depends on its index: it is row
``index % size`` of the first batch in which that row is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ragen.extras import needs
from ragen.meta.agents import AGENT_ARCHS
from ragen.meta.rollouts import Rollout

with needs("meta", "an agent of meta-RL"):
    import torch


class Actor(Protocol):
    """Chooses the next actions of rollouts."""

    def act(self, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """An action for each rollout, in the form in which it is stored."""

    def end(self, rollout: Rollout) -> None:
        """Forget a finished rollout."""


class RandomActor:
    """Takes the random actions that were drawn with the rollout."""

    def act(self, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """The next random action of each rollout."""
        return [rollout.noise[len(rollout)] for rollout in rollouts]

    def end(self, rollout: Rollout) -> None:
        """Nothing is remembered."""


class AgentActor:
    """Runs an agent, batch by batch."""

    def __init__(self, agent: Any, size: int, deterministic: bool = False) -> None:
        """Wrap an agent.

        Args:
            agent: One of :mod:`ragen.meta.agents`, or an object with the same methods.
            size: Rows per batch.
            deterministic: Whether the agent takes the most likely actions.
        """
        self._agent, self._size, self._deterministic = agent, size, deterministic
        self._batches: list[_Batch] = []
        self._places: dict[int, tuple[_Batch, int]] = {}

    def act(self, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """The agent's action in each rollout; new rollouts begin with the initial state."""
        places = [self._place(rollout) for rollout in rollouts]
        for rollout, (batch, row) in zip(rollouts, places, strict=True):
            batch.see(row, rollout)
        given = {id(batch): batch.forward(self._agent, self._deterministic) for batch in self._batches if batch.rows}
        return [given[id(batch)][row] for batch, row in places]

    def end(self, rollout: Rollout) -> None:
        """Free the rollout's row."""
        batch, row = self._places.pop(rollout.index)
        batch.rows.discard(row)

    def _place(self, rollout: Rollout) -> tuple[_Batch, int]:
        if rollout.index not in self._places:
            row = rollout.index % self._size
            batch = next((each for each in self._batches if row not in each.rows), None)
            if batch is None:
                batch = _Batch(self._agent, self._size)
                self._batches.append(batch)
            batch.begin(row)
            self._places[rollout.index] = batch, row
        return self._places[rollout.index]


class _Batch:
    """Rows of one forward pass; unused rows keep their last content.

    Attributes:
        rows: The rows in use.
    """

    def __init__(self, agent: Any, size: int) -> None:
        self.rows: set[int] = set()
        self._obs, self._noise = torch.zeros(size, agent.observation_dim), torch.full((size, agent.action_dim), 0.5)
        self._obs_rows, self._noise_rows = self._obs.numpy(), self._noise.numpy()
        self._has_memory = agent.arch == AGENT_ARCHS.Memory
        if self._has_memory:
            self._action, self._reward, self._state = agent.get_initial_info(size)
            self._reward_rows = self._reward.numpy()

    def begin(self, row: int) -> None:
        self.rows.add(row)
        if self._has_memory:
            self._action[row] = 0.0
            self._reward[row] = 0.0
            for part in self._state if isinstance(self._state, tuple) else (self._state,):
                part[:, row] = 0.0

    def see(self, row: int, rollout: Rollout) -> None:
        self._obs_rows[row] = rollout.observations[-1]
        self._noise_rows[row] = rollout.noise[len(rollout.rewards)]
        if self._has_memory and rollout.rewards:
            self._reward_rows[row, 0] = rollout.rewards[-1]

    @torch.no_grad()
    def forward(self, agent: Any, deterministic: bool) -> np.ndarray:
        if self._has_memory:
            (actions, *_), self._state = agent.act(
                self._state, self._action, self._reward, self._obs, deterministic, self._noise
            )
            self._action = actions.clone()
        else:
            actions, *_ = agent.act(self._obs, deterministic, self._noise)
        taken: np.ndarray = actions.numpy().copy()
        return taken.argmax(-1)[:, None].astype(np.float32) if agent.is_discrete else taken
