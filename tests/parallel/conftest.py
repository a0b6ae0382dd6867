"""Every test here leaves nothing behind: no process, no thread, no file descriptor. Many run for each kind of lane."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from envlanes.resources import temporary_folder
from support.episodes import BACKEND
from support.leftovers import descriptors, processes, until
from support.warm_supervisors import fork_server

KINDS = ["process", "executor"]


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each kind of workers in turn: what ``support.episodes.config`` asks for, in programs that are started too."""
    kind: str = request.param
    monkeypatch.setenv(BACKEND, kind)
    return kind


@pytest.fixture(autouse=True, scope="session")
def what_the_standard_library_keeps() -> None:
    """What executors want and what stays: its fork server, resource tracker, shared memory, and a temporary folder."""
    temporary_folder()
    fork_server()
    for method in ("forkserver", "spawn"):
        context: Any = multiprocessing.get_context(method)
        context.RawArray("b", 1)
        process = context.Process(target=os.getpid)
        process.start()
        process.join()
        process.close()


@pytest.fixture(autouse=True)
def nothing_left(few_objects_to_collect: None, what_the_standard_library_keeps: None) -> Iterator[None]:
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
