"""Who shares which turns with whom, read from ``parent`` and ``turn`` of rollout caches.

A trajectory is a *leaf*. A *point* is a moment at which several leaves resumed from the same turns, named by the
environment that played the turn before (at the reset: by the tree's root) and by how many turns had been played. A
*segment* is a stretch of one environment's own turns between two points: it is sampled as one, and judged as one.

The value of a segment is the score of its leaf, or, where it was branched, the mean of the values of those that went
on. Its advantage is how much better it is than its siblings, the segments that begin at the same point; at the reset
these are all of a group, since its members begin alike. Without branches that is GRPO.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any, NamedTuple

from ragen.llm_agent.tokens.sampled_tokens import Exchange, raw_reply


class Node(NamedTuple):
    """A trajectory, and where it left another one.

    Attributes:
        env_id: Its environment.
        parent: The environment that it was branched from; None of a root.
        turn: How many turns it shares with its parent.
        played: How many turns it has, those included.
        group: Its group; the members of one have the same beginning.
    """

    env_id: int
    parent: int | None
    turn: int
    played: int
    group: Hashable


class Point(NamedTuple):
    """Where trajectories part.

    Attributes:
        env_id: Who played the turn before; at the reset the root.
        turn: How many turns were played.
    """

    env_id: int
    turn: int


class Segment(NamedTuple):
    """Own turns of an environment, from one point to the next or to its end; none where no reply came.

    Attributes:
        env_id: The environment.
        start: The first of them, from 0.
        stop: The turn after the last.
    """

    env_id: int
    start: int
    stop: int


@dataclass(frozen=True)
class Forest:
    """The trees of a rollout; chains are trees of one leaf.

    Attributes:
        nodes: By environment, in the order of ids, in which parents come before their branches.
    """

    nodes: Mapping[int, Node]

    @classmethod
    def of(cls, caches: Sequence[Mapping[str, Any]]) -> Forest:
        """Read rollout caches, or records of ``rollouts.jsonl``.

        A branch whose parent is not among them stands for itself: all its turns are its own. So does one whose parent
        cannot be its parent, since it came later or has not so many turns; the manager makes none of these.

        Args:
            caches: With ``env_id``, ``history`` (of records: ``actions``), and of branches ``parent`` and ``turn``.
        """
        given = {cache["env_id"]: cache for cache in caches}
        played = {env_id: _turns_played(cache) for env_id, cache in given.items()}
        return cls({env_id: _node(given[env_id], played) for env_id in sorted(given)})

    @property
    def has_branches(self) -> bool:
        """Whether any turns are shared, or were."""
        return any(node.parent is not None for node in self.nodes.values())

    def root(self, env_id: int) -> int:
        """The environment that a trajectory's tree began with."""
        node = self.nodes[env_id]
        while node.parent is not None:
            node = self.nodes[node.parent]
        return node.env_id

    def owner(self, env_id: int, turn: int) -> int:
        """Who played a turn (from 0) of a trajectory: itself, or whom it shares it with."""
        node = self.nodes[env_id]
        while node.parent is not None and turn < node.turn:
            node = self.nodes[node.parent]
        return node.env_id

    def point(self, env_id: int, turn: int) -> Point:
        """Where a trajectory stood after so many turns."""
        return Point(self.root(env_id) if turn == 0 else self.owner(env_id, turn - 1), turn)

    @cached_property
    def points(self) -> dict[Point, list[int]]:
        """Every point at which trajectories part, with those that resume from there; who played on comes first."""
        found: dict[Point, list[int]] = {}
        for node in self.nodes.values():
            if node.parent is not None:
                point = self.point(node.env_id, node.turn)
                found.setdefault(point, [point.env_id]).append(node.env_id)
        return found

    @cached_property
    def segments(self) -> list[Segment]:
        """All segments, tree by tree from the root on."""
        cuts: dict[int, list[int]] = {}
        for point in self.points:
            if point.turn > self.nodes[point.env_id].turn:
                cuts.setdefault(point.env_id, []).append(point.turn)
        found = []
        for node in self.nodes.values():
            edges = [node.turn, *sorted(cuts.get(node.env_id, ())), node.played]
            found += [Segment(node.env_id, start, stop) for start, stop in pairwise(edges)]
        return found

    def segment_of(self, env_id: int, turn: int) -> Segment:
        """The segment in which a turn (from 0) of a trajectory was played."""
        return self._segment_at[self.owner(env_id, turn), turn]

    @cached_property
    def _segment_at(self) -> dict[tuple[int, int], Segment]:
        return {(each.env_id, turn): each for each in self.segments for turn in range(each.start, each.stop)}

    @cached_property
    def weights(self) -> dict[int, float]:
        """By environment the fraction of its tree that a leaf stands for; the leaves of a tree make up 1.

        It is the chance to get there from the root by choosing at every point one of those that go on, all alike. A
        mean over leaves with these weights estimates what a mean over chains does; a plain one would count most what
        was branched most.
        """
        shares = dict.fromkeys(self.nodes, 1.0)
        for node in self.nodes.values():
            for turn in range(node.played + 1):
                shares[node.env_id] /= len(self.points.get(self.point(node.env_id, turn), [node.env_id]))
        return shares


