"""The page: what the run is of, results, where the time went, and the trajectories, in one file.

Its parts stand one below the other, each from a function of its own, and what is empty is left out. A further part is a
further function in :func:`parts_of`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ragen.llm_agent.evaluation.replies import ENV_ERROR, JUDGED, MISSING_REPLY
from ragen.llm_agent.evaluation.results import is_branch
from ragen.llm_agent.evaluation.statistics import effective_episodes, wilson_interval
from ragen.llm_agent.report.assets import SCRIPT, STYLE, policy
from ragen.llm_agent.report.browser import browser_of
from ragen.llm_agent.report.contents import Report
from ragen.llm_agent.report.episode import Episode
from ragen.llm_agent.report.failures import failure_rows, failures_of
from ragen.llm_agent.report.lineage import render_trees
from ragen.llm_agent.report.plots import COLOURS, curves, histogram, share_bar
from ragen.llm_agent.report.swimlanes import swimlanes
from ragen.llm_agent.report.text import attribute, shown
from ragen.llm_agent.report.totals import cards_of
from ragen.parallel.stats import gathered

ALL = "all"
HISTORY_PLOTS = {
    "success": "Success per step",
    "reward": "Reward per step",
    "num_actions": "Actions per step",
    "response_length": "Reply tokens",
}


def render(report: Report) -> str:
    """A report as HTML, one self-contained page."""
    parts = [head_of(report), *parts_of(report).values()]
    if report.episodes:
        parts.append(f"<h2>Trajectories</h2>{browser_of(report.episodes)}")
    return framed(report.title, "".join(parts))


def parts_of(report: Report) -> dict[str, str]:
    """The parts between the head and the trajectories, by name; some may be empty."""
    return {
        "totals": cards_of(report),
        "results": _results(_independent(report.episodes)),
        "failures": table_of("Failures by kind", failure_rows(failures_of(report.episodes))),
        "plots": _plots(report.episodes),
        "history": _history(report.history),
        "time": _time(report),
        "lanes": _lanes(report.lanes),
        "trees": render_trees(report.episodes),
    }


def framed(title: str, body: str, live: str = "") -> str:
    """A whole page.

    Args:
        title: Of the page.
        body: Its HTML.
        live: What the page shows the server for the right to ask; empty for a page that asks nobody.
    """
    asks = f' data-live="{attribute(live)}"' if live else ""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(bool(live))}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{attribute(title[:200])}</title><style>{STYLE}</style></head>"
        f"<body{asks}><main>{body}</main><script>{SCRIPT}</script></body></html>\n"
    )


def head_of(report: Report) -> str:
    """What the run is of."""
    notes = "".join(f"<p>{shown(note, 2000)}</p>" for note in report.notes)
    return f"<h1>{shown(report.title, 200)}</h1>{about_of(report)}{notes}"


def about_of(report: Report) -> str:
    """What is known of a run, with its command and its configuration."""
    about = report.about
    known = {**about.facts, **report.facts}
    facts = "".join(
        f"<div><dt>{shown(name, 100)}</dt><dd>{shown(value, 300)}</dd></div>" for name, value in known.items()
    )
    if about.command:
        facts += f'<div><dt>command</dt><dd class="command"><code>{shown(about.command, 4000)}</code></dd></div>'
    whole = f'<dl class="about">{facts}</dl>' if facts else ""
    if not about.configuration:
        return whole
    keys = "".join(
        f"<div><dt>{shown(key, 200)}</dt><dd>{shown(value, 1000)}</dd></div>"
        for key, value in about.configuration.items()
    )
    return f'{whole}<details class="config"><summary>configuration</summary><dl>{keys}</dl></details>'


def _independent(episodes: Sequence[Episode]) -> list[Episode]:
    """Those that share no turns with another one, which alone can be counted."""
    return [episode for episode in episodes if not is_branch(episode.state)]


def _results(episodes: Sequence[Episode]) -> str:
    if not episodes:
        return ""
    tags = _by_tag(episodes)
    rows = [_tag_row(tag, members) for tag, members in tags.items()]
    rows += [_tag_row(ALL, episodes)] if len(tags) > 1 else []
    heads = '<th>tag</th><th class="number">episodes</th><th class="number">judged</th>'
    heads += '<th class="number">success</th><th>with 95 % interval</th><th class="number">failures</th>'
    heads += '<th class="number">env errors</th><th class="number">no reply</th>'
    heads += '<th class="number">reward</th><th class="number">turns</th><th class="number">with invalid replies</th>'
    return table_of("Success per tag", f"<tr>{heads}</tr>{''.join(rows)}", "results")


def _plots(episodes: Sequence[Episode]) -> str:
    plots = "".join(_tag_plots(tag, each, index) for index, (tag, each) in enumerate(_by_tag(episodes).items()))
    return f'<h2>Rewards and turns</h2><div class="plots">{plots}</div>' if plots else ""


def _by_tag(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    tags: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        tags[episode.tag].append(episode)
    return tags


def success_of(episodes: Sequence[Episode]) -> tuple[float, float, float]:
    """The share of episodes that reached the goal, and its 95 % interval; all are to be judged."""
    groups: dict[tuple[str, Any], list[float]] = defaultdict(list)
    for episode in episodes:
        groups[episode.tag, episode.state["group_id"]].append(float(episode.success))
    share = sum(map(sum, groups.values())) / len(episodes) if episodes else 0.0
    effective = effective_episodes(list(groups.values()))
    return (share, *wilson_interval(share * effective, effective))


def _tag_row(tag: str, episodes: Sequence[Episode]) -> str:
    judged = [episode for episode in episodes if episode.outcome == JUDGED]
    count, kinds = len(episodes), Counter(episode.outcome for episode in episodes)
    share, low, high = success_of(judged)
    turns = sum(len(episode.turns) for episode in episodes)
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
    turns = [float(len(episode.turns)) for episode in episodes]
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
        for lane in gathered(lanes)
    )
    return table_of("Lanes", f"<tr>{heads}<th>environment types</th></tr>{rows}")


def table_of(title: str, rows: str, kind: str = "") -> str:
    """A table that can be scrolled, with the keyboard too, where it is wider than the page; empty without rows."""
    if not rows:
        return ""
    return (
        f'<h2>{title}</h2><div class="wide" tabindex="0" role="region" aria-label="{title}">'
        f'<table class="{kind}">{rows}</table></div>'
    )
