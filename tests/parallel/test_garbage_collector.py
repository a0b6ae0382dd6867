"""The garbage collector: paused while results are taken in, and as it was for everybody else."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from ragen.env import BaseEnv
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.parallel.collector import MANY, collector_let_through, collector_paused
from ragen.parallel.main_home import MainHome
from support.episodes import config


@pytest.fixture(autouse=True)
def collector_is_on() -> Iterator[None]:
    gc.enable()
    yield
    assert gc.isenabled()


class Asks(BaseEnv):
    """Tells whether the collector is on while it plays."""

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        return self.render()

    def step(self, action: Any) -> tuple[str, float, bool, dict[str, Any]]:
        return self.render(), 0.0, False, {"collector_is_on": gc.isenabled()}

    def render(self, mode: str | None = None) -> str:
        return "here"


def test_a_step_s_results_are_looked_at_once_it_is_over_and_not_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    where, looks = ["checking"], Counter[str]()

    def within(owner: type, name: str, place: str) -> None:
        function = getattr(owner, name)

        def watched(*given: Any) -> Any:
            where.append(place)
            try:
                return function(*given)
            finally:
                where.pop()

        monkeypatch.setattr(owner, name, watched)

    within(EnvStateManager, "_play", "taking in")
    within(MainHome, "run", "playing")
    looked = lambda phase, _: looks.update([where[-1]] if phase == "start" else [])  # noqa: E731
    settings = config({"Asks": {"env_type": f"{__name__}:Asks"}}, [("Asks", MANY)], use_multiprocessing=False)
    with EnvStateManager(settings) as manager:
        manager.reset()
        turn = {"actions": ["a"], "llm_response": "", "llm_raw_response": ""}
        gc.callbacks.append(looked)
        try:
            manager.step([{"env_id": env_id, **turn} for env_id in range(MANY)])
        finally:
            gc.callbacks.pop()
        told = [cache["history"][0]["info"]["collector_is_on"] for cache in manager.get_rollout_states()]
    assert all(told) and looks["playing"]  # an environment's own garbage goes when it always did
    assert not looks["taking in"]


def test_pauses_nest_and_what_raises_ends_them() -> None:
    with pytest.raises(KeyError), collector_paused(MANY), collector_paused(MANY):
        assert not gc.isenabled()
        with collector_let_through():
            assert gc.isenabled()
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_what_has_gathered_is_looked_at_before_the_wait_and_not_after_it() -> None:
    seen: list[str] = []
    gc.callbacks.append(lambda phase, _: seen.append(phase) if phase == "start" else None)
    try:
        with collector_paused(MANY):
            kept = [{"number": number} for number in range(2 * gc.get_threshold()[0])]
            assert not seen
            with collector_let_through():
                assert seen
    finally:
        gc.callbacks.pop()
    assert len(kept) > gc.get_threshold()[0]


def test_few_environments_leave_it_alone() -> None:
    with collector_paused(MANY - 1):
        assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with collector_paused(MANY), collector_let_through():
        assert not gc.isenabled()
    assert not gc.isenabled()
    gc.enable()


def test_the_last_of_several_threads_switches_it_on() -> None:
    begun, ends = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused(MANY):
            begun.set()
            ends.wait(10)

    thread = threading.Thread(target=other)
    with collector_paused(MANY):
        thread.start()
        assert begun.wait(10)
    assert not gc.isenabled()
    ends.set()
    thread.join()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_in_a_pause_has_its_collector_on() -> None:
    with collector_paused(MANY):
        if not (child := os.fork()):
            os._exit(0 if gc.isenabled() else 1)
    assert os.waitpid(child, 0)[1] == 0
