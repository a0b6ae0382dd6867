"""The trees of a rollout, read from ``parent`` and ``turn`` of rollout caches.

A trajectory is a *leaf*. A *point* is a place where several leaves branch from the same turns, identified by the
environment that played the previous turn (at the reset: the tree's root) and the number of turns played. A *segment* is
a run of an environment's own turns between two points, with one value and one advantage.

The value of a segment is the score of its leaf, or the mean value of the segments that branch from its end. Its
advantage is relative to its siblings, the segments that begin at the same point; at the reset, these are the members of
a group, which begin alike. Without branches, this is GRPO.
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
    """A trajectory, and the place where it branched from another one.

    Attributes:
        env_id: Its environment.
        parent: The environment that it branched from; None for a root.
        turn: Number of turns that it shares with its parent.
        played: Number of its turns, including those.
        group: Its group, whose members begin alike.
    """

    env_id: int
    parent: int | None
    turn: int
    played: int
    group: Hashable


class Point(NamedTuple):
    """A place where trajectories branch.

    Attributes:
        env_id: The environment that played the previous turn; at the reset, the root.
        turn: Number of turns played.
    """

    env_id: int
    turn: int


class Segment(NamedTuple):
    """An environment's own turns from one point to the next or to its end; empty without a reply.

    Attributes:
        env_id: The environment.
        start: Its first turn, from 0.
        stop: The turn after its last one.
    """

    env_id: int
    start: int
    stop: int


@dataclass(frozen=True)
class Forest:
    """The trees of a rollout; a chain is a tree with one leaf.

    Attributes:
        nodes: The trajectories by environment id, parents before their branches.
    """

    nodes: Mapping[int, Node]

    @classmethod
    def of(cls, caches: Sequence[Mapping[str, Any]]) -> Forest:
        """Read rollout caches, or records of ``rollouts.jsonl``.

        A branch whose parent is missing, comes later or has too few turns is treated as a root.

        Args:
            caches: With ``env_id``, ``history`` (in records: ``actions``), and for branches ``parent`` and ``turn``.
        """
        given = {cache["env_id"]: cache for cache in caches}
        played = {env_id: _turns_played(cache) for env_id, cache in given.items()}
        return cls({env_id: _node(given[env_id], played) for env_id in sorted(given)})

    @property
    def has_branches(self) -> bool:
        """Whether any trajectory is a branch."""
        return any(node.parent is not None for node in self.nodes.values())

    def root(self, env_id: int) -> int:
        """The root of a trajectory's tree."""
        node = self.nodes[env_id]
        while node.parent is not None:
            node = self.nodes[node.parent]
        return node.env_id

    def owner(self, env_id: int, turn: int) -> int:
        """The environment that played a turn (from 0) of a trajectory."""
        node = self.nodes[env_id]
        while node.parent is not None and turn < node.turn:
            node = self.nodes[node.parent]
        return node.env_id

    def point(self, env_id: int, turn: int) -> Point:
        """The point of a trajectory after a number of turns."""
        return Point(self.root(env_id) if turn == 0 else self.owner(env_id, turn - 1), turn)

    @cached_property
    def points(self) -> dict[Point, list[int]]:
        """Every branching point with its trajectories, the one that was branched first."""
        found: dict[Point, list[int]] = {}
        for node in self.nodes.values():
            if node.parent is not None:
                point = self.point(node.env_id, node.turn)
                found.setdefault(point, [point.env_id]).append(node.env_id)
        return found

    @cached_property
    def segments(self) -> list[Segment]:
        """All segments, tree by tree, from the root."""
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
        """The segment of a turn (from 0) of a trajectory."""
        return self._segment_at[self.owner(env_id, turn), turn]

    @cached_property
    def _segment_at(self) -> dict[tuple[int, int], Segment]:
        return {(each.env_id, turn): each for each in self.segments for turn in range(each.start, each.stop)}

    @cached_property
    def weights(self) -> dict[int, float]:
        """The weight of each leaf within its tree, by environment; the weights of a tree sum to 1.

        It is the probability of reaching the leaf from the root by uniform choices at each point. A mean over leaves
        with these weights estimates the mean over chains, while an unweighted one favors parts with many branches.
        """
        shares = dict.fromkeys(self.nodes, 1.0)
        for node in self.nodes.values():
            for turn in range(node.played + 1):
                shares[node.env_id] /= len(self.points.get(self.point(node.env_id, turn), [node.env_id]))
        return shares


def is_branch(cache: Mapping[str, Any]) -> bool:
    """Whether a trajectory was branched from another one, with which it shares turns.

    Args:
        cache: Its rollout cache, or its record in ``rollouts.jsonl``.
    """
    return cache.get("parent") is not None


def forest_of(caches: Sequence[Mapping[str, Any]]) -> Forest:
    """:meth:`Forest.of`; empty if no cache is a branch, in which case ids are not needed."""
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
        scores: The score of every valid leaf, by env_id. A segment that leads to no valid leaf has no value.
    """
    starting = {(each.env_id, each.start): each for each in forest.segments}
    values: dict[Segment, float] = {}
    for each in sorted(forest.segments, key=lambda segment: -segment.start):  # children begin later
        going_on = forest.points.get(Point(each.env_id, each.stop), ()) if each.stop > each.start else ()
        parts = [starting[env_id, each.stop] for env_id in going_on]
        # others have no reply, or were abandoned, or failed
        answered = [values[part] for part in parts if part.stop > part.start and part in values]
        if answered or each.env_id in scores:
            values[each] = fmean(answered) if answered else scores[each.env_id]
    return values


def segment_advantages(forest: Forest, scores: Mapping[int, float], by_std: bool = True) -> dict[Segment, float]:
    """The advantage of every nonempty segment that has a value; 0 without siblings.

    Args:
        forest: The trees.
        scores: The score of every valid leaf, by env_id: rewards and penalty.
        by_std: Whether to divide by the siblings' sample standard deviation.
    """
    values = segment_values(forest, scores)
    siblings: dict[Hashable, list[Segment]] = {}
    for each in forest.segments:
        if each.stop > each.start and each in values:
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
    """The key that siblings share."""
    if segment.start == 0:
        return "reset", forest.nodes[segment.env_id].group
    return forest.point(segment.env_id, segment.start)


def tree_metrics(forest: Forest, caches: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Counts over a whole rollout.

    Args:
        forest: The trees of the caches.
        caches: Rollout caches.

    Returns:
        ``tree/trees``, ``tree/leaves``, ``tree/points`` (branching points), ``tree/turns`` (distinct turns),
        ``tree/chain_turns`` (turns of all leaves from the reset), and :func:`token_counts` under ``tree/``.
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
    """Numbers of prompt and reply tokens; a prompt with several replies counts once.

    Args:
        forest: The trees of the caches.
        caches: Rollout caches.

    Returns:
        ``prompt_tokens`` and ``response_tokens``, and ``chain_prompt_tokens`` and ``chain_response_tokens``, which as
        many chains of the same turns would need. Empty if a reply's tokens are unknown.
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
    """Numbers of tokens of a prompt and its reply."""
    return len(exchange.prompt_ids or ()), len(exchange.reply_ids or ())
