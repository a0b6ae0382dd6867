"""Metrics of single trajectories to metrics of a batch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any


def mean_metrics(rollouts: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean of every metric over the environments of its tag.

    Args:
        rollouts: Rollout caches with ``metrics`` named ``<tag>/<metric>``.

    Returns:
        ``<tag>/<metric>``: the sum over all environments of the tag divided by their number, those without the metric
        included; ``<tag>/non-zero/<metric>``: the mean of the values that are not 0, where there are any.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        for name, value in rollout.get("metrics", {}).items():
            values[name].append(float(value))
    sizes = Counter(rollout.get("tag") for rollout in rollouts)
    means = {name: sum(found) / _size(name, sizes, len(found)) for name, found in values.items()}
    for name, found in values.items():
        tag, _, metric = name.partition("/")
        if non_zero := [value for value in found if value != 0]:
            means[f"{tag}/non-zero/{metric}"] = sum(non_zero) / len(non_zero)
    return means


def _size(name: str, sizes: Counter[Any], found: int) -> int:
    """How many environments a metric's tag has; without one, how many have the metric."""
    return max(sizes[name.partition("/")[0]], found)
