"""Selecting the groups to train on, and sampling until there are enough of them.

A group whose members all have the same score gives no learning signal: its advantages are 0. DAPO (arXiv:2503.14476)
drops such groups and samples until the batch is full again; verl calls this ``algorithm.filter_groups``. RAGEN
(arXiv:2504.20073) keeps the fraction of groups whose rewards differ most. RAGEN's two methods are in
:mod:`ragen.llm_agent.filtering`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragen.llm_agent.filtering import BestShare, GroupFilter, LossScaling, read_filter
from ragen.settings import choice, key, read
from ragen.statistics import mean, sample_std
from ragen.training.trajectories import Group

EPSILON = 1e-6  # scores that differ by less count as equal


@dataclass(frozen=True)
class FilterSettings:
    """The settings of group filters.

    Attributes:
        enable: Whether groups without variance are dropped and replaced by further sampling.
        max_batches: Maximum number of batches to sample; 0 or less for no limit.
        groups: RAGEN's choice of groups, applied after that.
        scaling: The scaling of advantages if that choice drops groups.
    """

    enable: bool = key(False, "algorithm.filter_groups.enable")
    max_batches: int = key(0, "algorithm.filter_groups.max_num_gen_batches", low=-1)
    groups: BestShare | GroupFilter = field(default_factory=BestShare)
    scaling: LossScaling = field(default_factory=LossScaling)

    @classmethod
    def read(cls, config: Any) -> FilterSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has an invalid value.
        """
        choice(config, "algorithm.filter_groups.metric", "reward", ("reward",))
        return read(cls, config, groups=read_filter(config), scaling=LossScaling.read(config))


def has_variance(group: Group) -> bool:
    """Whether the scores of a group's learned members differ; true for a group of one (as in DAPO)."""
    scores = group.scores
    return bool(scores) and (len(group.members) == 1 or max(scores) - min(scores) > EPSILON)


@dataclass(frozen=True)
class Sample:
    """The groups of one training step.

    Attributes:
        groups: The groups to train on; empty if no group had variance.
        played: All groups played for it.
        batches: Number of batches played.
        chosen: The measurements of RAGEN's choice, and the factor for advantages if configured.
    """

    groups: list[Group]
    played: list[Group]
    batches: int
    chosen: Mapping[str, float] = field(default_factory=dict)

    @property
    def loss_scale(self) -> float:
        """The factor of the groups' advantages."""
        return LossScaling.factor(self.chosen)

    def metrics(self) -> dict[str, float]:
        """Metrics about the groups played and kept."""
        return {
            "filter/batches": self.batches,
            "filter/groups_played": len(self.played),
            "filter/groups_with_variance": sum(map(has_variance, self.played)),
            "filter/groups_kept": len(self.groups),
            "filter/in_group_std": mean([sample_std(group.rewards) for group in self.played if group.learned]),
            "filter/kept_in_group_std": mean([sample_std(group.rewards) for group in self.groups]),
            **self.chosen,
        }


def sample_groups(
    play: Callable[[], Sequence[Group]],
    settings: FilterSettings,
    with_entropies: Callable[[Sequence[Group]], Sequence[Group]] = lambda groups: groups,
) -> Sample:
    """Play batches until there are enough groups with variance, or up to the maximum number of batches.

    As many groups as in one batch are enough; surplus groups are not kept for the next step, whose policy differs.
    Groups in which too few environments worked give no signal, and no filter sees them.

    Args:
        play: Plays one batch.
        settings: The settings of the filters.
        with_entropies: Adds the model's entropies; called only if groups are chosen by them.
    """
    played: list[Group] = []
    useful: list[Group] = []
    batches = 0
    while True:
        batch = list(play())
        batches += 1
        played += batch
        taught = [group for group in batch if group.learned]
        useful += [group for group in taught if has_variance(group)] if settings.enable else taught
        # without any signal the environments' service is down, and further batches would fail as well
        if not settings.enable or not taught or len(useful) >= len(batch) or batches == settings.max_batches:
            break
    useful = useful[: len(batch)]
    if settings.groups.needs_entropies:
        useful = list(with_entropies(useful))
    chosen = settings.groups.chosen(settings.groups.measures(useful)) if useful else []
    measured = settings.groups.metrics(useful, chosen)
    measured |= settings.scaling.metrics(measured)
    return Sample([useful[place] for place in chosen], played, batches, measured)
