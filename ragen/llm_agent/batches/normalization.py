"""Normalizes the scores of trajectories within groups.

RAGEN's rules: the standard deviation is the sample's (n - 1), and 1e-6 is added to it. Scores of a group that differ by
at most that much count as equal, and become exactly 0 with every method except ``identity``. If every group has a
single member, scores are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from ragen.statistics import EPSILON, differ

ASYMMETRIC_BOUNDS = (-1.0, 3.0)

Method = Callable[[np.ndarray], np.ndarray]


def _identity(scores: np.ndarray) -> np.ndarray:
    return scores


def _mean(scores: np.ndarray) -> np.ndarray:
    return scores - scores.mean() if differ(scores) else np.zeros_like(scores)


def _mean_std(scores: np.ndarray) -> np.ndarray:
    deviation = scores.std(ddof=1) if len(scores) > 1 else 0.0
    if deviation <= EPSILON:
        return np.zeros_like(scores)
    return (scores - scores.mean()) / (deviation + EPSILON)


def _asym_clip(scores: np.ndarray) -> np.ndarray:
    return _mean_std(scores).clip(*ASYMMETRIC_BOUNDS)


METHODS: dict[str, Method] = {
    "identity": _identity,
    "mean": _mean,
    "mean_std": _mean_std,
    "asym_clip": _asym_clip,
}

GROUPINGS: dict[str, Callable[[dict[str, Any]], Hashable]] = {
    "state": lambda rollout: rollout["group_id"],
    "inductive": lambda rollout: rollout["tag"],
    "batch": lambda rollout: None,
}


def group_of(rollouts: Sequence[dict[str, Any]], grouping: str) -> list[Hashable]:
    """The group of each rollout.

    Args:
        rollouts: Rollout caches with ``group_id`` and ``tag``.
        grouping: ``state`` (the same initial state), ``inductive`` (the same tag) or ``batch`` (all rollouts).
    """
    return [GROUPINGS[grouping](rollout) for rollout in rollouts]


def normalize(scores: Sequence[float], groups: Sequence[Hashable], method: str) -> np.ndarray:
    """Normalize scores group by group.

    Args:
        scores: The score of each trajectory, including its penalty.
        groups: The group of each trajectory.
        method: ``identity``, ``mean`` (subtract the group's mean), ``mean_std`` (then divide by its standard
            deviation) or ``asym_clip`` (then clip to -1 .. 3).

    Returns:
        The normalized scores in the order given, float64.
    """
    values = np.asarray(scores, dtype=np.float64)
    if len(set(groups)) == len(values):
        return values
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    normalized = values.copy()
    for indices in members.values():
        normalized[indices] = METHODS[method](values[indices])
    return normalized
