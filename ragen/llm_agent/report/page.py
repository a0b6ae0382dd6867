"""The page: facts about the run, results, where the time went, and the trajectories, in one file.

Each part is rendered by its own function, and empty parts are omitted. To add a part, add a function to
:func:`parts_of`.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from envlanes.stats import gathered
from ragen.errors import ConfigError
from ragen.files import write_whole
from ragen.llm_agent.backends.base import TOKENS
from ragen.llm_agent.evaluation.replies import JUDGED, count_replies, replies_line
from ragen.llm_agent.evaluation.results import TagResult, evaluate
from ragen.llm_agent.report.contents import Episode, Report
from ragen.llm_agent.report.plots import COLOURS, histogram, share_bar, swimlanes
from ragen.llm_agent.report.text import attribute, shown
from ragen.llm_agent.report.trajectories import browser_of

_FOLDER = files("ragen.llm_agent.report")
STYLE = _FOLDER.joinpath("page.css").read_text("utf-8")
SCRIPT = _FOLDER.joinpath("page.js").read_text("utf-8")


def policy() -> str:
    """The content security policy: allows this script, these styles, embedded images, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


# Files


TIMES = "<h2>Where the time went</h2>"
"""What only the page that a run writes itself contains."""


def write_page(html: str, path: Path) -> Path:
    """Write a page; creates the folder if needed, and replaces an older page atomically.

    Returns:
        The path.

    Raises:
        ConfigError: It cannot be written there.
    """
    try:
        write_whole(path, html)
    except OSError as error:
        raise ConfigError(f"the page cannot be written to {path}: {error.strerror}; name another file.") from error
    return path


def write_report(report: Report, path: Path) -> None:
    """Write a report; creates the folder if needed, and replaces an older report atomically.

    Raises:
        ConfigError: It cannot be written there.
    """
    write_page(render(report), path)


# The page and its parts


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
        "results": _results(report.episodes),
        "plots": _plots(report.episodes),
        "time": _time(report),
        "lanes": _lanes(report.lanes),
    }


def framed(title: str, body: str) -> str:
    """A whole page.

    Args:
        title: The page's title.
        body: Its HTML.
    """
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{attribute(title[:200])}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main><script>{SCRIPT}</script></body></html>\n"
    )


def head_of(report: Report) -> str:
    """The head of the page: the run's title and facts."""
    notes = "".join(f"<p>{shown(note, 2000)}</p>" for note in report.notes)
    unfinished = f'<p class="bad">{shown(report.unfinished)}</p>' if report.unfinished else ""
    return f"<h1>{shown(report.title, 200)}</h1>{unfinished}{about_of(report)}{notes}"


def about_of(report: Report) -> str:
    """The facts about a run, with its command and its configuration."""
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


def _results(episodes: Sequence[Episode]) -> str:
    if not episodes:
        return ""
    rows = map(_tag_row, evaluate([episode.record for episode in episodes]))
    heads = '<th>tag</th><th class="number">episodes</th><th class="number">judged</th>'
    heads += '<th class="number">success</th><th>with 95 % interval</th><th class="number">failures</th>'
    heads += '<th class="number">env errors</th><th class="number">no reply</th>'
    heads += '<th class="number">reward</th><th class="number">turns</th><th class="number">invalid</th>'
    return table_of("Success per tag", f"<tr>{heads}</tr>{''.join(rows)}", "results")


def _tag_row(result: TagResult) -> str:
    is_known = result.success is not None
    numbers = {
        "failures": str(result.failures),
        "env errors": str(result.env_errors),
        "no reply": str(result.missing_replies),
        "reward": f"{result.reward:z.3f}" if is_known else "-",
        "turns": f"{result.turns:.1f}",
        "invalid": f"{result.invalid:.1%}",
    }
    name = f'<td class="name">{shown(result.tag, 100)}</td>'
    interval = f'<br><span class="soft">{result.low:.1%} - {result.high:.1%}</span>'
    success = f"{result.success:.1%}{interval}" if is_known else "-"
    first = {"episodes": str(result.episodes), "judged": str(result.judged), "success": success}
    bar = share_bar(result.success, result.low, result.high) if result.success is not None else ""
    return f'<tr>{name}{_cells(first)}<td class="bar">{bar}</td>{_cells(numbers)}</tr>'


def _plots(episodes: Sequence[Episode]) -> str:
    plots = "".join(_tag_plots(tag, each, index) for index, (tag, each) in enumerate(_by_tag(episodes).items()))
    return f'<h2>Rewards and turns</h2><div class="plots">{plots}</div>' if plots else ""


