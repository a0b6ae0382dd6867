"""RAGEN-2's weights of advantages, as tensors.

==================================================  ==================================================================
key                                                 weight of a row's advantages
==================================================  ==================================================================
``algorithm.soft_advantage_reweight``               its group's standard deviation / the step's largest one
``actor_rollout_ref.actor``                         the mean length of the step's rows over its own (GRPO; also said at
``.grpo_advantage_length_weight``                   the top of a configuration, where RAGEN has it)
``algorithm.zero_task_advantage``                   0: only the entropy and divergence terms of the loss remain
==================================================  ==================================================================

The first two apply to GRPO only. They are applied in this order, as in RAGEN.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import TYPE_CHECKING, Any

from ragen.config.loading import as_config
from ragen.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


SOFT = "algorithm.soft_advantage_reweight"
LENGTH = "actor_rollout_ref.actor.grpo_advantage_length_weight"
LENGTH_AT_TOP = "grpo_advantage_length_weight"
GRPO = "grpo"
_EPS = 1e-6


@dataclass(frozen=True)
class AdvantageWeights:
    """The configured weights; see the table above.

    Attributes:
        soft: Weigh by the spread of the group's scores.
        by_length: Weigh by the row's length.
        zero_task: Set all weights to 0.
    """

    soft: bool = False
    by_length: bool = False
    zero_task: bool = False

    @classmethod
    def read(cls, config: Any) -> AdvantageWeights:
        """Read and check the keys.

        Raises:
            ConfigError: A value is invalid, or the estimator does not support it.
        """
        whole = as_config(config)
        asked = [LENGTH] if whole.actor_rollout_ref.actor.grpo_advantage_length_weight else []
        asked = asked or ([LENGTH_AT_TOP] if whole.grpo_advantage_length_weight else [])
        keys, estimator = whole.algorithm, whole.algorithm.adv_estimator
        found = cls(keys.soft_advantage_reweight, bool(asked), keys.zero_task_advantage)
        named = [*([SOFT] if found.soft else []), *asked]
        if named and estimator != GRPO:
            raise ConfigError(
                f"configuration key {named[0]!r} is True with algorithm.adv_estimator={estimator}; expected {GRPO!r}: "
                "it weighs trajectories that are compared within a group."
            )
        return found

    def __bool__(self) -> bool:
        return self.soft or self.by_length or self.zero_task

    def of_rows(
        self,
        lengths: Sequence[float],
        episodes: Sequence[Hashable],
        groups: Sequence[Hashable],
        scores: Sequence[float],
    ) -> tuple[list[float], dict[str, float]]:
        """The weight of each row, and metrics of the weights.

        Args:
            lengths: Number of tokens that the model sampled in each row.
            episodes: The trajectory of each row; one with several rows counts once.
            groups: The group of each row.
            scores: The score of each row's trajectory.

        Returns:
            The weights, and ``train/soft_reweight_{min,max,mean}``.
        """
        weights, logged = [1.0] * len(lengths), dict[str, float]()
        if self.soft:
            spreads = _spreads(episodes, groups, scores)
            largest = max(spreads.values(), default=0.0)
            softened = {group: spread / (largest + _EPS) for group, spread in spreads.items()}
            weights = [softened[group] for group in groups]
            values = list(softened.values())
            means = {"min": min(values), "max": max(values), "mean": sum(values) / len(values)}
            logged = {f"train/soft_reweight_{name}": value for name, value in means.items()}
        if self.by_length:
            mean = sum(lengths) / len(lengths)
            weights = [weight * mean / (length + _EPS) for weight, length in zip(weights, lengths, strict=True)]
        return [0.0] * len(weights) if self.zero_task else weights, logged

    def multiplied(self, advantages: Tensor, weights: Sequence[float]) -> Tensor:
        """Advantages ``(rows, ..)`` times their rows' weights; 0 if all weights are, also where they are infinite."""
        if self.zero_task:
            return advantages.new_zeros(advantages.shape)
        return advantages * advantages.new_tensor(list(weights)).unsqueeze(-1)


def _spreads(
    episodes: Sequence[Hashable], groups: Sequence[Hashable], scores: Sequence[float]
) -> dict[Hashable, float]:
    """The standard deviation (n - 1) of each group's scores; 1 for a group of one, as in RAGEN."""
    members: dict[Hashable, dict[Hashable, float]] = defaultdict(dict)
    for episode, group, score in zip(episodes, groups, scores, strict=True):
        members[group].setdefault(episode, score)
    return {group: stdev(each.values()) if len(each) > 1 else 1.0 for group, each in members.items()}
