"""Every test here leaves no process behind."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from support.leftovers import processes, until


@pytest.fixture(autouse=True)
def no_process_left(few_objects_to_collect: None) -> Iterator[None]:
    """Fail a test that leaves a worker behind."""
    before = processes()
    yield
    gc.collect()

    def left() -> dict[int, str]:
        return {pid: title for pid, title in processes().items() if pid not in before}

    assert until(lambda: not left()), f"left behind: {left()}"


@pytest.fixture
def kill_lanes() -> Callable[[Any], int]:
    """Kills all workers of a container, as an outsider does, and waits until they are gone; how many they were."""

    def kill(envs: Any) -> int:
        pids = [lane.pid for lane in envs.stats() if lane.lane != "main" and lane.pid]
        for pid in pids:
            with suppress(ProcessLookupError):  # killed before, and not needed since
                os.kill(pid, signal.SIGKILL)
        assert until(lambda: not set(pids) & set(processes()))
        return len(pids)

    return kill
