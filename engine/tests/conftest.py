"""The engine's tests, which need the engine, pytest, and the extras of some files; every one leaves nothing behind.

In the repository the settings are the root's (``pyproject.toml``, ``conftest.py``); a copy of this folder
runs by itself.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.fixtures import (  # noqa: F401 (fixtures)
    backend,
    end_supervisors,
    few_objects_to_collect,
    kill_lanes,
    leaves_nothing,
    supervisors_that_stay,
    what_the_standard_library_keeps,
)

if TYPE_CHECKING:
    from envlanes.gym import LaneVectorEnv

collect_ignore = [] if find_spec("gymnasium") else ["vector"]
FOLDER = Path(__file__).resolve().parent
MARKERS = ("contract", "slow", "processes", "cold", "cluster", "timeout")  # see pyproject.toml


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker("processes")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    end_supervisors()


@pytest.fixture(autouse=True)
def nothing_is_left(leaves_nothing):  # noqa: F811
    """Of any test here."""


@pytest.fixture
def lanes():
    """Makes vector environments with two workers, which are closed at the end."""
    from envlanes.gym import LaneVectorEnv

    made: list[LaneVectorEnv] = []

    def make(env_fns, **given):
        made.append(LaneVectorEnv(env_fns, **{"workers": 2, **given}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(params=["process", "executor", "main"])
def make(request, monkeypatch):
    """Makes engines in main and over each kind of workers, closed in the end; nodes are simulated."""
    from envlanes.engine import Engine
    from envlanes.kinds import ray_cluster
    from envlanes.settings import Settings
    from support.simulated_nodes import SimulatedCluster

    made: list[Engine] = []
    patient = {"step_timeout": 20.0, "reset_timeout": 20.0, "startup_timeout": 20.0, "max_workers": 2}
    monkeypatch.setattr(ray_cluster, "RayCluster", SimulatedCluster)
    where = {"use_lanes": False} if request.param == "main" else {"use_lanes": True, "backend": request.param}

    def make_one(specs=(), **settings):
        made.append(Engine(specs, Settings.of(**{**patient, **where, **settings})))
        return made[-1]

    yield make_one
    for engine in made:
        engine.close()
