"""Trees of trajectories that one can open: what was played once, where it parted, and how each way ended."""

from __future__ import annotations

from collections.abc import Sequence

from ragen.llm_agent.report.episode import Episode
from ragen.llm_agent.report.text import shown
from ragen.llm_agent.rollout.trajectories import played_turns
from ragen.llm_agent.trees.lineage import Forest, Point, Segment

MOST_SEGMENTS = 4000  # that are shown, to keep the page small
_MOST_DEPTH = 60  # of what is folded into each other
_MOST_TEXT = 300  # characters of a turn


def render_trees(episodes: Sequence[Episode]) -> str:
    """The trees, each folded; nothing where there are chains alone.

    Args:
        episodes: All trajectories of a page.
    """
    known = {each.state["env_id"]: each for each in episodes if isinstance(each.state["env_id"], int)}
    forest = Forest.of([episode.state for episode in known.values()])
    if not forest.has_branches:
        return ""
    writer = _Writer(forest, known)
    roots = [node.env_id for node in forest.nodes.values() if node.parent is None]
    trees = "".join(writer.tree(env_id) for env_id in roots)
    note = "What stands above a fork was played once, and is shared by all below it."
    return f'<h2>Trees</h2><p class="soft">{note}</p>{trees}'


class _Writer:
    """Writes trees, as long as there is room."""

    def __init__(self, forest: Forest, episodes: dict[int, Episode]) -> None:
        self._forest, self._episodes = forest, episodes
        self._starting = {(each.env_id, each.start): each for each in forest.segments}
        self._room = MOST_SEGMENTS

    def tree(self, root: int) -> str:
        """A tree: its root's summary, and its first segments."""
        leaves = [env_id for env_id in self._forest.nodes if self._forest.root(env_id) == root]
        won = sum(self._episodes[env_id].success for env_id in leaves)
        tag = shown(self._episodes[root].state["tag"])
        head = f"<b>{tag}</b> env {shown(root)}: {len(leaves)} leaves, {won} with success"
        first = self._going_on(Point(root, 0), 1)
        return f"<details><summary>{head}</summary>{first}</details>"

    def _going_on(self, point: Point, depth: int) -> str:
        """The segments that begin at a point."""
        members = self._forest.points.get(point, [point.env_id])
        items = "".join(f"<li>{self._segment(self._starting[each, point.turn], depth)}</li>" for each in members)
        return f"<ul>{items}</ul>"

    def _segment(self, segment: Segment, depth: int) -> str:
        self._room -= 1
        if self._room < 0 or depth > _MOST_DEPTH:
            return '<span class="soft">left out here, to keep the page small</span>'
        words = self._turns(segment)
        point = Point(segment.env_id, segment.stop)
        if segment.stop > segment.start and point in self._forest.points:
            count = len(self._forest.points[point])
            below = self._going_on(point, depth + 1)
            return f"<details open><summary>env {segment.env_id}, then {count} ways</summary>{words}{below}</details>"
        episode = self._episodes[segment.env_id]
        end = '<span class="yes">success</span>' if episode.success else '<span class="no">no success</span>'
        summary = f"<summary>env {segment.env_id}: {end}, reward {episode.reward:.4g}</summary>"
        return f"<details open>{summary}{words}</details>"

    def _turns(self, segment: Segment) -> str:
        """A line for each turn."""
        episode, lines = self._episodes[segment.env_id], []
        turns, names = played_turns(episode.state)[segment.start : segment.stop], episode.names or {}
        for number, turn in enumerate(turns, segment.start + 1):
            said = " | ".join(str(names.get(action, action)) for action in turn["actions"]) or "nothing executed"
            lines.append(f"<div>turn {number}: {shown(said, _MOST_TEXT)}, reward {float(turn['reward']):.4g}</div>")
        return "".join(lines)
