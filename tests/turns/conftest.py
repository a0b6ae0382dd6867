"""Every test here leaves no process behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.leftovers import kill_workers, processes, until


@pytest.fixture(autouse=True)
def no_process_left(few_objects_to_collect: None) -> Iterator[None]:
    """Fail a test that leaves a worker behind."""
    before = set(processes())
    yield
    gc.collect()
    assert until(lambda: not set(processes()) - before), f"left behind: {set(processes()) - before}"


@pytest.fixture
def kill_lanes() -> Callable[[Any], int]:
    """Kills all workers of a container; how many they were."""
    return lambda envs: kill_workers(envs.stats())
