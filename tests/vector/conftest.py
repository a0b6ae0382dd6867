"""Every test here leaves nothing behind: no process, no thread, no file descriptor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from envlanes.gym import LaneVectorEnv
from support.leftovers import nothing_left, start_what_stays


@pytest.fixture(autouse=True, scope="session")
def what_the_standard_library_keeps() -> None:
    start_what_stays()


@pytest.fixture(autouse=True)
def leaves_nothing(few_objects_to_collect: None, what_the_standard_library_keeps: None) -> Iterator[None]:
    with nothing_left():
        yield


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
