"""Which groups are worth training on, and how long to go on sampling until there are enough of them.

A group whose members all scored the same says nothing about which reply is better: its advantages are 0. DAPO
(arXiv:2503.14476) leaves such groups out and samples on until the batch is full again; verl calls this
``algorithm.filter_groups``. RAGEN (arXiv:2504.20073) keeps the share of groups whose rewards differ most.

RAGEN has its two keys under ``actor_rollout_ref.rollout``, which verl's own trainer refuses, so they may also stand
under ``agent_proxy``, and are looked for there first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.loading import setting
from ragen.llm_agent.config.reading import choice, count, number
from ragen.training.group_filter import GroupFilter, filter_key
from ragen.training.trajectories import Group

EPSILON = 1e-6  # scores that differ by less are the same

Measure = Callable[[Group], float]


def reward_std(group: Group) -> float:
    """The standard deviation (n - 1) of a group's rewards; 0 for a group of one."""
    return stdev(group.rewards) if len(group.members) > 1 else 0.0


def reward_mean(group: Group) -> float:
    """The mean of a group's rewards."""
    return fmean(group.rewards)


FILTER_TYPES: dict[str, tuple[Measure, int]] = {
    "std": (reward_std, 1),
    "std_rev": (reward_std, -1),
    "mean": (reward_mean, 1),
    "mean_rev": (reward_mean, -1),
}
"""Names of ``rollout_filter_type``: what is measured, and whether the largest (1) or the smallest (-1) are kept."""


@dataclass(frozen=True)
class FilterSettings:
    """What to do about groups that teach little.

    Attributes:
        enable: Whether groups without variance are left out, and sampling goes on in their place.
        max_batches: Sampling stops after this many batches; 0 or less: not before there are enough groups.
        ratio: The share of groups to keep, above 0 and up to 1, after that.
        kind: Which to keep, a name of ``FILTER_TYPES``.
        groups: RAGEN-2's choice of groups, which takes the place of the two above; None where it is not set.
    """

    enable: bool = False
    max_batches: int = 0
    ratio: float = 1.0
    kind: str = "std"
    groups: GroupFilter | None = None

    @classmethod
    def read(cls, config: Any) -> FilterSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has a value that cannot work.
        """
        choice(config, "algorithm.filter_groups.metric", "reward", ("reward",))
        newer = GroupFilter.read(config)
        ratio_key, type_key = (filter_key(config, name) for name in ("ratio", "type"))
        ratio = number(config, ratio_key, 1.0, 0.0, 1.0)
        if ratio == 0:
            raise ConfigError(f"configuration key {ratio_key!r} is 0; expected a share above 0, 1 keeps all groups.")
        if newer is not None and ratio != 1:
            raise ConfigError(
                f"configuration key {ratio_key!r} is {ratio:g} beside rollout_filter_strategy or rollout_filter_value; "
                "expected one of the two ways to choose groups, that of 2025 or that of 2026."
            )
        return cls(
            groups=newer,
            enable=setting(config, "algorithm.filter_groups.enable", bool, False),
            max_batches=count(config, "algorithm.filter_groups.max_num_gen_batches", 0, low=-1),
            ratio=ratio,
            kind=choice(config, type_key, "std", FILTER_TYPES) if newer is None else "std",
        )


def has_variance(group: Group) -> bool:
    """Whether a group's scores differ; a group of one is compared with nothing and counts as if they did (DAPO)."""
    return len(group.members) == 1 or max(group.scores) - min(group.scores) > EPSILON


def keep_best(groups: Sequence[Group], ratio: float, kind: str) -> list[Group]:
    """The share of groups that ranks first, in the order given; at least one, and of equals the earlier.

    Args:
        groups: The groups.
        ratio: Which share, 0 to 1; what comes out is rounded down (RAGEN).
        kind: By what they are ranked, a name of ``FILTER_TYPES``.
    """
    measure, sign = FILTER_TYPES[kind]
    wanted = max(1, int(ratio * len(groups) + EPSILON))
    ranked = sorted(range(len(groups)), key=lambda place: -sign * measure(groups[place]))
    return [groups[place] for place in sorted(ranked[:wanted])]


@dataclass(frozen=True)
class Sample:
    """The groups of one training step.

    Attributes:
        groups: Those to train on; none where no group had variance.
        played: All that were played for it.
        batches: In how many batches.
        chosen: What RAGEN-2's choice measured, if it was made.
    """

    groups: list[Group]
    played: list[Group]
    batches: int
    chosen: Mapping[str, float] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """How much was played and kept."""
        return {
            "filter/batches": self.batches,
            "filter/groups_played": len(self.played),
            "filter/groups_with_variance": sum(map(has_variance, self.played)),
            "filter/groups_kept": len(self.groups),
            "filter/in_group_std": fmean(map(reward_std, self.played)),
            "filter/kept_in_group_std": fmean(map(reward_std, self.groups)) if self.groups else 0.0,
            **self.chosen,
        }


def sample_groups(play: Callable[[], Sequence[Group]], settings: FilterSettings) -> Sample:
    """Play batches of groups until enough are worth training on, or as many batches as allowed.

    Enough is as many as one batch has; what is left over is not kept for the next step, whose policy is another.

    Args:
        play: Plays one batch.
        settings: What to leave out.
    """
    played: list[Group] = []
    useful: list[Group] = []
    batches = 0
    while True:
        batch = list(play())
        batches += 1
        played += batch
        useful += [group for group in batch if has_variance(group)] if settings.enable else batch
        if len(useful) >= len(batch) or batches == settings.max_batches:
            break
    useful = useful[: len(batch)]
    if settings.groups is not None:
        chosen = settings.groups.chosen(settings.groups.measures(useful))
        return Sample([useful[i] for i in chosen], played, batches, settings.groups.metrics(useful, chosen))
    return Sample(keep_best(useful, settings.ratio, settings.kind) if useful else [], played, batches)
