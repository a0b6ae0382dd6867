"""``overlap_waits``: environments of a lane that wait at the same time, with the results of those that take turns."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ragen.env.base import BaseEnv
from ragen.errors import ConfigError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.parallel.engine import EnvEngine
from ragen.parallel.environments import EnvFailed
from ragen.parallel.episode import program
from ragen.parallel.episode.overlap import Job, Overlap
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import Turn
from ragen.parallel.settings import Settings
from support.episodes import config
from support.leftovers import until

ENVS = 6
_lock = threading.Lock()
_present: set[int] = set()


@dataclass
class MeetsConfig:
    """So many wait together in each step; what it does wrong at step ``at``, always or once."""

    company: int = ENVS
    fault: str = ""
    at: int = 1
    once: str = ""


class Meets(BaseEnv):
    """Counts. In a worker its steps wait for company; it keeps how many came at most, and in which threads it ran."""

    config_class = MeetsConfig
    uses_global_rng = False

    def __init__(self, config: MeetsConfig) -> None:
        self.config = config
        self.count = self.steps = self.most = 0
        self.threads = {threading.get_ident()}

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.count, self.steps = seed or 0, 0
        self.threads.add(threading.get_ident())
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.steps += 1
        self.threads.add(threading.get_ident())
        if program.in_worker:
            self._wait()
            if self.steps == self.config.at:
                self._misbehave()
        self.count += len(action)
        return self.render(), float(self.count), self.steps == 6, {"count": self.count}

    def _wait(self) -> None:
        with _lock:
            _present.add(id(self))
        until(lambda: len(_present) >= self.config.company, 0.5)
        self.most = max(self.most, len(_present))
        if self.most < self.config.company:  # nobody came: the others are elsewhere
            with _lock:
                _present.discard(id(self))

    def _misbehave(self) -> None:
        if self.config.once:
            if Path(self.config.once).exists():
                return
            Path(self.config.once).touch()
        if self.config.fault == "hangs":
            threading.Event().wait()
        if self.config.fault == "raises":
            raise ValueError("boom")
        if self.config.fault == "exits":
            os._exit(3)

    def render(self, mode: str | None = None) -> str:
        return f"count {self.count} after {self.steps}"

    def close(self) -> None:
        self.threads.add(threading.get_ident())


def engine(
    use_lanes: bool = True, overlap: bool = True, backend: str = "process", company: int = ENVS, **faulty: Any
) -> EnvEngine:
    """Six environments in one lane, the third perhaps faulty."""
    configs = [MeetsConfig(company, **(faulty if env_id == 2 else {})) for env_id in range(ENVS)]
    specs = [EnvSpec.of(Meets, configs[env_id], env_id, tag="Meets", overlap_waits=overlap) for env_id in range(ENVS)]
    patience = {"step_timeout": 0.5} if faulty.get("fault") == "hangs" else {}
    return EnvEngine(specs, Settings.of(use_lanes=use_lanes, backend=backend, max_workers=1, **patience))


def play(engine: EnvEngine, turns: int = 3, kill_at: int = -1) -> list[Any]:
    shown: list[Any] = [engine.reset({env_id: 10 * env_id for env_id in range(ENVS)})]
    for turn in range(turns):
        if turn == kill_at:
            os.kill(next(lane.pid for lane in engine.stats() if lane.lane == "worker 0" and lane.pid), signal.SIGKILL)
        shown.append(engine.play({env_id: Turn(("a" * (env_id + turn),), 10) for env_id in range(ENVS)}))
    return shown


@pytest.fixture(scope="module")
def honest() -> list[Any]:
    with engine(use_lanes=False) as alone:
        return play(alone)


@pytest.mark.parametrize("backend", ["process", "executor"])
def test_they_wait_at_the_same_time_each_in_a_thread_of_its_own(backend: str, honest: list[Any]) -> None:
    with engine(backend=backend) as overlapped:
        assert play(overlapped) == honest
        assert set(overlapped.read(range(ENVS), "most").values()) == {ENVS}
        threads = overlapped.read(range(ENVS), "threads")
        assert len(set.union(*threads.values())) == ENVS and all(len(own) == 1 for own in threads.values())
        main, lane = overlapped.stats()
        assert main.turns == 0 and lane.turns == 3 * ENVS


def test_without_it_they_take_turns(honest: list[Any]) -> None:
    with engine(overlap=False) as one_by_one:
        specs = one_by_one.specs()
        assert not any(spec.overlap_waits for spec in specs)
        shown = [one_by_one.reset({env_id: 10 * env_id for env_id in range(ENVS)})]
        assert shown == honest[:1]
        threads = one_by_one.read(range(ENVS), "threads")
        assert len(set.union(*threads.values())) == 1


def test_a_killed_worker_is_replaced_and_all_are_replayed_at_the_same_time(honest: list[Any]) -> None:
    with engine() as overlapped:
        assert play(overlapped, kill_at=2) == honest
        assert set(overlapped.read(range(ENVS), "most").values()) == {ENVS}


@pytest.mark.parametrize(
    ("fault", "says"),
    [("raises", "ValueError: boom"), ("hangs", "timed out after 0.5 s"), ("exits", "its process exited with code 3")],
)
def test_a_fault_costs_its_own_environment_at_most(fault: str, says: str, honest: list[Any], tmp_path: Path) -> None:
    with engine(company=1, fault=fault, at=2) as overlapped:
        shown = play(overlapped)
    failed = shown[2].pop(2)
    assert isinstance(failed, EnvFailed) and says in failed.text
    for got, expected in zip(shown, honest, strict=True):
        assert {key: got[key] for key in got if key != 2} == {key: expected[key] for key in expected if key != 2}
    with engine(company=1, fault=fault, at=2, once=str(tmp_path / fault)) as overlapped:
        assert play(overlapped) == honest


def test_it_is_refused_where_threads_would_share_generators() -> None:
    with pytest.raises(ConfigError, match=r"overlap_waits = True: .* does not declare `uses_global_rng = False`"):
        EnvSpec.of(type("Draws", (Meets,), {"uses_global_rng": True}), overlap_waits=True)
    tags = {"Good": {"env_type": "support.dice_env:Dice", "overlap_waits": True}}
    with pytest.raises(ConfigError, match=r"custom_envs.Good.overlap_waits = True: "):
        EnvStateManager(config(tags, [("Good", 2)]))
    with pytest.raises(ConfigError, match=r"custom_envs.Good.overlap_waits = 'yes': expected true or false."):
        EnvStateManager(config({"Good": {**tags["Good"], "overlap_waits": "yes"}}, [("Good", 2)]))


def test_the_position_is_that_of_whoever_has_been_at_work_for_longest() -> None:
    told: list[tuple[int, float]] = []
    overlap = Overlap(lambda place, since: told.append((place, since)))
    begun, go = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]

    def work(place: int) -> int:
        begun[place].set()
        go[place].wait()
        return 10 * place

    def conduct() -> None:
        for event in begun:
            event.wait()
        first = told[-1][0]
        go[first].set()
        until(lambda: told[-1][0] == 1 - first)
        go[1 - first].set()

    conductor = threading.Thread(target=conduct)
    conductor.start()
    done = overlap.run([Job(place, place, partial(work, place)) for place in range(2)])
    conductor.join()
    for env_id in range(2):
        overlap.end(env_id, lambda: None)
    assert {place: each.value for place, each in done.items()} == {0: 0, 1: 10}
    assert {place for place, _ in told} == {0, 1}
    assert [since for _, since in told] == sorted(since for _, since in told)
