"""Reference scores for an agent: those of baselines that know the kind of game, and of oracles that know the task.

A baseline is an :class:`~ragen.meta.acting.Actor`: it plays the same environments, with the same seeds, as the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ragen.meta.acting import Actor
from ragen.meta.rollouts import Rollout


class Thompson:
    """Thompson sampling (Thompson 1933): pulls the best arm of a posterior sample, from a uniform prior."""

    def __init__(self, arms: int, seed: int) -> None:
        """Begin with the prior."""
        self._arms, self._seed = arms, seed
        self._rngs: dict[int, np.random.Generator] = {}

    def act(self, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """The arm to pull in each."""
        return [np.array([self._arm(rollout)], np.float32) for rollout in rollouts]

    def end(self, rollout: Rollout) -> None:
        """Forget a bandit."""
        self._rngs.pop(rollout.index, None)

    def _arm(self, rollout: Rollout) -> int:
        rng = self._rngs.setdefault(rollout.index, np.random.default_rng((self._seed, rollout.index)))
        wins, pulls = tallies(rollout, self._arms)
        return int(rng.beta(1 + wins, 1 + pulls - wins).argmax())


class UCB:
    """UCB1 (Auer et al. 2002): pulls the arm with the highest upper confidence bound, after each arm once."""

    def __init__(self, arms: int) -> None:
        """Set the number of arms."""
        self._arms = arms

    def act(self, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """The arm to pull in each."""
        return [np.array([self._arm(rollout)], np.float32) for rollout in rollouts]

    def end(self, rollout: Rollout) -> None:
        """Nothing is remembered."""

    def _arm(self, rollout: Rollout) -> int:
        wins, pulls = tallies(rollout, self._arms)
        if not pulls.all():
            return int(pulls.argmin())
        return int((wins / pulls + np.sqrt(2 * np.log(pulls.sum()) / pulls)).argmax())


class Straight:
    """The oracle of point robots: knows the goal, and walks straight there."""

    def __init__(self, stride: float) -> None:
        """Set the length of a step along an axis."""
        self._stride = stride

    def act(self, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """The step to take in each."""
        return [
            np.clip((np.asarray(each.task) - each.observations[-1][:2]) / self._stride, -1, 1).astype(np.float32)
            for each in rollouts
        ]

    def end(self, rollout: Rollout) -> None:
        """Nothing is remembered."""


def tallies(rollout: Rollout, arms: int) -> tuple[np.ndarray, np.ndarray]:
    """The number of rewards and of pulls of each arm."""
    pulled = np.array(rollout.actions, np.int64).reshape(-1)
    wins = np.bincount(pulled, np.array(rollout.rewards), arms)
    return wins, np.bincount(pulled, minlength=arms)


def regret(rollouts: Sequence[Rollout]) -> float:
    """Mean regret over bandits: the expected loss from not pulling the best arm."""
    lost = [sum(max(each.task) - each.task[int(action[0])] for action in each.actions) for each in rollouts]
    return float(np.mean(lost))


def episode_returns(rollouts: Sequence[Rollout], episodes: int) -> list[float]:
    """Mean return of each inner episode, whose end is the last number of observations; 0 where it was not reached."""
    returns = np.zeros((len(rollouts), episodes))
    for row, each in zip(returns, rollouts, strict=True):
        ends = np.array([seen[-1] for seen in each.observations[:-1]]) if episodes > 1 else np.zeros(len(each))
        np.add.at(row, np.cumsum(ends).astype(int), each.rewards)  # the flag of a step belongs to what follows it
    return [float(mean) for mean in returns.mean(0)]


Measure = Callable[[Sequence[Rollout]], float]


def bars_of(env_id: str, env: Any, seed: int) -> dict[str, Actor]:
    """The baselines of a kind of environment, by name."""
    inner = env.unwrapped
    if "Bandit" in env_id:
        return {"thompson": Thompson(inner.arms, seed), "ucb": UCB(inner.arms)}
    if "PointRobot" in env_id:
        return {"oracle": Straight(inner.stride)}
    return {}


def measure_of(env_id: str, episodes: int) -> tuple[str, Measure]:
    """The measure of an agent and its name: regret for bandits, else the last inner episode's return."""
    if "Bandit" in env_id:
        return "regret", regret
    return f"return of episode {episodes}", lambda rollouts: episode_returns(rollouts, episodes)[-1]
