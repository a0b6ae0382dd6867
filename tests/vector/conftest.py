"""Every test here leaves nothing behind: no process, no thread, no file descriptor."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from envlanes.gym import LaneVectorEnv
from envlanes.resources import temporary_folder
from support.leftovers import descriptors, processes, until
from support.warm_supervisors import fork_server


@pytest.fixture(autouse=True, scope="session")
def what_the_standard_library_keeps() -> None:
    """Its fork server, resource tracker and heap of shared memory stay once they were needed."""
    temporary_folder()
    fork_server()
    context = multiprocessing.get_context("forkserver")
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
        new = {
            "processes": {pid: title for pid, title in processes().items() if pid not in before[0]},
            "threads": set(threading.enumerate()) - before[1],
            "descriptors": descriptors() - before[2],
        }
        return {kind: what for kind, what in new.items() if what}

    assert until(lambda: not left()), f"left behind: {left()}"


@pytest.fixture
def lanes() -> Iterator[Callable[..., LaneVectorEnv]]:
    """Makes vector environments with two workers, which are closed at the end."""
    made: list[LaneVectorEnv] = []

    def make(env_fns: list, **given: object) -> LaneVectorEnv:
        made.append(LaneVectorEnv(env_fns, **{"workers": 2, **given}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()
