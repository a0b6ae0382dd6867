"""Who did what when in a rollout: spans of time on tracks, and marks where something broke.

Recording costs a microsecond a span. What lanes did within a step is worked out from the lanes' own accounts before and
after it, which is asked for only with ``with_lanes``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple


class Span(NamedTuple):
    """Something that took time; times on ``time.perf_counter()``.

    Attributes:
        track: Who: ``"rollout"``, ``"shard 0"``, ``"generator"``, ``"main"``, ``"worker 0"``, ...
        kind: What: ``"generation"``, ``"environments"``, ``"tokenizing"``, ``"imports"``, or ``"waiting"`` for a reply.
        start: When it began.
        end: When it was over.
        note: More about it.
    """

    track: str
    kind: str
    start: float
    end: float
    note: str = ""


class Mark(NamedTuple):
    """Something that happened at a moment.

    Attributes:
        track: To whom.
        at: When, on ``time.perf_counter()``.
        text: What.
    """

    track: str
    at: float
    text: str


class Timeline:
    """What was recorded of one rollout; several threads may write to it.

    Attributes:
        with_lanes: Whether to record what each lane did.
        start: When the rollout began, on ``time.perf_counter()``.
        end: When it was over.
        spans: In the order in which they ended.
        marks: In the order in which they were noticed.
    """

    def __init__(self, with_lanes: bool = False) -> None:
        """Begin now, with nothing recorded."""
        self.with_lanes = with_lanes
        self.start = self.end = time.perf_counter()
        self.spans: list[Span] = []
        self.marks: list[Mark] = []

    @contextmanager
    def span(self, track: str, kind: str) -> Iterator[None]:
        """Record how long a block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(Span(track, kind, start, time.perf_counter()))

    @contextmanager
    def lanes(self, stats: Callable[[], Sequence[Any]]) -> Iterator[None]:
        """Record what lanes do in a block, if that is asked for; ``stats`` gives their ``LaneStats``."""
        if not self.with_lanes:
            yield
            return
        before, start = stats(), time.perf_counter()
        yield
        self.add_lanes(before, stats(), start, time.perf_counter())

    def add(self, span: Span) -> None:
        """Record a span that is over."""
        self.spans.append(span)
        self.end = max(self.end, span.end)

    def add_lanes(self, before: Sequence[Any], after: Sequence[Any], start: float, end: float) -> None:
        """Record what lanes did within a step.

        Args:
            before: The manager's ``LaneStats`` before the step.
            after: Those after it.
            start: When the step began.
            end: When it was over; a lane that was busy for a part of it is shown busy in the beginning.
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
        """For each kind the time in which at least one span of it ran; kinds may overlap."""
        return {kind: _covered([(s.start, s.end) for s in self.spans if s.kind == kind]) for kind in kinds}


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
