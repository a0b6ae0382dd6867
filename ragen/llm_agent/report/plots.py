"""Plots and timelines as inline SVG. Shapes fill the available width; labels are HTML, and stay readable."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ragen.llm_agent.report.text import attribute, shown
from ragen.llm_agent.rollout.timeline import Mark, Span, Timeline

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")
WIDTH = 1000.0
_HEIGHT = 110
_MOST_TICKS = 5


def share_bar(share: float, low: float, high: float) -> str:
    """A fraction from 0 to 1 as a bar, with its interval."""
    middle = 9
    return svg(
        18,
        f'<rect width="{WIDTH:g}" height="18" rx="3" fill="var(--line)"/>',
        f'<rect width="{share * WIDTH:.1f}" height="18" rx="3" fill="var(--good)" opacity=".75"/>',
        f'<path d="M{low * WIDTH:.1f} {middle}H{high * WIDTH:.1f}" {line("var(--ink)")}/>',
        *(f'<path d="M{at * WIDTH:.1f} 4V14" {line("var(--ink)")}/>' for at in (low, high)),
    )


def histogram(title: str, values: Sequence[float], colour: str) -> str:
    """A histogram of episodes by value, with up to 16 bins; empty if no value is finite."""
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return ""
    low, high = min(values), max(values)
    if low == high:
        of = f"all {len(values)} episodes" if len(values) > 1 else "the one episode"
        number = f'<p class="single">{low:.4g}<span> in {of}</span></p>'
        return f'<figure class="plot"><figcaption>{shown(title)}</figcaption>{number}</figure>'
    whole = all(float(value).is_integer() for value in values)
    columns = int(min(16, high - low + 1)) if whole else min(16, max(1, len(set(values))))
    width = (high - low + (1 if whole else 0)) / columns or 1.0
    counts = [0] * columns
    for value in values:
        counts[min(columns - 1, int((value - low) / width))] += 1
    step, ticks = WIDTH / columns, ticks_of(0, max(counts), whole=True)
    top = ticks[-1]
    bars = (
        f'<rect x="{index * step + 2:.1f}" y="{_HEIGHT * (1 - count / top):.1f}" width="{step - 4:.1f}" '
        f'height="{_HEIGHT * count / top:.1f}" fill="{colour}"><title>{count}</title></rect>'
        for index, count in enumerate(counts)
        if count
    )
    if whole and columns == high - low + 1:  # a column is a value: its name stands below its middle
        every = math.ceil(columns / 8)
        names = [(f"{low + at:g}", (at + 0.5) / columns) for at in range(0, columns, every)]
    else:
        names = [(f"{low + (high - low) * share:.3g}", share) for share in (0.0, 0.5, 1.0)]
    return _figure(title, _HEIGHT, bars, ticks, names, "episodes")


def _figure(
    title: str,
    height: int,
    shapes: Iterable[str],
    ticks: Sequence[float],
    names: Sequence[tuple[str, float]],
    upwards: str,
    along: str = "",
    key: str = "",
    kind: str = "",
) -> str:
    """Shapes with a vertical axis, whose ticks span the range, and a horizontal one."""
    low, high = ticks[0], ticks[-1]
    heights = [(tick, (tick - low) / (high - low)) for tick in ticks]
    lines = [f'<path d="M0 {height * (1 - at):.1f}H{WIDTH:g}" {line("var(--line)", 1)}/>' for _, at in heights]
    labels = "".join(f'<span style="bottom:{at:.1%}">{tick:g}</span>' for tick, at in heights)
    below = "".join(f'<span style="left:{at:.1%}">{shown(name)}</span>' for name, at in names)
    told = f'<span class="axis">{upwards}</span>' if upwards else ""
    return (
        f'<figure class="plot {kind}"><figcaption>{shown(title)}{told}</figcaption><div class="axes">'
        f'<div class="up">{labels}</div>{svg(height, *lines, *shapes)}<div></div><div class="along">{below}</div></div>'
        f"{f'<div class=axis>{along}</div>' if along else ''}{key}</figure>"
    )


def ticks_of(low: float, high: float, whole: bool = False) -> list[float]:
    """Two to seven evenly spaced round numbers that cover the range."""
    span = max(high - low, 1e-9)
    raw = span / (_MOST_TICKS - 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw * 0.999999)
    if whole:
        step = max(1.0, step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, max(last, first + 1) + 1)]


def line(colour: str, width: float = 1.5) -> str:
    """The attributes of a line whose width in pixels is independent of the plot's scale."""
    return f'stroke="{colour}" stroke-width="{width:g}" vector-effect="non-scaling-stroke"'


def svg(height: int, *shapes: str) -> str:
    """Shapes on an area of ``WIDTH`` by ``height``, stretched to the available width."""
    return f'<svg viewBox="0 0 {WIDTH:g} {height}" preserveAspectRatio="none" role="img">{"".join(shapes)}</svg>'


# Timelines

KINDS = ("generation", "environments", "tokenizing", "imports", "learning", "waiting")
MOST_RECTANGLES = 600  # rectangles per track; closer spans are merged


def swimlanes(timeline: Timeline) -> str:
    """Activities over time, a row for each track, with restarts marked."""
    length = max(timeline.end - timeline.start, 1e-9)
    tracks: dict[str, list[Span]] = defaultdict(list)
    marks: dict[str, list[Mark]] = defaultdict(list)
    for span in timeline.spans:
        tracks[span.track].append(span)
    for mark in timeline.marks:
        marks[mark.track].append(mark)
    rows = [
        f'<div class="track"><span>{shown(track)}</span>'
        f"{_track(tracks[track], marks[track], timeline.start, length)}</div>"
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
    """Spans in which those too short to see are merged with a neighbor of their kind."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        last = next((other for other in reversed(merged[-4:]) if other.kind == span.kind), None)
        if last is not None and span.end - last.start < gap:
            merged[merged.index(last)] = last._replace(end=max(last.end, span.end), note="several")
        else:
            merged.append(span)
    return merged


def _by_kind_and_number(track: str) -> tuple[int, str, int]:
    order = ("trainer", "rollout", "generator", "shard", "main", "worker")
    name, _, number = track.partition(" ")
    rank = order.index(name) if name in order else len(order)
    return rank, name, int(number) if number.isdecimal() else -1
