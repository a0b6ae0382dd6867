"""The tables that RAGEN of 2026 logs of a training: its names and columns, for any :class:`~ragen.tracking.Logger`.

==========================  ========================================  ==========================================
table                       columns                                   key
==========================  ========================================  ==========================================
``val/generations``         ``input``, ``output``, ``score``          ``trainer.generations_to_log_to_wandb.val``
``rollout/reward_table``    ``group_<n>``; a row for each member      ``trainer.log_group_rv_table``
``rollout/group_rv_table``  ``group_id``, ``reward_std``,             ``trainer.log_group_rv_table``
                            ``selected``
==========================  ========================================  ==========================================

RAGEN writes the matrix of rewards at every step, and the table of variances anew with those of all steps before; here
one key asks for both, and a step's rows are written once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from ragen.llm_agent.filtering.group_filter import spread
from ragen.settings import key
from ragen.tracking import Logger

GENERATIONS = "trainer.generations_to_log_to_wandb"
GROUPS = "trainer.log_group_rv_table"


@dataclass(frozen=True)
class TableSettings:
    """Which tables are written; the table above says what each is.

    Attributes:
        generations: Rows of the table of a validation's trajectories; 0 for none.
        groups: Whether groups are written.
    """

    generations: int = key(0, f"{GENERATIONS}.val", low=0)
    groups: bool = key(False, GROUPS)


def log_generations(
    logger: Logger, played: Sequence[tuple[str, str, float]], settings: TableSettings, step: int
) -> None:
    """Write some trajectories of a validation, the same places at every one.

    Args:
        logger: Where to.
        played: Of each trajectory its first prompt, what followed, and its score.
        settings: How many.
        step: Of training.
    """
    if settings.generations and played:
        chosen = Random(42).sample(sorted(played), min(settings.generations, len(played)))
        logger.log_table("val/generations", ["input", "output", "score"], chosen, step)


def log_groups(
    logger: Logger, scores: Sequence[Sequence[float]], chosen: Collection[int], settings: TableSettings, step: int
) -> None:
    """Write the matrix of scores, and how much they differ within each group.

    Args:
        logger: Where to.
        scores: Of each group's members.
        chosen: Places of the groups that are trained on.
        settings: Whether to.
        step: Of training.
    """
    if not settings.groups or not scores:
        return
    width = max(map(len, scores))
    members = [[group[place] if place < len(group) else None for group in scores] for place in range(width)]
    logger.log_table("rollout/reward_table", [f"group_{number}" for number in range(len(scores))], members, step)
    rows = [[number, spread(group), number in chosen] for number, group in enumerate(scores)]
    logger.log_table("rollout/group_rv_table", ["group_id", "reward_std", "selected"], rows, step)
