"""Who did what when, drawn: a row for each track, restarts of workers marked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ragen.llm_agent.report.plots import WIDTH, svg, ticks_of
from ragen.llm_agent.report.text import attribute, shown
from ragen.llm_agent.rollout.timeline import Mark, Span, Timeline

KINDS = ("generation", "environments", "tokenising", "imports", "learning", "waiting")
MOST_RECTANGLES = 600  # of a track; spans closer than its width allows become one


def swimlanes(timeline: Timeline) -> str:
    """Who did what when, a row for each track, restarts marked."""
    length = max(timeline.end - timeline.start, 1e-9)
    tracks: dict[str, list[Span]] = defaultdict(list)
    marks: dict[str, list[Mark]] = defaultdict(list)
    for span in timeline.spans:
        tracks[span.track].append(span)
    for mark in timeline.marks:
        marks[mark.track].append(mark)
    rows = [
        f'<div class="track"><span>{shown(track)}</span>{_track(tracks[track], marks[track], timeline.start, length)}'
        "</div>"
        for track in sorted({*tracks, *marks}, key=_by_kind_and_number)
    ]
    kinds = [kind for kind in KINDS if any(span.kind == kind for span in timeline.spans)]
    key = [f'<span><i class="{kind}"></i>{kind}</span>' for kind in kinds]
    key += ['<span><i class="restart"></i>restart of a worker</span>'] if timeline.marks else []
    ticks = [tick for tick in ticks_of(0, length) if tick <= length]
    below = "".join(f'<span style="left:{tick / length:.2%}">{tick:g} s</span>' for tick in ticks)
    scale = f'<div class="track"><span></span><div class="along">{below}</div></div>'
    return f'<div class="key">{"".join(key)}</div>{"".join(rows)}{scale}'


def _track(spans: Sequence[Span], marks: Sequence[Mark], start: float, length: float) -> str:
    scale = WIDTH / length
    shapes = [
        f'<rect class="{attribute(span.kind)}" x="{(span.start - start) * scale:.2f}" y="2" '
        f'width="{max(0.6, (span.end - span.start) * scale):.2f}" height="16"><title>'
        f"{attribute(f'{span.kind}, {span.end - span.start:.3f} s' + (f', {span.note}' if span.note else ''))}"
        "</title></rect>"
        for span in _merged(spans, length / MOST_RECTANGLES)
    ]
    shapes += [
        f'<rect class="restart" x="{min(WIDTH - 4, (mark.at - start) * scale):.2f}" y="0" width="4" height="20">'
        f"<title>{attribute(mark.text)}</title></rect>"
        for mark in marks
    ]
    return svg(20, *shapes)


def _merged(spans: Sequence[Span], gap: float) -> list[Span]:
    """Spans without those too short to see: they become part of a neighbour of their kind."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        last = next((other for other in reversed(merged[-4:]) if other.kind == span.kind), None)
        if last is not None and span.end - last.start < gap:
            merged[merged.index(last)] = last._replace(end=max(last.end, span.end), note="several")
        else:
            merged.append(span)
    return merged


def _by_kind_and_number(track: str) -> tuple[int, str, int]:
    order = ("trainer", "rollout", "generator", "shard", "main", "lane")
    name, _, number = track.partition(" ")
    rank = order.index(name) if name in order else len(order)
    return rank, name, int(number) if number.isdecimal() else -1
