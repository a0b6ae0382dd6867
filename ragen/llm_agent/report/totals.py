"""What a run comes to in a few numbers: episodes, success, replies, tokens, cost, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragen.llm_agent.evaluation.replies import JUDGED, count_replies, replies_line
from ragen.llm_agent.report.contents import Report
from ragen.llm_agent.report.episode import Episode
from ragen.llm_agent.report.text import shown

_TOKENS = ("prompt_tokens", "completion_tokens")


def totals_of(episodes: Sequence[Episode], usage: Mapping[str, float], seconds: float = 0.0) -> dict[str, str]:
    """What to say in a card each: a label to a number.

    Args:
        episodes: All of them.
        usage: What the run has counted; where it has not, the replies' own tokens and cost are added up.
        seconds: How long it took; 0 where that is not known.
    """
    judged = [episode for episode in episodes if episode.outcome == JUDGED]
    replies = sum(len(episode.turns) for episode in episodes)
    used = dict(usage) if any(name in usage for name in _TOKENS) else {**usage, **_told(episodes)}
    totals = {"trajectories": f"{len(episodes):,}"} if episodes else {}
    if judged:
        totals[f"success, of {len(judged):,} judged"] = f"{sum(each.success for each in judged) / len(judged):.1%}"
    totals |= {"turns" if not used else "replies played": f"{replies:,}"} if episodes else {}
    for name in ("requests", "retries", "failed_requests", *_TOKENS):
        if used.get(name):
            totals[name.replace("_", " ")] = f"{used[name]:,.0f}"
    if "cost" in used:
        totals["cost"] = f"${used['cost']:,.4f}"
    if seconds:
        totals["seconds"] = f"{seconds:,.1f}"
    return totals


def _told(episodes: Sequence[Episode]) -> dict[str, float]:
    """The tokens and cost that the replies tell of themselves."""
    told: dict[str, float] = {}
    for episode in episodes:
        for reply in episode.replies:
            for name in (*_TOKENS, "cost"):
                if name in reply:
                    told[name] = told.get(name, 0) + reply[name]
    return told


def cards_of(report: Report) -> str:
    """The totals as cards, and in a line what the replies were like."""
    timeline = report.timeline
    seconds = timeline.end - timeline.start if timeline is not None and timeline.spans else 0.0
    totals = totals_of(report.episodes, report.usage, seconds)
    if not totals:
        return ""
    cards = "".join(f"<div><b>{number}</b><span>{shown(label)}</span></div>" for label, number in totals.items())
    counts: dict[str, Any] = count_replies(
        [{"replies": episode.replies} for episode in report.episodes if any(episode.replies)]
    )
    line = f'<p class="soft">{shown(replies_line(counts), 500)}</p>' if counts else ""
    return f'<div class="cards">{cards}</div>{line}'