def forest_of(caches: Sequence[Mapping[str, Any]]) -> Forest:
    """:meth:`Forest.of`; an empty one where there is no branch among the caches, which then need no ids."""
    return Forest.of(caches) if any("parent" in cache for cache in caches) else Forest({})


def _node(cache: Mapping[str, Any], played: Mapping[int, int]) -> Node:
    env_id, group = cache["env_id"], cache.get("group_id", cache["env_id"])
    parent, turn = cache.get("parent"), cache.get("turn")
    if not isinstance(parent, int) or not isinstance(turn, int) or parent >= env_id:
        return Node(env_id, None, 0, played[env_id], group)
    if not 0 <= turn <= min(played.get(parent, -1), played[env_id]):
        return Node(env_id, None, 0, played[env_id], group)
    return Node(env_id, parent, turn, played[env_id], group)


def _turns_played(cache: Mapping[str, Any]) -> int:
    if "history" in cache:
        return sum("actions" in turn for turn in cache["history"])
    return len(cache["actions"])


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


def tree_metrics(forest: Forest, caches: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Counts over a whole rollout.

    Args:
        forest: Of the caches.
        caches: Rollout caches.

    Returns:
        ``tree/trees``, ``tree/leaves``, ``tree/points`` (where trajectories part), ``tree/turns`` (played, each once),
        ``tree/chain_turns`` (of all leaves, each from the reset), and :func:`token_counts` under ``tree/``.
    """
    nodes = forest.nodes.values()
    counts = {
        "trees": sum(node.parent is None for node in nodes),
        "leaves": len(nodes),
        "points": len(forest.points),
        "turns": sum(node.played - node.turn for node in nodes),
        "chain_turns": sum(node.played for node in nodes),
    }
    return {f"tree/{name}": float(count) for name, count in (counts | token_counts(forest, caches)).items()}


def token_counts(forest: Forest, caches: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The tokens that the actor was asked with and answered; a prompt counts once, however many replies it got.

    Args:
        forest: Of the caches.
        caches: Rollout caches.

    Returns:
        ``prompt_tokens`` and ``response_tokens``, and ``chain_prompt_tokens`` and ``chain_response_tokens``, what as
        many chains of the same turns take. Nothing where tokens of some reply are unknown.
    """
    by_id = {cache["env_id"]: cache for cache in caches}
    asked: set[Any] = set()
    counts = dict.fromkeys(("prompt_tokens", "response_tokens", "chain_prompt_tokens", "chain_response_tokens"), 0)
    for node in forest.nodes.values():
        for turn in range(node.played):
            exchange = raw_reply(by_id[node.env_id]["history"][turn]).exchange
            if exchange is None or not exchange.has_tokens:
                return {}
            prompt, reply = sizes(exchange)
            counts["chain_prompt_tokens"] += prompt
            counts["chain_response_tokens"] += reply
            if turn < node.turn:
                continue
            counts["response_tokens"] += reply
            point = forest.point(node.env_id, turn)
            if point not in asked:
                asked.add(point)
                counts["prompt_tokens"] += prompt
    return counts


def sizes(exchange: Exchange) -> tuple[int, int]:
    """How many tokens a prompt and its reply have."""
    return len(exchange.prompt_ids or ()), len(exchange.reply_ids or ())
