"""RAGEN's group filters: which groups of trajectories to train on.

The keys are ``agent_proxy.rollout_filter_*``, or else ``actor_rollout_ref.rollout.rollout_filter_*``:

==========================  ===================  ======================================================================
key                         default              meaning
==========================  ===================  ======================================================================
``rollout_filter_ratio``    1                    the fraction of groups to keep; the filter of 2025 (arXiv:2504.20073)
``rollout_filter_type``     ``std``              of their rewards without penalties: the largest standard deviation
                                                 (``std``) or mean (``mean``), or the smallest (``std_rev``,
                                                 ``mean_rev``)
--------------------------  -------------------  ----------------------------------------------------------------------
``rollout_filter_strategy`` ``top_p``            RAGEN-2 (arXiv:2604.06268): ``top_p`` (those that add up to a share of
                                                 the sum), ``top_k`` (a fraction of all groups), ``top_k_abs`` (a
                                                 number of groups)
``rollout_filter_value``    1.0                  the strategy's number
``rollout_filter_type``     ``largest``          whether the ``largest`` or the ``smallest`` rank first
``rollout_filter_metric``   ``reward_variance``  ``reward_variance`` (the standard deviation of scores), ``reward`` (the
                                                 mean), ``length`` (the mean number of tokens), ``entropy`` (the mean
                                                 over trajectories of a token's mean entropy, in nats) or
                                                 ``entropy_variance`` (their standard deviation)
``..include_zero``          true                 whether groups with measure 0 may be chosen
==========================  ===================  ======================================================================

If no group is left, the tiny trainer skips the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ragen.config.loading import as_config, one_of, refused
from ragen.statistics import sample_std

PREFIX = "rollout_filter_"
NAMES = (
    "empty_stop_steps",
    "include_zero",
    "metric",
    "ratio",
    "selection_eps",
    "strategy",
    "top_p_prob_mode",
    "type",
    "value",
)
"""RAGEN's keys without the prefix."""
ZERO = 1e-10  # measures up to this count as 0
EPSILON = 1e-6  # of a group: tolerance for fractions that floats cannot represent
SELECTION_EPS = 0.01  # tolerance of top_p's share, RAGEN's default


