"""Ctrl-C at any moment of a call of any surface: it has not happened, and the same call again gives the same run."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from envlanes.gym import LaneVectorEnv
from ragen.cage2 import ParallelEnvWrapper
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.meta import make_parallel_env
from ragen.turns.container import MultiProcessEnvironmentContainer
from support.episodes import config, freeze, inputs

pytestmark = pytest.mark.usefixtures("leaves_nothing")

TURNS, INTERRUPTS, WORKERS = 12, 20, 2
Do = Callable[[Callable[[], Any]], Any]


class Walks(gym.Env):
    """Draws its steps, takes a moment for each, and ends now and then."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (200,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.np_random.random(200), {}

    def step(self, action: int) -> Any:
        self.count += 1
        time.sleep(2e-4)
        return self.np_random.random(200), float(self.count), self.count == 5, False, {"count": self.count}


def of_engine(backend: str) -> dict[str, Any]:
    """The settings of an engine that plays in workers of this kind; "" for the main process."""
    return {"use_lanes": True, "max_workers": WORKERS, "backend": backend} if backend else {"use_lanes": False}


def of_vector(backend: str) -> dict[str, Any]:
    return {"workers": WORKERS, "backend": backend} if backend else {"workers": 0}


def manager(backend: str, do: Do) -> Any:
    tags = {"Walk": {"env_type": "support.faulty_envs:Walk"}, "Draws": {"env_type": "support.faulty_envs:GlobalDraws"}}
    where = {"use_multiprocessing": True, "max_workers": WORKERS, "backend": backend} if backend else {}
    given = config(tags, [("Walk", 2), ("Draws", 1)], **{"use_multiprocessing": False, **where})
    with EnvStateManager(given) as envs:
        active = do(envs.reset)
        for turn in range(4):
            given = inputs([cache["env_id"] for cache in active], turn)
            active = do(lambda given=given: envs.step(given))
        return freeze(envs.get_rollout_states())


def vector(backend: str, do: Do) -> Any:
    envs = LaneVectorEnv([Walks] * 6, **of_vector(backend))
    seen = [do(lambda: envs.reset(seed=1))[0].tolist()]
    for turn in range(TURNS):
        seen.append([np.asarray(each).tolist() for each in do(lambda: envs.step(np.zeros(6, int)))[:3]])
        if turn == 6:
            seen.append(do(lambda: envs.reset())[0].tolist())
    envs.close()
    return seen


def container(backend: str, do: Do) -> Any:
    with MultiProcessEnvironmentContainer("frozen_lake", 3, 2, 7, settings=of_engine(backend)) as envs:
        seen = [do(envs.reset)]
        for turn in range(TURNS):
            seen.append(do(lambda turn=turn: envs.step([1 + (turn + each) % 4 for each in range(6)])))
            if turn == 6:
                seen.append(do(envs.reset))
        return seen


def meta(backend: str, do: Do) -> Any:
    with make_parallel_env("ragen/SparsePointRobot-v0", 2, 4, seed=3, n_tasks=5, settings=of_engine(backend)) as envs:
        seen = [np.array(do(envs.reset_all)).tolist()]
        for turn in range(TURNS):
            observations, rewards, *_ = do(lambda: envs.step_all([np.full(2, 0.1)] * 4))
            seen.append([np.array(observations).tolist(), rewards])
            if turn % 3 == 2:
                seen.append(np.array(do(envs.reset_all)).tolist())
                for remote in envs.remotes:
                    remote.send(("step", {"action": np.full(2, -0.1)}))
                seen.append([np.array(do(remote.recv)[1][0]).tolist() for remote in envs.remotes])
        return seen


def cage2(backend: str, do: Do) -> Any:
    with ParallelEnvWrapper(4, simulator="embedded", max_steps=5, seed=4, **of_vector(backend)) as envs:
        seen = [do(envs.reset).tolist()]
        for turn in range(TURNS):
            observations, rewards, dones, _ = do(lambda turn=turn: envs.step([turn % 145] * 4))
            seen.append([observations.tolist(), rewards.tolist(), dones.tolist()])
            if turn == 6:
                seen.append(do(envs.reset).tolist())
        return seen


class Interrupted:
    """Does calls with a SIGINT at a random moment of each, and again until they have happened."""

    def __init__(self) -> None:
        self.count, self._is_inside, self._taken, self._chance = 0, False, 0.004, random.Random(5)
        self._came = threading.Event()

    def handler(self, *_: Any) -> None:
        self._came.set()
        if self._is_inside:
            raise KeyboardInterrupt

    def __call__(self, call: Callable[[], Any]) -> Any:
        done: list[Any] = []
        while not done:
            moment = self._chance.uniform(0, 1.2) * self._taken
            timer = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGINT))
            self._came.clear()
            timer.start()
            start = time.perf_counter()
            try:
                self._is_inside = True
                done.append(call())
                self._is_inside = False
                self._taken = min(0.05, 0.8 * self._taken + 0.2 * (time.perf_counter() - start))
            except KeyboardInterrupt:
                self._is_inside = False
                self.count += 1
            timer.join()
            self._came.wait(1.0)  # another thread may have got it, which a busy machine lets run late
            if self.count >= INTERRUPTS and not done:
                done.append(call())
        return done[0]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("surface", "backend"),
    [
        *itertools.product((manager, vector, container, meta, cage2), ("", "process")),
        *itertools.product((manager, vector), ("executor",)),
    ],
)
def test_what_was_interrupted_and_called_again_equals_the_uninterrupted_run(
    surface: Callable[[str, Do], Any], backend: str
) -> None:
    expected = surface(backend, lambda call: call())
    do = Interrupted()
    before = signal.signal(signal.SIGINT, do.handler)
    try:
        assert surface(backend, do) == expected
    finally:
        signal.signal(signal.SIGINT, before)
