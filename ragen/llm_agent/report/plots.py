"""Plots as inline SVG. Shapes are SVG, stretched to the width there is; words are HTML, and stay readable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ragen.llm_agent.report.text import attribute, shown
from ragen.llm_agent.rollout.timeline import Mark, Span, Timeline

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")
KINDS = ("generation", "environments", "tokenising", "imports", "learning", "waiting")
MOST_RECTANGLES = 600  # of a track; spans closer than its width allows become one
_WIDTH = 1000.0


def share_bar(share: float, low: float, high: float) -> str:
    """A share from 0 to 1 as a bar, with its interval."""
    middle = 9
    return _svg(
        18,
        f'<rect width="{_WIDTH:g}" height="18" rx="3" fill="var(--line)"/>',
        f'<rect width="{share * _WIDTH:.1f}" height="18" rx="3" fill="var(--good)" opacity=".75"/>',
        f'<path d="M{low * _WIDTH:.1f} {middle}H{high * _WIDTH:.1f}" {_line("var(--ink)")}/>',
        *(f'<path d="M{at * _WIDTH:.1f} 4V14" {_line("var(--ink)")}/>' for at in (low, high)),
    )


def histogram(title: str, values: Sequence[float], colour: str) -> str:
    """How often which values occur, in up to 16 columns."""
    low, high = min(values), max(values)
    whole = all(float(value).is_integer() for value in values)
    columns = int(min(16, high - low + 1)) if whole else min(16, max(1, len(set(values))))
    width = (high - low + (1 if whole else 0)) / columns or 1.0
    counts = [0] * columns
    for value in values:
        counts[min(columns - 1, int((value - low) / width))] += 1
    step, most = _WIDTH / columns, max(counts)
    bars = (
        f'<rect x="{index * step + 2:.1f}" y="{110 - 104 * count / most:.1f}" width="{step - 4:.1f}" '
        f'height="{104 * count / most:.1f}" fill="{colour}"><title>{count}</title></rect>'
        for index, count in enumerate(counts)
        if count
    )
    ends = f'<div class="ends"><span>{low:.4g}</span><span>most: {most}</span><span>{high:.4g}</span></div>'
    return f'<figure class="plot"><figcaption>{shown(title)}</figcaption>{_svg(110, *bars)}{ends}</figure>'


def curves(title: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Lines over steps.

    Args:
        title: What is shown.
        series: Points ``(step, value)`` of each line.
    """
    points = [point for line in series.values() for point in line]
    (left, right), (low, high) = (_range([point[axis] for point in points]) for axis in (0, 1))
    lines, names = [], []
    for index, (name, line) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(
            f"{(x - left) / (right - left) * _WIDTH:.1f},{214 - (y - low) / (high - low) * 208:.1f}" for x, y in line
        )
        lines.append(f'<polyline points="{path}" fill="none" {_line(colour, 2)}/>')
        names.append(f'<span><i style="background:{colour}"></i>{shown(name)}: {line[-1][1]:.3g}</span>')
    height = f"from {low:.3g} to {high:.3g}"
    ends = f'<div class="ends"><span>step {left:g}</span><span>{height}</span><span>step {right:g}</span></div>'
    key = f'<div class="key">{"".join(names)}</div>'
    return f'<figure class="plot curve"><figcaption>{shown(title)}</figcaption>{_svg(220, *lines)}{ends}{key}</figure>'


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
    scale = f'<div class="track"><span></span><div class="ends"><span>0 s</span><span>{length:.2f} s</span></div></div>'
    return f'<div class="key">{"".join(key)}</div>{"".join(rows)}{scale}'


def _track(spans: Sequence[Span], marks: Sequence[Mark], start: float, length: float) -> str:
    scale = _WIDTH / length
    shapes = [
        f'<rect class="{attribute(span.kind)}" x="{(span.start - start) * scale:.2f}" y="2" '
        f'width="{max(0.6, (span.end - span.start) * scale):.2f}" height="16"><title>'
        f"{attribute(f'{span.kind}, {span.end - span.start:.3f} s' + (f', {span.note}' if span.note else ''))}"
        "</title></rect>"
        for span in _merged(spans, length / MOST_RECTANGLES)
    ]
    shapes += [
        f'<rect class="restart" x="{min(_WIDTH - 4, (mark.at - start) * scale):.2f}" y="0" width="4" height="20">'
        f"<title>{attribute(mark.text)}</title></rect>"
        for mark in marks
    ]
    return _svg(20, *shapes)


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


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _line(colour: str, width: float = 1.5) -> str:
    return f'stroke="{colour}" stroke-width="{width:g}" vector-effect="non-scaling-stroke"'


def _svg(height: int, *shapes: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH:g} {height}" preserveAspectRatio="none" role="img">{"".join(shapes)}</svg>'
