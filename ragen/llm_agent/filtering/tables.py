"""The tables that RAGEN of 2026 logs during training, for any :class:`~ragen.tracking.Logger`.

==========================  ========================================  ==========================================
table                       columns                                   key
==========================  ========================================  ==========================================
``val/generations``         ``input``, ``output``, ``score``          ``trainer.generations_to_log_to_wandb.val``
``rollout/reward_table``    ``group_<n>``; a row for each member      ``trainer.log_group_rv_table``
``rollout/group_rv_table``  ``group_id``, ``reward_std``,             ``trainer.log_group_rv_table``
                            ``selected``
==========================  ========================================  ==========================================

RAGEN writes the rewards at every step, and repeats the variances of all previous steps. Here one key enables both, and
each row is written once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from ragen.settings import key
from ragen.statistics import sample_std
from ragen.tracking import Logger

GENERATIONS = "trainer.generations_to_log_to_wandb"
GROUPS = "trainer.log_group_rv_table"


@dataclass(frozen=True)
class TableSettings:
    """Which tables are written; see the table above.

    Attributes:
        generations: Number of rows of ``val/generations``; 0 for none.
        groups: Whether the two tables of groups are written.
    """

    generations: int = key(0, f"{GENERATIONS}.val", low=0)
    groups: bool = key(False, GROUPS)


def log_generations(
    logger: Logger, played: Sequence[tuple[str, str, float]], settings: TableSettings, step: int
) -> None:
    """Log some trajectories of a validation, with the same indices each time.

    Args:
        logger: The logger.
        played: The first prompt, the rest, and the score of each trajectory.
        settings: How many to log.
        step: The training step.
    """
    if settings.generations and played:
        chosen = Random(42).sample(sorted(played), min(settings.generations, len(played)))
        logger.log_table("val/generations", ["input", "output", "score"], chosen, step)


def log_groups(
    logger: Logger, scores: Sequence[Sequence[float]], chosen: Collection[int], settings: TableSettings, step: int
) -> None:
    """Log the scores of each group's members, and their standard deviation.

    Args:
        logger: The logger.
        scores: The scores of each group's members.
        chosen: Indices of the groups that are trained on.
        settings: Whether to log them.
        step: The training step.
    """
    if not settings.groups or not scores:
        return
    width = max(map(len, scores))
    members = [[group[place] if place < len(group) else None for group in scores] for place in range(width)]
    logger.log_table("rollout/reward_table", [f"group_{number}" for number in range(len(scores))], members, step)
    rows = [[number, sample_std(group), number in chosen] for number, group in enumerate(scores)]
    logger.log_table("rollout/group_rv_table", ["group_id", "reward_std", "selected"], rows, step)
