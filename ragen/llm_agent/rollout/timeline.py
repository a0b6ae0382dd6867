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
    """The recorded activities of one rollout; one thread writes to it.

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
        self._open: list[tuple[str, float]] = []  # kinds and starts of spans that have not ended

    @contextmanager
    def span(self, track: str, kind: str) -> Iterator[None]:
        """Record a block as a span."""
        start = time.perf_counter()
        self._open.append((kind, start))
        try:
            yield
        finally:
            self._open.pop()
            self.add(Span(track, kind, start, time.perf_counter()))

    def open_s(self, kind: str) -> float:
        """For how many seconds an activity of this kind has been going on; 0 for none."""
        now = time.perf_counter()
        return max((now - start for its_kind, start in [*self._open] if its_kind == kind), default=0.0)

    @contextmanager
    def lanes(self, stats: Callable[[], Sequence[Any]]) -> Iterator[None]:
        """Record the activities of workers in a block; ``stats`` returns their ``LaneStats``.

        A worker that was busy for part of the block is shown as busy at its start.
        """
        known, start = {each.lane: (each.busy_s, each.turns, each.restarts) for each in stats()}, time.perf_counter()
        yield
        end = time.perf_counter()
        for each in stats():
            busy, turns, restarts = known.get(each.lane, (0.0, 0, 0))
            if each.busy_s > busy:
                until = min(end, start + each.busy_s - busy)
                self.add(Span(each.lane, "environments", start, until, f"{each.turns - turns} turns"))
            if each.restarts > restarts:
                self.marks.append(Mark(each.lane, end, f"restarted ({each.restarts - restarts})"))

    def add(self, span: Span) -> None:
        """Record a finished span."""
        self.spans.append(span)
        self.end = max(self.end, span.end)

    def seconds(self, kinds: Iterable[str]) -> dict[str, float]:
        """The seconds of each kind on the track of the rollout."""
        spans = [span for span in self.spans if span.track == "rollout"]
        return {kind: sum(span.end - span.start for span in spans if span.kind == kind) for kind in kinds}
