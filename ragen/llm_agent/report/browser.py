"""The browser of trajectories: a list to filter and to search, whose rows open."""

from __future__ import annotations

from collections.abc import Sequence

from ragen.llm_agent.evaluation.replies import ENV_ERROR, JUDGED
from ragen.llm_agent.report.episode import Episode
from ragen.llm_agent.report.packs import Part, Row, list_of
from ragen.llm_agent.report.trajectory import TrajectoryWriter

FILTERS: dict[str, tuple[str, dict[str, str]]] = {
    "tag": ("Tag", {}),
    "outcome": ("Outcome", {}),
    "invalid": ("Replies", {"yes": "with invalid", "no": "all valid"}),
    "kinds": ("Some reply", {}),
    "lane": ("Lane", {}),
}
NOUN = "trajectories"


def browser_of(episodes: Sequence[Episode], writer: TrajectoryWriter | None = None) -> str:
    """The list of all trajectories, each body as far as there is room."""
    writer = writer or TrajectoryWriter()
    return list_of(NOUN, FILTERS, [row_of(episode) for episode in episodes], map(writer.body, episodes))


def row_of(episode: Episode) -> Row:
    """A trajectory's line in the list."""
    state, turns = episode.state, len(episode.turns)
    told, kinds = episode.told_outcome, [kind.replace("_", " ") for kind in episode.kinds]
    good_or_bad = "yes" if episode.success and episode.outcome == JUDGED else "no"
    parts: list[Part] = [
        (episode.tag, "name"),
        f"env {state['env_id']}",
        f"group {state['group_id']}" + ("" if episode.seed is None else f", seed {episode.seed}"),
        (told, good_or_bad),
        f"reward {episode.reward:.4g}",
        *([f"penalty {float(state['penalty']):.4g}"] if state["penalty"] else []),
        f"{turns} {'turn' if turns == 1 else 'turns'}",
    ]
    if episode.invalid and episode.outcome != ENV_ERROR:
        parts.append(("invalid reply", "bad"))
    parts += [(kind, "bad") for kind in kinds]
    if episode.home:
        parts.append((episode.home, "soft"))
    values = {
        "tag": episode.tag,
        "outcome": told,
        "invalid": "yes" if episode.invalid else "no",
        "kinds": kinds,
        "lane": episode.home,
    }
    return Row(values, parts)
