"""Fixtures of the engine's tests and of those of packages that stand on it; each ``conftest.py`` imports what it needs.

``support`` is a namespace package with a folder in each tree of tests: that beside this file needs the engine alone.
Both trees are on the path, hence in worker processes too, and an environment's type reads ``support.faulty_envs:Walk``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

KINDS = ["process", "executor"]
PRELOADED = [  # what tests import, for supervisors that stay; none of it starts a thread or changes the process
    "numpy",
    "pytest",
    "envlanes.gym.game",
    "envlanes.gym.lane_vector_env",
    "support.episodes",
    "support.faulty_envs",
    "support.forking",
    "support.gym_envs",
]


@pytest.fixture(autouse=True, scope="module")
def few_objects_to_collect() -> None:
    """Spare later collections, two around many a test, what was imported until now, torch and verl among it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def supervisors_that_stay(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of tests are started by supervisors that stay, unless their start and end is what is tested."""
    node = request.node
    if node.get_closest_marker("cold") and sys.platform == "linux":
        from support import leftovers

        leftovers.forgive_sandboxes()
    is_warm = node.get_closest_marker("processes") and not node.get_closest_marker("cold")
    if is_warm and sys.platform == "linux":  # elsewhere nobody counts what is left
        from envlanes.kinds.process import kind
        from support import warm_supervisors

        monkeypatch.setattr(kind, "Launcher", warm_supervisors.launcher)
        warm_supervisors.fork_server()


def end_supervisors() -> None:
    """End the supervisors that stayed, at the end of all tests."""
    if used := sys.modules.get("support.warm_supervisors"):
        used.end_all()


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each kind of workers in turn: what ``support.episodes.config`` asks for, in programs that are started too."""
    from support.episodes import BACKEND

    kind: str = request.param
    monkeypatch.setenv(BACKEND, kind)
    return kind


@pytest.fixture(scope="session")
def what_the_standard_library_keeps() -> None:
    """Processes that executors start once, and leave, are no leftovers of a test."""
    from support.leftovers import start_what_stays

    start_what_stays()


@pytest.fixture
def leaves_nothing(few_objects_to_collect: None, what_the_standard_library_keeps: None) -> Iterator[None]:
    """The test leaves nothing behind: no process, no thread, no file descriptor."""
    from support.leftovers import nothing_left

    with nothing_left():
        yield


@pytest.fixture
def kill_lanes() -> Callable[[Any], None]:
    """Kills all workers of a manager, of which there are some."""
    from support.leftovers import kill_workers

    def kill(manager: Any) -> None:
        assert kill_workers(manager.lane_stats())

    return kill
