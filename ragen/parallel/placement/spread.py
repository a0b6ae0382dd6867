"""Which environments main keeps, and how lanes share the others."""

from __future__ import annotations

from collections.abc import Sequence

from ragen.parallel.episode.spec import EnvSpec, by_tag


def spread(specs: Sequence[EnvSpec], lanes: int) -> dict[int, int]:
    """Give each environment one of so many lanes, every tag evenly over all, groups whole where that stays even.

    Returns:
        Lane index by env_id.
    """
    homes: dict[int, int] = {}
    first = 0
    for members in by_tag(specs).values():
        for spec, part in zip(members, _parts(members, lanes), strict=True):
            homes[spec.env_id] = (first + part) % lanes
        first += len(members) % lanes  # tags with a remainder do not all burden the same lane
    return homes


def local_share(specs: Sequence[EnvSpec], share: float) -> set[int]:
    """Ids of the environments of each tag that main plays itself: the last ones, so that lanes keep whole groups."""
    kept: set[int] = set()
    for members in by_tag(specs).values():
        kept.update(spec.env_id for spec in members[len(members) - round(share * len(members)) :])
    return kept


def _parts(members: Sequence[EnvSpec], parts: int) -> list[int]:
    """Which of the tag's even parts each member belongs to."""
    groups = {group_id: place for place, group_id in enumerate(dict.fromkeys(spec.group_id for spec in members))}
    largest = -(-len(groups) // parts) * len(members) / len(groups)
    if largest <= 1.1 * len(members) / parts:
        return [groups[spec.group_id] * parts // len(groups) for spec in members]
    return [position * parts // len(members) for position in range(len(members))]
