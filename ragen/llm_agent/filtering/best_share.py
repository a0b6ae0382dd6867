"""RAGEN's choice of groups of 2025 (arXiv:2504.20073): the share whose rewards differ most, or rank first otherwise.

``actor_rollout_ref.rollout.rollout_filter_ratio`` and ``rollout_filter_type`` (or the same names under ``agent_proxy``,
looked for there first).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragen.llm_agent.filtering.measured import Measured, kept_metrics, reward_mean, reward_std, spread_metrics

EPSILON = 1e-6  # of a group, by which a share may miss it in binary fractions

FILTER_TYPES: dict[str, tuple[Callable[[Measured], float], int]] = {
    "std": (reward_std, 1),
    "std_rev": (reward_std, -1),
    "mean": (reward_mean, 1),
    "mean_rev": (reward_mean, -1),
}
"""Names of ``rollout_filter_type``: what is measured, and whether the largest (1) or the smallest (-1) are kept."""


@dataclass(frozen=True)
class BestShare:
    """Which groups to train on.

    Attributes:
        ratio: The share of groups to keep, above 0 and up to 1.
        kind: Which to keep, a name of ``FILTER_TYPES``.
    """

    ratio: float = 1.0
    kind: str = "std"

    def keeps_all(self) -> bool:
        """Whether no group can be left out."""
        return self.ratio >= 1

    @property
    def needs_entropies(self) -> bool:
        """False: it looks at rewards."""
        return False

    def measures(self, groups: Sequence[Measured]) -> list[float]:
        """What is measured of each group."""
        measure, _ = FILTER_TYPES[self.kind]
        return [measure(group) for group in groups]

    def chosen(self, measures: Sequence[float]) -> list[int]:
        """The places of the groups to train on, in their order: at least one, if there is one; of equals the earlier.

        Args:
            measures: What was measured of each group. The share of them is rounded down (RAGEN).
        """
        _, sign = FILTER_TYPES[self.kind]
        wanted = max(1, int(self.ratio * len(measures) + EPSILON))
        return sorted(sorted(range(len(measures)), key=lambda place: -sign * measures[place])[:wanted])

    def metrics(self, groups: Sequence[Measured], chosen: Sequence[int]) -> dict[str, float]:
        """What was measured of all groups and of those chosen, under RAGEN's names; nothing where all are kept."""
        if self.keeps_all():
            return {}
        rewards = [group.rewards for group in groups]
        return spread_metrics("reward", rewards, chosen) | kept_metrics(len(chosen), self.measures(groups))
