"""Every test here leaves nothing behind: no process, no thread, no file descriptor. Many run for each kind of lane."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.episodes import BACKEND
from support.leftovers import kill_workers, nothing_left, start_what_stays

KINDS = ["process", "executor"]


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each kind of workers in turn: what ``support.episodes.config`` asks for, in programs that are started too."""
    kind: str = request.param
    monkeypatch.setenv(BACKEND, kind)
    return kind


@pytest.fixture(autouse=True, scope="session")
def what_the_standard_library_keeps() -> None:
    start_what_stays()


@pytest.fixture(autouse=True)
def leaves_nothing(few_objects_to_collect: None, what_the_standard_library_keeps: None) -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def kill_lanes() -> Callable[[Any], None]:
    """Kills all workers of a manager, of which there are some."""

    def kill(manager: Any) -> None:
        assert kill_workers(manager.lane_stats())

    return kill
