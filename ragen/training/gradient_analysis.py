"""RAGEN-2's gradient analysis: gradients of groups by the variance of their scores.

A step's groups are sorted by the standard deviation of their scores and divided into buckets. For each bucket, and for
all groups together, the gradient of each term of the loss is computed without an optimizer step, so the training is
unaffected.

==========================================  ============================================================================
``grad_norm/<bucket>/..``                   of the bucket (``all``, ``bucket_1``, ..: the least variance first)
==========================================  ============================================================================
``task``, ``entropy``, ``kl``               the norm of the gradient of each term, as it stands in the loss
``per_sample/..``, ``per_token/..``         that over the number of rows, and of tokens that are learned
``loss/policy``, ``entropy``, ``kl``        each term, and ``loss/total``
``sample_count``, ``sample_pct``            rows, and their share
``reward_std_{mean,min,max}``               of the groups' standard deviations; ``group_rv_count`` groups
==========================================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from ragen.statistics import sample_std
from ragen.training.settings import FIXED, AnalysisSettings

if TYPE_CHECKING:
    from ragen.training.training_batch import TrainingBatch
    from ragen.training.trajectories import Group
    from ragen.training.updates import Learner

_EDGES = (0, 1, 2, 3, 4, 5)  # lower limits of the fixed buckets; the last one has no upper limit


def buckets_of(spreads: Sequence[float], settings: AnalysisSettings) -> dict[str, list[int]]:
    """The indices of the groups in each nonempty bucket.

    Args:
        spreads: The standard deviation of each group's scores.
        settings: The kind of buckets. The remainder of equal buckets is in the last one.
    """
    places = list(range(len(spreads)))
    if settings.mode == FIXED:
        ends = [*_EDGES[1:], float("inf")]
        cut = [[at for at in places if low <= spreads[at] < end] for low, end in zip(_EDGES, ends, strict=True)]
    else:
        ranked, count = sorted(places, key=spreads.__getitem__), max(1, min(settings.buckets, len(places)))
        size = len(places) // count
        cut = [ranked[at * size : (at + 1) * size if at < count - 1 else None] for at in range(count)]
    named = {"all": places} | {f"bucket_{number}": each for number, each in enumerate(cut, 1)}
    return {name: each for name, each in named.items() if each}


def analyse(
    learner: Learner, batch: TrainingBatch, groups: Sequence[Group], settings: AnalysisSettings
) -> dict[str, float]:
    """The metrics of a step's buckets, ``grad_norm/..``.

    Args:
        learner: Computes gradients, and discards them.
        batch: The step's rows with advantages.
        groups: Their groups.
        settings: The buckets.
    """
    spreads = [sample_std(group.scores) for group in groups]
    found: dict[str, float] = {}
    for name, places in buckets_of(spreads, settings).items():
        uids = {groups[place].uid for place in places}
        rows = [row for row, uid in enumerate(batch.uids) if uid in uids]
        if not rows:
            continue
        values = [spreads[place] for place in places]
        part = batch.select(rows)
        logged = {
            "sample_count": float(len(rows)),
            "sample_pct": len(rows) / len(batch),
            "reward_std_mean": fmean(values),
            "reward_std_min": min(values),
            "reward_std_max": max(values),
            "group_rv_count": float(len(values)),
        }
        losses, norms = learner.gradients(part)
        tokens = float(part.response_mask.sum())
        for term, norm in norms.items():
            logged |= {term: norm, f"per_sample/{term}": norm / len(rows), f"per_token/{term}": norm / max(1.0, tokens)}
        logged |= {f"loss/{term}": value for term, value in {**losses, "total": sum(losses.values())}.items()}
        found |= {f"grad_norm/{name}/{what}": value for what, value in logged.items()}
    return found
