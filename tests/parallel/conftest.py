"""Every test here has to leave nothing behind: no process, no thread, no file descriptor."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from support.leftovers import descriptors, processes, until


@pytest.fixture(autouse=True, scope="session")
def few_objects_to_collect() -> None:
    """Spare the collections around every test what other tests have imported, torch and verl among it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left(few_objects_to_collect: None) -> Iterator[None]:
    """Fail a test that leaves a process, a thread or a descriptor behind."""
    gc.collect()
    before = processes(), set(threading.enumerate()), descriptors()
    yield
    gc.collect()

    def left() -> dict[str, object]:
        new_processes = {pid: title for pid, title in processes().items() if pid not in before[0]}
        new = {
            "processes": new_processes,
            "threads": set(threading.enumerate()) - before[1],
            "descriptors": descriptors() - before[2],
        }
        return {kind: what for kind, what in new.items() if what}

    assert until(lambda: not left()), f"left behind: {left()}"


@pytest.fixture
def kill_lanes() -> Callable[[object], None]:
    """Kills all workers of a manager, as an outsider does, and waits until they are gone."""

    def kill(manager: object) -> None:
        pids = [lane.pid for lane in manager.lane_stats() if lane.lane != "main" and lane.pid]  # type: ignore[attr-defined]
        assert pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert until(lambda: not set(pids) & set(processes()))

    return kill
