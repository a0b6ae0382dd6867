"""What each segment of a tree is learnt with: how much better it went than the others that began where it began.

The value of a segment is what came of it in the end: the score of its leaf, or, where it was branched, the mean of the
values of those that went on. It is compared with the values of its siblings, the segments that begin at the same point;
at the reset these are all of a group, since its members begin alike. Without branches that is GRPO.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from statistics import fmean, stdev

from ragen.llm_agent.trees.lineage import Forest, Point, Segment

EPSILON = 1e-6  # added to deviations, as GRPO does


def segment_values(forest: Forest, scores: Mapping[int, float]) -> dict[Segment, float]:
    """The value of every segment.

    Args:
        forest: The trees.
        scores: Of every leaf, by env_id.
    """
    starting = {(each.env_id, each.start): each for each in forest.segments}
    values: dict[Segment, float] = {}
    for each in sorted(forest.segments, key=lambda segment: -segment.start):  # what goes on begins later
        going_on = forest.points.get(Point(each.env_id, each.stop), ()) if each.stop > each.start else ()
        parts = [starting[env_id, each.stop] for env_id in going_on]
        answered = [values[part] for part in parts if part.stop > part.start]  # others got no reply, or were left
        values[each] = fmean(answered) if answered else scores[each.env_id]
    return values


def segment_advantages(forest: Forest, scores: Mapping[int, float], by_std: bool = True) -> dict[Segment, float]:
    """The advantage of every segment that has turns; 0 where there is no sibling to compare it with.

    Args:
        forest: The trees.
        scores: Of every leaf, by env_id: rewards and penalty.
        by_std: Whether to divide by the siblings' standard deviation (n - 1).
    """
    values = segment_values(forest, scores)
    siblings: dict[Hashable, list[Segment]] = {}
    for each in forest.segments:
        if each.stop > each.start:
            siblings.setdefault(_beginning(forest, each), []).append(each)
    found: dict[Segment, float] = {}
    for members in siblings.values():
        of_members = [values[each] for each in members]
        mean, scale = fmean(of_members), 1.0
        if by_std and len(members) > 1:
            scale = stdev(of_members) + EPSILON
        found |= {each: (values[each] - mean) / scale for each in members}
    return found


def _beginning(forest: Forest, segment: Segment) -> Hashable:
    """What the segments that are compared with each other have in common."""
    if segment.start == 0:
        return "reset", forest.nodes[segment.env_id].group
    return forest.point(segment.env_id, segment.start)
