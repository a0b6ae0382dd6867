"""RAGEN-2's choice of groups: by how much is to be had from each, and where to draw the line.

``actor_rollout_ref.rollout.rollout_filter_*`` (or the same names under ``agent_proxy``, looked for there first):

===========================  ====================  =================================================================
key                          default               meaning
===========================  ====================  =================================================================
``rollout_filter_strategy``  ``top_p``             ``top_p``, ``top_k`` (a share of all groups), ``top_k_abs`` (a
                                                   number of groups) or ``min_p`` (not below this share of the best)
``rollout_filter_value``     1.0                   the strategy's number
``rollout_filter_type``      ``largest``           whether the ``largest`` or the ``smallest`` come first
``rollout_filter_metric``    ``reward_variance``   ``reward_variance`` (the standard deviation), ``reward`` (the
                                                   mean), ``reward_sum``, ``length`` (the mean number of tokens),
                                                   ``entropy`` (the mean over trajectories of a token's mean entropy,
                                                   in nats) or ``entropy_variance`` (their standard deviation)
``..include_zero``           true                  whether groups that measure 0 can be chosen at all
``..top_p_prob_mode``        ``linear``            ``linear``: as many as add up to the share of all there is;
                                                   ``softmax``: likewise of the softmax of the measures
``..selection_eps``          0.01                  how much may be missing to that share (``linear``)
===========================  ====================  =================================================================

Rewards are what is trained on, penalties included. Nothing may be left; the tiny trainer then leaves the step out, and
verl's samples on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.loading import setting
from ragen.llm_agent.filtering.keys import filter_key
from ragen.llm_agent.filtering.measured import ZERO, Measured, kept_metrics, spread, spread_metrics
from ragen.settings import choice, number

TOP_P, TOP_K, TOP_K_ABS, MIN_P = STRATEGIES = ("top_p", "top_k", "top_k_abs", "min_p")
LARGEST, SMALLEST = TYPES = ("largest", "smallest")
LINEAR, SOFTMAX = PROB_MODES = ("linear", "softmax")

METRICS: dict[str, Callable[[Measured], float]] = {
    "reward_variance": lambda group: spread(group.scores),
    "reward_std": lambda group: spread(group.scores),  # the same by its other name
    "reward": lambda group: fmean(group.scores),
    "reward_sum": lambda group: sum(group.scores),
    "length": lambda group: fmean(group.lengths),
    "entropy": lambda group: fmean(group.entropies),
    "entropy_variance": lambda group: spread(group.entropies),
    "entropy_std": lambda group: spread(group.entropies),  # the same by its other name
}
"""What is measured of a group."""


@dataclass(frozen=True)
class GroupFilter:
    """Which groups to train on; the table above says what each attribute means."""

    value: float = 1.0
    strategy: str = TOP_P
    kind: str = LARGEST
    metric: str = "reward_variance"
    include_zero: bool = True
    prob_mode: str = LINEAR
    eps: float = 0.01

    @classmethod
    def read(cls, config: Any) -> GroupFilter | None:
        """Read and check the keys; None where neither a strategy nor a value is set.

        Raises:
            ConfigError: A key has a value that cannot work.
        """
        keys = {name: filter_key(config, name) for name in ("strategy", "value", "type", "metric", "include_zero")}
        keys |= {name: filter_key(config, name) for name in ("top_p_prob_mode", "selection_eps")}
        if all(setting(config, keys[name], object, None) is None for name in ("strategy", "value")):
            return None
        chosen = cls(
            value=number(config, keys["value"], 1.0, 0.0),
            strategy=choice(config, keys["strategy"], TOP_P, STRATEGIES),
            kind=choice(config, keys["type"], LARGEST, TYPES),
            metric=choice(config, keys["metric"], "reward_variance", METRICS),
            include_zero=setting(config, keys["include_zero"], bool, True),
            prob_mode=choice(config, keys["top_p_prob_mode"], LINEAR, PROB_MODES),
            eps=number(config, keys["selection_eps"], 0.01, 0.0),
        )
        if chosen.strategy != TOP_K_ABS and chosen.value > 1:
            raise ConfigError(
                f"configuration key {keys['value']!r} is {chosen.value:g} with {chosen.strategy!r}; expected a share "
                "from 0 to 1."
            )
        return chosen

    def keeps_all(self) -> bool:
        """Whether no group can be left out."""
        return self.include_zero and self.value >= 1 and self.strategy in (TOP_P, TOP_K)

    @property
    def needs_entropies(self) -> bool:
        """Whether the groups' entropies have to be known, which a model is asked for."""
        return self.metric.startswith("entropy") and not self.keeps_all()

    def measures(self, groups: Sequence[Measured]) -> list[float]:
        """What is measured of each group."""
        return [METRICS[self.metric](group) for group in groups]

    def chosen(self, measures: Sequence[float]) -> list[int]:
        """The places of the groups to train on, in their order; maybe none. Of equals the earlier is taken first.

        Args:
            measures: What was measured of each group.
        """
        places = [i for i, measure in enumerate(measures) if self.include_zero or abs(measure) > ZERO]
        if not places or (self.strategy == TOP_P and self.value >= 1):
            return places
        sign = 1 if self.kind == LARGEST else -1
        ranked = sorted(places, key=lambda place: -sign * measures[place])
        if self.strategy == MIN_P:
            return [place for place in places if self._is_near(measures[place], measures[ranked[0]])]
        if self.strategy == TOP_P:
            count = self._nucleus([measures[place] for place in ranked], sign)
        else:
            share = self.value * len(measures) if self.strategy == TOP_K else self.value
            count = max(1, int(share))
        return sorted(ranked[:count])

    def _is_near(self, measure: float, best: float) -> bool:
        if self.kind == LARGEST:
            return measure >= best * self.value - ZERO
        return measure <= best / (self.value + ZERO) + max(ZERO, abs(best) * 1e-7)  # RAGEN's has float32's rounding

    def _nucleus(self, ranked: Sequence[float], sign: int) -> int:
        """How many of the ranked measures make up the share."""
        if self.prob_mode == SOFTMAX:
            weights = [math.exp(sign * measure - sign * ranked[0]) for measure in ranked]
            wanted, shares = self.value, [weight / sum(weights) for weight in weights]
        else:
            wanted, shares = self.value * sum(ranked) - self.eps, list(ranked)
        total = 0.0
        for count, share in enumerate(shares):
            if total >= wanted:
                return count if self.prob_mode == LINEAR else max(1, count)
            if self.prob_mode == LINEAR and share <= 0:
                return 0  # what is left adds nothing, and it is not enough
            total += share
        return len(ranked) if total >= wanted or self.prob_mode == SOFTMAX else 0

    def metrics(self, groups: Sequence[Measured], chosen: Sequence[int]) -> dict[str, float]:
        """What was measured of all groups and of those chosen, under RAGEN's names."""
        found = spread_metrics("reward", [group.scores for group in groups], chosen)
        if self.metric == "length":
            found |= spread_metrics("length", [group.lengths for group in groups], chosen)
        if self.needs_entropies:
            found |= spread_metrics("entropy", [group.entropies for group in groups], chosen)
        return found | kept_metrics(len(chosen), self.measures(groups))
