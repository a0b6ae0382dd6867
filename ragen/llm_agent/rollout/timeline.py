"""The timeline of a rollout: spans of activities on tracks, and marks of failures.

Recording takes a microsecond per span. The activities of workers within a step are computed from their statistics
before and after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple


class Span(NamedTuple):
    """An activity; times are those of ``time.perf_counter()``.

    Attributes:
        track: ``"rollout"``, ``"shard 0"``, ``"generator"``, ``"main"``, ``"worker 0"``, ...
        kind: ``"generation"``, ``"environments"``, ``"tokenizing"``, ``"imports"``, or ``"waiting"`` for a reply.
        start: Start time.
        end: End time.
        note: Additional text.
    """

    track: str
    kind: str
    start: float
    end: float
    note: str = ""


class Mark(NamedTuple):
    """An event.

    Attributes:
        track: The track that it concerns.
        at: Its time on ``time.perf_counter()``.
        text: Its description.
    """

    track: str
    at: float
    text: str


class Timeline:
    """The recorded activities of one rollout; several threads may write to it.

    Attributes:
        start: The start of the rollout on ``time.perf_counter()``.
        end: Its end.
        spans: The activities, in the order in which they ended.
        marks: The events, in the order in which they were recorded.
    """

    def __init__(self) -> None:
        """Start now, with nothing recorded."""
        self.start = self.end = time.perf_counter()
        self.spans: list[Span] = []
        self.marks: list[Mark] = []
        self._open: dict[object, tuple[str, float]] = {}  # kinds and starts of spans that have not ended

    @contextmanager
    def span(self, track: str, kind: str) -> Iterator[None]:
        """Record a block as a span."""
        start, key = time.perf_counter(), object()
        self._open[key] = kind, start
        try:
            yield
        finally:
            del self._open[key]
            self.add(Span(track, kind, start, time.perf_counter()))

    def open_s(self, kind: str) -> float:
        """For how many seconds an activity of this kind has been going on; the longest of several, 0 for none."""
        now = time.perf_counter()
        return max((now - start for its_kind, start in [*self._open.values()] if its_kind == kind), default=0.0)

    @contextmanager
    def lanes(self, stats: Callable[[], Sequence[Any]]) -> Iterator[None]:
        """Record the activities of workers in a block; ``stats`` returns their ``LaneStats``."""
        before, start = stats(), time.perf_counter()
        yield
        self.add_lanes(before, stats(), start, time.perf_counter())

    def add(self, span: Span) -> None:
        """Record a finished span."""
        self.spans.append(span)
        self.end = max(self.end, span.end)

    def add_lanes(self, before: Sequence[Any], after: Sequence[Any], start: float, end: float) -> None:
        """Record the activities of workers within a step.

        Args:
            before: The manager's ``LaneStats`` before the step.
            after: Those after it.
            start: The start of the step.
            end: Its end; a worker that was busy for part of the step is shown as busy at its start.
        """
        known = {stats.lane: stats for stats in before}
        for stats in after:
            earlier = known.get(stats.lane)
            busy = stats.busy_s - (earlier.busy_s if earlier else 0.0)
            turns = stats.turns - (earlier.turns if earlier else 0)
            restarts = stats.restarts - (earlier.restarts if earlier else 0)
            if busy > 0:
                self.add(Span(stats.lane, "environments", start, min(end, start + busy), f"{turns} turns"))
            if restarts > 0:
                self.marks.append(Mark(stats.lane, end, f"restarted {restarts} times" if restarts > 1 else "restarted"))

    def seconds(self, kinds: Iterable[str]) -> dict[str, float]:
        """For each kind, the seconds during which at least one span of it was active; kinds may overlap."""
        return {kind: _covered([(s.start, s.end) for s in self.spans if s.kind == kind]) for kind in kinds}


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
