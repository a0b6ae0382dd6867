"""The buffer of steps since the last update, of all environments in parallel."""

from __future__ import annotations

from typing import Any

import numpy as np

from ragen.errors import InputError, StateError


class ChosenActions(np.ndarray):
    """Actions ``(n,)`` as an agent chose them, with all that it learns from; arrays derived from it are plain actions.

    Attributes:
        agent: The agent; None for a derived array, as for the other attributes.
        states: The states in which they were chosen: ``(n, d)``.
        log_probs: Their log-probabilities: ``(n,)``.
    """

    agent: Any = None
    states: Any = None
    log_probs: Any = None


class ParallelTrajectoryBuffer:
    """Steps of n environments. A row holds the state *in which* its action was chosen, not the next one.

    Attributes:
        n_envs: Number of environments.
    """

    def __init__(self, n_envs: int) -> None:
        """Create an empty buffer."""
        self.n_envs = n_envs
        self._steps: list[dict[str, np.ndarray]] = []

    def __len__(self) -> int:
        """The number of steps, each of all environments."""
        return len(self._steps)

    def add(
        self,
        states: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        dones: np.ndarray | None = None,
        log_probs: np.ndarray | None = None,
        values: np.ndarray | None = None,
        *,
        cut_values: np.ndarray | None = None,
    ) -> None:
        """Add a step of every environment; everything is copied.

        Actions that an agent chose bring their states and log-probabilities with them, whatever is given for these: in
        the usual loop, ``observations`` are already the next ones. The agent's update then takes this buffer.

        Args:
            states: The states in which the actions were chosen: ``(n, d)``.
            actions: ``(n,)``.
            rewards: ``(n,)``.
            dones: Whether an episode ended with the step: ``(n,)``; None if none did.
            log_probs: Log-probabilities of the actions when they were chosen: ``(n,)``.
            values: The critic's values of the states: ``(n,)``.
            cut_values: The estimated value of the rest of an episode that was truncated; 0 if it terminated, and
                ignored if it continues: ``(n,)``. None for zeros.

        Raises:
            InputError: A shape is wrong; nothing was added.
        """
        if agent := getattr(actions, "agent", None):
            chosen: Any = actions
            states, log_probs, agent.buffer = chosen.states, chosen.log_probs, self
        zeros = np.zeros(self.n_envs)
        given = {
            **{"states": states, "actions": np.asarray(actions), "rewards": rewards},
            **{"log_probs": log_probs, "values": values, "valid": zeros == 0},
            "dones": zeros > 0 if dones is None else np.asarray(dones, bool),
            "cut_values": zeros if cut_values is None else cut_values,
        }
        step = {name: np.array(array) for name, array in given.items() if array is not None}
        for name, array in step.items():
            if array.ndim != 1 + (name == "states") or len(array) != self.n_envs:
                raise InputError(f"{name} of shape {array.shape}: expected a row for each of {self.n_envs}.")
        self._steps.append(step)

    def forget_episode(self, env_id: int) -> None:
        """Mark the steps of an environment's last episode as not valid, since the environment failed in it.

        Args:
            env_id: The environment.
        """
        for number, step in enumerate(reversed(self._steps)):
            if number and step["dones"][env_id]:
                return
            step["valid"][env_id] = False

    def get_trajectories(self) -> dict[str, Any]:
        """All steps as flat arrays, time-major: row ``t * n_envs + i`` is step t of environment i.

        Returns:
            ``states (T * n, d)``, ``actions``, ``rewards``, ``dones``, ``log_probs`` and ``values`` ``(T * n,)``, the
            last two None if they were not given in every step, ``valid`` (False for steps that must not be learned
            from), and ``n_envs`` and ``n_steps``.

        Raises:
            StateError: The buffer is empty.
        """
        names = ("states", "actions", "rewards", "dones", "log_probs", "values", "valid")
        steps = self._filled()
        flat = {
            name: np.concatenate([step[name] for step in steps]) if all(name in step for step in steps) else None
            for name in names
        }
        return {**flat, "n_envs": self.n_envs, "n_steps": len(steps)}

    def compute_returns(self, gamma: float, last_values: np.ndarray | None = None) -> np.ndarray:
        """Discounted returns, environment by environment.

        Args:
            gamma: The discount of a step.
            last_values: The value of the rest of episodes that continue after the last step: ``(n,)``; None for 0.

        Returns:
            float64, ``(T * n,)``, time-major. A step with ``dones`` is followed by its ``cut_values``, and by nothing
            of the next episode.

        Raises:
            StateError: The buffer is empty.
        """
        returns = np.zeros((len(self._filled()), self.n_envs))
        carried = np.zeros(self.n_envs) if last_values is None else np.array(last_values, np.float64)
        for row, step in zip(returns[::-1], reversed(self._steps), strict=True):
            carried = step["rewards"] + gamma * np.where(step["dones"], step["cut_values"], carried)
            row[:] = carried
        return returns.reshape(-1)

    def reset(self) -> None:
        """Empty the buffer."""
        self._steps.clear()

    def _filled(self) -> list[dict[str, np.ndarray]]:
        if not self._steps:
            raise StateError("the buffer is empty: add a step first.")
        return self._steps
