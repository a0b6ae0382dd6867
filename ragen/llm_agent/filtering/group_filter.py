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

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ragen.config.loading import as_config, refused
from ragen.config.schema import Filters
from ragen.statistics import mean, sample_std

PREFIX = "rollout_filter_"
SECTIONS = ("actor_rollout_ref.rollout", "agent_proxy")  # the latter takes precedence
ZERO = 1e-10  # measures up to this count as 0
EPSILON = 1e-6  # of a group: tolerance for fractions that floats cannot represent
SELECTION_EPS = 0.01  # tolerance of top_p's share, RAGEN's default

TOP_P, TOP_K, TOP_K_ABS = "top_p", "top_k", "top_k_abs"
LARGEST, SMALLEST = "largest", "smallest"
MEASURES = {
    "reward_variance": (sample_std, "scores"),
    "reward": (mean, "scores"),
    "length": (mean, "lengths"),
    "entropy": (mean, "entropies"),
    "entropy_variance": (sample_std, "entropies"),
    "std": (sample_std, "rewards"),
    "mean": (mean, "rewards"),
}
"""The figures of a group that a measure summarizes, and the function; the last two are those of 2025."""
OLD_TYPES = ("std", "mean", "std_rev", "mean_rev")
REVERSED = "_rev"


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
        """Read the keys: RAGEN-2's filter if its strategy or value is set, else that of 2025.

        Raises:
            ConfigError: A key has an invalid value, or both filters are configured.
        """
        select = as_config(config).select
        given = {
            name.removeprefix(PREFIX): (key, value)
            for section in SECTIONS
            for name in Filters.model_fields
            if (value := select(key := f"{section}.{name}")) is not None
        }
        values = {name: value for name, (_, value) in given.items()}
        is_new, ratio = "strategy" in values or "value" in values, values.get("ratio", 1.0)
        types = (LARGEST, SMALLEST) if is_new else OLD_TYPES
        kind = values.get("type", types[0])
        if kind not in types:
            raise refused(*given["type"], f"one of {', '.join(types)}")
        if not is_new:
            return cls(ratio, TOP_K, SMALLEST if kind.endswith(REVERSED) else LARGEST, kind.removesuffix(REVERSED))
        if ratio != 1:
            raise refused(*given["ratio"], f"1 beside {PREFIX}strategy or {PREFIX}value")
        value, strategy = values.get("value", 1.0), values.get("strategy", TOP_P)
        if strategy != TOP_K_ABS and value > 1:
            raise refused(*given["value"], f"a share from 0 to 1 with {strategy!r}")
        return cls(value, strategy, kind, values.get("metric", "reward_variance"), values.get("include_zero", True))

    def keeps_all(self) -> bool:
        """Whether all groups are always kept."""
        return self.include_zero and self.value >= 1 and self.strategy != TOP_K_ABS

    def measures(self, groups: Sequence[Any]) -> list[float]:
        """The measure of each group: an object with ``scores``, ``rewards``, ``lengths`` and ``entropies``."""
        measure, figures = MEASURES[self.metric]
        return [measure(getattr(group, figures)) for group in groups]

    def chosen(self, measures: Sequence[float]) -> list[int]:
        """Indices of the groups to keep, ascending, possibly none; ties go to the earlier group.

        Args:
            measures: The measure of each group.
        """
        places = [place for place, measure in enumerate(measures) if self.include_zero or abs(measure) > ZERO]
        if self.strategy == TOP_P and self.value >= 1:
            return places
        places.sort(key=measures.__getitem__, reverse=self.kind == LARGEST)
        ranked = [measures[place] for place in places]
        if self.strategy == TOP_P:
            wanted, sums = self.value * sum(ranked) - SELECTION_EPS, accumulate(ranked, initial=0.0)
            count = next((taken for taken, total in enumerate(sums) if total >= wanted), 0)
            if min(ranked[:count], default=1.0) <= 0:  # the share is not reached before what adds nothing
                return []
        else:
            count = max(1, int(self.value * len(measures) + EPSILON if self.strategy == TOP_K else self.value))
        return sorted(places[:count])

    def metrics(self, groups: Sequence[Any], chosen: Sequence[int]) -> dict[str, float]:
        """Metrics of all and of the chosen groups, under RAGEN's names; empty if all are always kept."""
        if self.keeps_all():
            return {}
        found = {
            "rollout/filter_kept_count": float(len(chosen)),
            "rollout/filter_kept_ratio": len(chosen) / max(1, len(groups)),
            "rollout/filter_zero_count": float(sum(abs(each) <= ZERO for each in self.measures(groups))),
        }
        for name, kept in (("in", groups), ("chosen_in", [groups[place] for place in chosen])):
            found[f"rollout/{name}_group_reward_std"] = mean([sample_std(group.scores) for group in kept])
            found[f"rollout/{name}_group_reward_mean"] = mean([mean(group.scores) for group in kept])
        return found
