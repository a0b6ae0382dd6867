"""When a snapshot is taken: often enough that a rebuild is short, seldom enough that it costs almost nothing."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from envlanes.episode import replicas
from envlanes.episode.replicas import Replica, is_save_due, save_if_due

MS, US = 1e-3, 1e-6


@pytest.mark.parametrize(
    ("why", "unsaved_s", "usual_s", "save_s", "is_due"),
    [
        ("a turn that takes less than 50 snapshots is replayed", 0.2 * MS, 0.2 * MS, 5 * US, False),
        ("several of them are not", 0.4 * MS, 0.2 * MS, 5 * US, True),
        ("a turn that takes 50 snapshots gets one each time", 2.5 * MS, 2.5 * MS, 50 * US, True),
        ("a dearer snapshot waits for more than a turn", 20 * MS, 20 * MS, 1 * MS, False),
        ("two turns are more", 40 * MS, 20 * MS, 1 * MS, True),
        ("and it waits for more than a few milliseconds", 4 * MS, 1 * MS, 0.1 * MS, False),
        ("then it pays", 5 * MS, 1 * MS, 0.1 * MS, True),
        ("a snapshot as dear as a turn waits for ten", 18 * MS, 2 * MS, 2 * MS, False),
        ("ten are enough", 20 * MS, 2 * MS, 2 * MS, True),
        ("one that was never taken could be dear", 1 * MS, 1 * MS, 0.0, False),
        ("it is tried after a few milliseconds", 5 * MS, 1 * MS, 0.0, True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_when_a_snapshot_is_due(why, unsaved_s, usual_s, save_s, is_due):
    assert is_save_due(unsaved_s, usual_s, save_s) == is_due


def test_one_delayed_snapshot_does_not_put_off_the_next_ones(monkeypatch):
    clock = itertools.count()
    took = iter([20 * US, 5 * MS, 20 * US, 20 * US, 20 * US])  # a busy machine delayed the second one
    moments = itertools.chain.from_iterable((start, start + next(took)) for start in clock)
    monkeypatch.setattr(replicas, "perf_counter", lambda: next(moments))
    game: Any = SimpleNamespace(save=lambda env: "state")
    replica = Replica(SimpleNamespace(game=game, is_replayable=True), play=game.save, saves_midway=True)  # type: ignore[arg-type]
    taken = []
    for _ in range(6):
        replica.saved = None
        save_if_due(replica, "shown", 3 * MS, begins_unseeded=False)
        taken.append(replica.saved is not None)
    assert taken == [False] + [True] * 5