def _by_tag(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    tags: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        tags[episode.tag].append(episode)
    return tags


def _cells(numbers: Mapping[str, str]) -> str:
    return "".join(f'<td class="number" data-label="{label}">{number}</td>' for label, number in numbers.items())


def _tag_plots(tag: str, episodes: Sequence[Episode], index: int) -> str:
    colour = COLOURS[index % len(COLOURS)]
    rewards = [episode.reward for episode in episodes if episode.outcome == JUDGED]
    turns = [float(len(episode.turns)) for episode in episodes]
    return histogram(f"{tag}: reward", rewards, colour) + histogram(f"{tag}: turns", turns, colour)


def _time(report: Report) -> str:
    if report.timeline is None or not report.timeline.spans:
        return ""
    total = report.timeline.end - report.timeline.start
    items = {**report.seconds, "total": total}
    facts = "".join(f"<div><dt>{shown(name, 100)}</dt><dd>{spent:.2f} s</dd></div>" for name, spent in items.items())
    what = f"<p>{since[0].upper()}{since[1:]}.</p>" if (since := _since(report)) else ""
    return f"{TIMES}{what}<dl>{facts}</dl>{swimlanes(report.timeline)}"


def _since(report: Report) -> str:
    """Which trajectories the times of a resumed run are about; empty if about all."""
    played = len(report.episodes) - report.earlier
    return f"since the last start, for {played:,} of {len(report.episodes):,} trajectories" if report.earlier else ""


def _named(lane: Any) -> str:
    return f"{lane.lane} on {lane.node}" if lane.node else lane.lane


def _lanes(lanes: Sequence[Any]) -> str:
    if not lanes:
        return ""
    heads = "<th>worker</th>" + "".join(
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
    return table_of("Workers", f"<tr>{heads}<th>environment types</th></tr>{rows}")


def table_of(title: str, rows: str, kind: str = "") -> str:
    """A table that can be scrolled, also by keyboard, if it is wider than the page; empty without rows."""
    if not rows:
        return ""
    return (
        f'<h2>{title}</h2><div class="wide" tabindex="0" role="region" aria-label="{title}">'
        f'<table class="{kind}">{rows}</table></div>'
    )


# Totals, as cards


def totals_of(report: Report) -> dict[str, str]:
    """The totals to show as cards: number by label. Without usage, the replies' tokens and cost are added up."""
    episodes, usage, timeline = report.episodes, report.usage, report.timeline
    judged = [episode for episode in episodes if episode.outcome == JUDGED]
    replies = sum(len(episode.turns) for episode in episodes)
    used = dict(usage) if any(name in usage for name in TOKENS) else {**usage, **_reply_usage(episodes)}
    totals = {"trajectories": f"{len(episodes):,}"} if episodes else {}
    if judged:
        totals[f"success, of {len(judged):,} judged"] = f"{sum(each.success for each in judged) / len(judged):.1%}"
    totals |= {"turns" if not used else "replies played": f"{replies:,}"} if episodes else {}
    for name in ("requests", "retries", "failed_requests", *TOKENS, "uncounted_replies", "unpriced_replies"):
        if used.get(name):
            totals[name.replace("_", " ")] = f"{used[name]:,.0f}"
    if "cost" in used:
        totals["cost"] = f"${used['cost']:,.4f}"
    if timeline is not None and timeline.spans:
        totals[f"seconds {_since(report)}".rstrip()] = f"{timeline.end - timeline.start:,.1f}"
    return totals


def _reply_usage(episodes: Sequence[Episode]) -> dict[str, float]:
    """The total tokens and cost recorded in the replies."""
    told: dict[str, float] = {}
    for episode in episodes:
        for reply in episode.replies:
            for name in (*TOKENS, "cost"):
                if name in reply:
                    told[name] = told.get(name, 0) + reply[name]
    return told


def cards_of(report: Report) -> str:
    """The totals as cards, and a line about the replies."""
    totals = totals_of(report)
    if not totals:
        return ""
    cards = "".join(f"<div><b>{number}</b><span>{shown(label)}</span></div>" for label, number in totals.items())
    counts: dict[str, Any] = count_replies(
        [{"replies": episode.replies} for episode in report.episodes if any(episode.replies)]
    )
    line = f'<p class="soft">{shown(replies_line(counts), 500)}</p>' if counts else ""
    return f'<div class="cards">{cards}</div>{line}{thoughts_of(report.episodes)}'


def thoughts_of(episodes: Iterable[Episode]) -> str:
    """The number of replies with a thought, and of distinct thoughts; empty if no reply has one."""
    replies = [str(turn.get("llm_response", "")) for episode in episodes for turn in episode.turns]
    from ragen.llm_agent.prompting.replies import thought_of  # here, since it imports numpy, and help comes at once

    thoughts = [thought for thought in map(thought_of, replies) if thought]
    if not thoughts:
        return ""
    told = (
        f"{len(thoughts):,} of {len(replies):,} replies contain a thought; distinct thoughts: {len(set(thoughts)):,}."
    )
    return f'<p class="soft">{told}</p>'
