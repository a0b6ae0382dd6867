"""Metrics of a batch from metrics of its trajectories."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from envlanes.ragen.metrics import total
from ragen.validity import failure_metrics, is_valid


def mean_metrics(rollouts: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean of every metric over the valid trajectories of its tag, and how many failed.

    Args:
        rollouts: Rollout caches with ``metrics`` named ``<tag>/<metric>``.

    Returns:
        ``<tag>/<metric>``: the sum over all valid trajectories of the tag divided by their number, including those
        without the metric; ``<tag>/non-zero/<metric>``: the mean of nonzero values, if there are any. ``pass@k`` is the
        mean over those that have it, which excludes groups with a failed member. If environments failed, also
        :func:`ragen.validity.failure_metrics`.
    """
    valid = [rollout for rollout in rollouts if is_valid(rollout)]
    values: dict[str, list[float]] = defaultdict(list)
    for rollout in valid:
        for name, value in rollout.get("metrics", {}).items():
            values[name].append(float(value))
    sizes = Counter(rollout.get("tag") for rollout in valid)
    means = {}
    for name, found in values.items():
        size = max(sizes[name.partition("/")[0]], len(found))
        means[name] = total(found) / (len(found) if "/pass@" in name else size)
    for name, found in values.items():
        tag, _, metric = name.partition("/")
        if non_zero := [value for value in found if value != 0]:
            means[f"{tag}/non-zero/{metric}"] = total(non_zero) / len(non_zero)
    return means | failure_metrics(rollouts)