def filter_keys(config: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """The key of each filter setting, and its value, by name: under ``agent_proxy`` if it is set there."""
    keys, values = dict[str, str](), dict[str, Any]()
    for name in NAMES:
        keys[name], ragens = f"agent_proxy.{PREFIX}{name}", f"actor_rollout_ref.rollout.{PREFIX}{name}"
        values[name] = as_config(config).select(keys[name])
        if values[name] is None:
            keys[name], values[name] = ragens, as_config(config).select(ragens)
    return keys, values


TOP_P, TOP_K, TOP_K_ABS = STRATEGIES = ("top_p", "top_k", "top_k_abs")
LARGEST, SMALLEST = TYPES = ("largest", "smallest")
METRICS: dict[str, Callable[[Any], float]] = {
    "reward_variance": lambda group: sample_std(group.scores),
    "reward": lambda group: fmean(group.scores),
    "length": lambda group: fmean(group.lengths),
    "entropy": lambda group: fmean(group.entropies),
    "entropy_variance": lambda group: sample_std(group.entropies),
}
"""RAGEN-2's measures, by name."""
OLD: dict[str, Callable[[Any], float]] = {
    "std": lambda group: sample_std(group.rewards),
    "mean": lambda group: fmean(group.rewards),
}
"""The measures of 2025."""
OLD_TYPES = {**{name: (name, LARGEST) for name in OLD}, **{f"{name}_rev": (name, SMALLEST) for name in OLD}}


@dataclass(frozen=True)
class GroupFilter:
    """A filter; the table above describes its settings."""

    value: float = 1.0
    strategy: str = TOP_P
    kind: str = LARGEST
    metric: str = "reward_variance"
    include_zero: bool = True

    @classmethod
    def read(cls, config: Any) -> GroupFilter:
        """Read and check the keys: RAGEN-2's filter if its strategy or value is set, else that of 2025.

        Raises:
            ConfigError: A key has an invalid value, or both filters are configured.
        """
        keys, values = filter_keys(config)
        kind, ratio = values["type"], 1.0 if values["ratio"] is None else values["ratio"]
        if ratio == 0:
            raise refused(keys["ratio"], ratio, "a share above 0; 1 keeps all groups")
        is_new = values["strategy"] is not None or values["value"] is not None
        allowed = TYPES if is_new else OLD_TYPES
        one_of(keys["type"], kind := kind or next(iter(allowed)), allowed)
        if not is_new:
            metric, kind = OLD_TYPES[kind]
            return cls(ratio, TOP_K, kind, metric)
        if ratio != 1:
            raise refused(keys["ratio"], ratio, "1 beside rollout_filter_strategy or rollout_filter_value")
        chosen = cls(
            value=1.0 if values["value"] is None else values["value"],
            strategy=values["strategy"] or TOP_P,
            kind=kind,
            metric=values["metric"] or "reward_variance",
            include_zero=values["include_zero"] is not False,
        )
        if chosen.strategy != TOP_K_ABS and chosen.value > 1:
            raise refused(keys["value"], chosen.value, f"a share from 0 to 1 with {chosen.strategy!r}")
        return chosen

    def keeps_all(self) -> bool:
        """Whether all groups are always kept."""
        return self.include_zero and self.value >= 1 and self.strategy != TOP_K_ABS

    @property
    def needs_entropies(self) -> bool:
        """Whether the filter needs entropies, which a model computes."""
        return self.metric.startswith("entropy") and not self.keeps_all()

    def measures(self, groups: Sequence[Any]) -> list[float]:
        """The measure of each group: an object with ``scores``, ``rewards``, ``lengths`` and ``entropies``."""
        return [(METRICS | OLD)[self.metric](group) for group in groups]

    def chosen(self, measures: Sequence[float]) -> list[int]:
        """Indices of the groups to keep, ascending, possibly none; ties go to the earlier group.

        Args:
            measures: The measure of each group.
        """
        places = [place for place, measure in enumerate(measures) if self.include_zero or abs(measure) > ZERO]
        if not places or (self.strategy == TOP_P and self.value >= 1):
            return places
        ranked = sorted(places, key=measures.__getitem__, reverse=self.kind == LARGEST)
        if self.strategy == TOP_P:
            return sorted(ranked[: self._nucleus([measures[place] for place in ranked])])
        share = self.value * len(measures) + EPSILON if self.strategy == TOP_K else self.value
        return sorted(ranked[: max(1, int(share))])

    def _nucleus(self, ranked: Sequence[float]) -> int:
        """Number of ranked measures that add up to the share; 0 if it is not reached before what adds nothing."""
        total, wanted = 0.0, self.value * sum(ranked) - SELECTION_EPS
        for taken, measure in enumerate([*ranked, 0.0]):
            if total >= wanted:
                return taken
            if measure <= 0:
                return 0
            total += measure
        return 0

    def metrics(self, groups: Sequence[Any], chosen: Sequence[int]) -> dict[str, float]:
        """Metrics of all and of the chosen groups, under RAGEN's names; empty if all are always kept."""
        if self.keeps_all():
            return {}
        measures = self.measures(groups)
        found = {
            "rollout/filter_kept_count": float(len(chosen)),
            "rollout/filter_kept_ratio": len(chosen) / len(measures) if measures else 0.0,
            "rollout/filter_zero_count": float(sum(abs(each) <= ZERO for each in measures)),
        }
        for what, of in (("std", sample_std), ("mean", fmean)):
            each = [float(of(group.scores)) for group in groups]
            for name, values in (("in", each), ("chosen_in", [each[place] for place in chosen])):
                found[f"rollout/{name}_group_reward_{what}"] = fmean(values) if values else 0.0
        return found
