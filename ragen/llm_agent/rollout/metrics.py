"""Metrics of a batch from metrics of its trajectories."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ragen.llm_agent.trees.lineage import Forest


def mean_metrics(rollouts: Sequence[dict[str, Any]], env_nums: Mapping[str, int] | None = None) -> dict[str, float]:
    """The mean of every metric over the environments of its tag.

    Args:
        rollouts: Rollout caches with ``metrics`` named ``<tag>/<metric>``.
        env_nums: Number of environments per tag; None counts them.

    Returns:
        ``<tag>/<metric>``: the sum over all environments of the tag divided by their number, including those without
        the metric; ``<tag>/non-zero/<metric>``: the mean of nonzero values, if there are any. With branches, leaves are
        weighted by :attr:`~ragen.llm_agent.trees.lineage.Forest.weights`, so that means are comparable to those without
        branches; ``pass@k`` excludes branches.
    """
    if any("parent" in rollout for rollout in rollouts):
        return _tree_means(rollouts, Forest.of(rollouts).weights)
    values = _values(rollouts)
    sizes = Counter(rollout.get("tag") for rollout in rollouts)
    means = {}
    for name, found in values.items():
        tag = name.partition("/")[0]
        size = max(sizes[tag], len(found)) if env_nums is None else env_nums.get(tag, 1)
        means[name] = sum(found) / size
    for name, found in values.items():
        tag, _, metric = name.partition("/")
        if non_zero := [value for value in found if value != 0]:
            means[f"{tag}/non-zero/{metric}"] = sum(non_zero) / len(non_zero)
    return means


def _tree_means(rollouts: Sequence[dict[str, Any]], weights: Mapping[int, float]) -> dict[str, float]:
    """The means of :func:`mean_metrics` over weighted leaves."""
    sums: dict[str, float] = defaultdict(float)
    not_zero: dict[str, list[tuple[float, float]]] = defaultdict(list)
    sizes: dict[str, float] = defaultdict(float)
    for rollout in rollouts:
        weight = weights[rollout["env_id"]]
        sizes[rollout["tag"]] += weight
        for name, value in rollout.get("metrics", {}).items():
            share = 1.0 if "/pass@" in name else weight
            sums[name] += share * float(value)
            not_zero[name] += [(share, float(value))] if value else []
    means = {name: total / sizes[name.partition("/")[0]] for name, total in sums.items()}
    for name, found in not_zero.items():
        tag, _, metric = name.partition("/")
        if found:
            means[f"{tag}/non-zero/{metric}"] = sum(w * v for w, v in found) / sum(w for w, _ in found)
    return means


def overall_metrics(rollouts: Sequence[dict[str, Any]], means: Mapping[str, float]) -> dict[str, float]:
    """The metrics of RAGEN's 2026 version over all tags.

    Args:
        rollouts: Rollout caches with ``metrics``.
        means: The result of :func:`mean_metrics`.

    Returns:
        ``charts/avg_episode_return``, the mean of the tags' ``episodic_return``, and ``rollout/max_tile``, the largest
        ``max_tile``; each only if available.
    """
    returns = [mean for name, mean in means.items() if name.endswith("/episodic_return") and "/non-zero/" not in name]
    tiles = [value for name, found in _values(rollouts).items() if name.endswith("/max_tile") for value in found]
    overall: dict[str, float] = {"charts/avg_episode_return": sum(returns) / len(returns)} if returns else {}
    return overall | ({"rollout/max_tile": int(max(tiles))} if tiles else {})


def _values(rollouts: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        for name, value in rollout.get("metrics", {}).items():
            values[name].append(float(value))
    return values
