"""The page: results, where the time went, and the trajectories, in one file that needs nothing else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragen.llm_agent.evaluation.replies import ENV_ERROR, JUDGED, MISSING_REPLY
from ragen.llm_agent.evaluation.results import is_branch
from ragen.llm_agent.evaluation.statistics import effective_episodes, wilson_interval
from ragen.llm_agent.report.assets import SCRIPT, STYLE, policy
from ragen.llm_agent.report.browser import Browser, Episode
from ragen.llm_agent.report.lineage import render_trees
from ragen.llm_agent.report.plots import COLOURS, curves, histogram, share_bar, swimlanes
from ragen.llm_agent.report.text import attribute, shown
from ragen.llm_agent.rollout.timeline import Timeline
from ragen.llm_agent.rollout.trajectories import played_turns

HISTORY_PLOTS = {
    "success": "Success per step",
    "reward": "Reward per step",
    "num_actions": "Actions per step",
    "response_length": "Reply tokens",
}


@dataclass(frozen=True)
class Report:
    """What a report shows; what is empty is left out.

    Attributes:
        title: Of the page.
        facts: What to know about the run, such as the model's name.
        episodes: The trajectories.
        timeline: Who did what when.
        lanes: The manager's ``LaneStats``.
        seconds: What took how long, in seconds; parts may overlap.
        history: The metrics of each training step, ``<tag>/<metric>``.
        notes: Further sentences.
    """

    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    episodes: Sequence[Episode] = ()
    timeline: Timeline | None = None
    lanes: Sequence[Any] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    history: Sequence[Mapping[str, float]] = ()
    notes: Sequence[str] = ()


def render(report: Report) -> str:
    """A report as HTML, one self-contained page."""
    parts = [
        _head(report),
        _results(_independent(report.episodes)),
        _history(report.history),
        _time(report),
        _lanes(report.lanes),
    ]
    parts.append(render_trees(report.episodes))
    if report.episodes:
        parts.append(f"<h2>Trajectories</h2>{Browser().render(report.episodes)}")
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{attribute(report.title[:200])}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main><script>{SCRIPT}</script></body></html>\n"
    )


def _head(report: Report) -> str:
    facts = "".join(
        f"<div><dt>{shown(name, 100)}</dt><dd>{shown(value, 300)}</dd></div>" for name, value in report.facts.items()
    )
    notes = "".join(f"<p>{shown(note, 2000)}</p>" for note in report.notes)
    return f"<h1>{shown(report.title, 200)}</h1><dl>{facts}</dl>{notes}"


def _independent(episodes: Sequence[Episode]) -> list[Episode]:
    """Those that share no turns with another one, which alone can be counted."""
    return [episode for episode in episodes if not is_branch(episode.state)]


def _results(episodes: Sequence[Episode]) -> str:
    if not episodes:
        return ""
    tags: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        tags[str(episode.state["tag"])].append(episode)
    rows = "".join(_tag_row(tag, members) for tag, members in tags.items())
    heads = '<th>tag</th><th class="number">episodes</th><th class="number">judged</th>'
    heads += '<th class="number">success</th><th>with 95 % interval</th><th class="number">failures</th>'
    heads += '<th class="number">env errors</th><th class="number">no reply</th>'
    heads += '<th class="number">reward</th><th class="number">turns</th><th class="number">with invalid replies</th>'
    plots = "".join(_tag_plots(tag, members, index) for index, (tag, members) in enumerate(tags.items()))
    return (
        f"{_table('Success per tag', f'<tr>{heads}</tr>{rows}', 'results')}"
        f'<h2>Rewards and turns</h2><div class="plots">{plots}</div>'
    )


def _tag_row(tag: str, episodes: Sequence[Episode]) -> str:
    groups: dict[Any, list[float]] = defaultdict(list)
    judged = [episode for episode in episodes if episode.outcome == JUDGED]
    for episode in judged:
        groups[episode.state["group_id"]].append(float(episode.success))
    count, kinds = len(episodes), Counter(episode.outcome for episode in episodes)
    share = sum(map(sum, groups.values())) / len(judged) if judged else 0.0
    effective = effective_episodes(list(groups.values()))
    low, high = wilson_interval(share * effective, effective)
    turns = sum(len(played_turns(episode.state)) for episode in episodes)
    numbers = {
        "failures": str(sum(not episode.success for episode in judged)),
        "env errors": str(kinds[ENV_ERROR]),
        "no reply": str(kinds[MISSING_REPLY]),
        "reward": f"{sum(episode.reward for episode in episodes) / count:.3f}",
        "turns": f"{turns / count:.1f}",
        "invalid": f"{sum(episode.invalid for episode in episodes) / count:.0%}",
    }
    name = f'<td class="name">{shown(tag, 100)}</td>'
    first = {"episodes": str(count), "judged": str(len(judged)), "success": f"{share:.1%}" if judged else "-"}
    bar = share_bar(share, low, high) if judged else ""
    return f'<tr>{name}{_cells(first)}<td class="bar">{bar}</td>{_cells(numbers)}</tr>'


def _cells(numbers: Mapping[str, str]) -> str:
    return "".join(f'<td class="number" data-label="{label}">{number}</td>' for label, number in numbers.items())


def _tag_plots(tag: str, episodes: Sequence[Episode], index: int) -> str:
    colour = COLOURS[index % len(COLOURS)]
    rewards = [episode.reward for episode in episodes]
    turns = [float(len(played_turns(episode.state))) for episode in episodes]
    return histogram(f"{tag}: reward", rewards, colour) + histogram(f"{tag}: turns", turns, colour)


def _history(history: Sequence[Mapping[str, float]]) -> str:
    plots = []
    for metric, title in HISTORY_PLOTS.items():
        series: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for step, metrics in enumerate(history, 1):
            for name, value in metrics.items():
                tag, _, last = name.rpartition("/")
                if last == metric and "/" not in tag:
                    series[tag or "all"].append((float(metrics.get("step", step)), float(value)))
        if series:
            plots.append(curves(title, series))
    return f'<h2>Training</h2><div class="plots">{"".join(plots)}</div>' if plots else ""


def _time(report: Report) -> str:
    if report.timeline is None or not report.timeline.spans:
        return ""
    total = report.timeline.end - report.timeline.start
    items = {**report.seconds, "total": total}
    facts = "".join(f"<div><dt>{shown(name, 100)}</dt><dd>{spent:.2f} s</dd></div>" for name, spent in items.items())
    return f"<h2>Where the time went</h2><dl>{facts}</dl>{swimlanes(report.timeline)}"


def _named(lane: Any) -> str:
    return f"{lane.lane} on {lane.node}" if lane.node else str(lane.lane)


def _lanes(lanes: Sequence[Any]) -> str:
    if not lanes:
        return ""
    heads = "<th>lane</th>" + "".join(
        f'<th class="number">{name}</th>' for name in ("pid", "environments", "turns", "busy s", "restarts")
    )
    rows = "".join(
        f'<tr><td>{shown(_named(lane), 100)}</td><td class="number">{"" if lane.pid is None else lane.pid}</td>'
        f'<td class="number">{lane.envs}</td><td class="number">{lane.turns}</td>'
        f'<td class="number">{lane.busy_s:.2f}</td>'
        f'<td class="number{" bad" if lane.restarts else ""}">{lane.restarts}</td>'
        f"<td>{shown(', '.join(lane.env_types), 300)}</td></tr>"
        for lane in lanes
    )
    return _table("Lanes", f"<tr>{heads}<th>environment types</th></tr>{rows}")


def _table(title: str, rows: str, kind: str = "") -> str:
    """A table that can be scrolled, with the keyboard too, where it is wider than the page."""
    return (
        f'<h2>{title}</h2><div class="wide" tabindex="0" role="region" aria-label="{title}">'
        f'<table class="{kind}">{rows}</table></div>'
    )
