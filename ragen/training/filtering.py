"""Sampling until there are enough groups that teach something.

A group whose members all have the same score gives no learning signal: its advantages are 0. DAPO (arXiv:2503.14476)
drops such groups and samples until the batch is full again; verl calls this ``algorithm.filter_groups``. RAGEN's choice
of groups (:mod:`ragen.llm_agent.filtering`) comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ragen.statistics import differ
from ragen.training.trajectories import Group


def has_variance(group: Group) -> bool:
    """Whether the scores of a group's learned members differ; true for a group of one (as in DAPO)."""
    scores = group.scores
    return bool(scores) and (len(group.members) == 1 or differ(scores))


def sample_groups(play: Callable[[], Sequence[Group]], is_dynamic: bool = False, max_batches: int = 0) -> list[Group]:
    """Play one batch, or until as many groups as it has have variance; surplus groups are dropped.

    Groups in which too few environments worked give no signal, and are left out.

    Args:
        play: Plays one batch.
        is_dynamic: Whether groups without variance are dropped and replaced by further sampling.
        max_batches: Maximum number of batches; 0 or less for no limit.
    """
    useful: list[Group] = []
    batches = 0
    while True:
        batch = play()
        batches += 1
        learned = [group for group in batch if group.learned]
        useful += [group for group in learned if has_variance(group) or not is_dynamic]
        # without any signal the environments' service is down, and further batches would fail as well
        if not is_dynamic or not learned or len(useful) >= len(batch) or batches == max_batches:
            return useful[: len(batch)]
