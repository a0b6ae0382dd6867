"""The ways of stepping many environments that are compared: ours, other packages', and the floor.

A contender is built ready to step, ``step()`` plays one vector turn (one action in every environment) and returns its
seconds, ``pids()`` names its processes, ``close()`` ends it. Other packages step bare environments; ours do a manager's
whole work (checks, rollout cache, journal), which is to their advantage.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import string
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import psutil
from workload import Work, WorkConfig, inputs, manager


class Contender(ABC):
    """One way of stepping."""

    @abstractmethod
    def step(self) -> float:
        """Play one vector turn; seconds it took."""

    @abstractmethod
    def close(self) -> None:
        """End it."""


class Timed(Contender):
    """A way of stepping whose time is taken here."""

    @abstractmethod
    def play(self) -> Any:
        """Play one vector turn."""

    def step(self) -> float:
        """Play one vector turn; seconds it took."""
        start = time.perf_counter()
        self.play()
        return time.perf_counter() - start


class Managed(Timed):
    """``EnvStateManager``, sequential, parallel or ``auto``."""

    def __init__(
        self,
        mode: Any,
        envs: int,
        config: dict[str, Any],
        workers: int | None,
        group_size: int = 8,
        backend: str = "process",
    ) -> None:
        """Build it, and let ``auto`` see some episodes."""
        settings = {"use_multiprocessing": mode, "max_workers": workers, "backend": backend}
        self._manager = manager(envs, config, group_size=group_size, **settings)
        self._inputs = inputs(envs)
        self._manager.reset()
        if mode == "auto":
            for _ in range(8):
                for _ in range(3):
                    self.step()
                self._manager.reset()

    def reset(self) -> float:
        """Begin a new episode; seconds it took."""
        start = time.perf_counter()
        self._manager.reset()
        return time.perf_counter() - start

    def play(self) -> None:
        """Play one vector turn."""
        self._manager.step(self._inputs)

    def close(self) -> None:
        """End it."""
        self._manager.close()


class Floor(Contender):
    """The same work split over bare processes that exchange nothing while they work."""

    def __init__(self, envs: int, config: dict[str, Any], processes: int) -> None:
        """Start a sequential manager in each process."""
        self._children = _start_shares(_floor_share, envs, config, processes)
        for _, pipe in self._children:
            pipe.recv()

    def step(self) -> float:
        """The slowest process's own time for its share."""
        for _, pipe in self._children:
            pipe.send(True)
        return max([pipe.recv() for _, pipe in self._children])

    def close(self) -> None:
        """End it."""
        for child, pipe in self._children:
            pipe.send(False)
            child.join()


def _start_shares(target: Callable[..., None], envs: int, config: dict[str, Any], processes: int) -> list[Any]:
    """Start processes with an even share of the environments each; pairs of a process and a pipe to it."""
    context = multiprocessing.get_context("spawn")
    children = []
    processes = min(processes, envs)
    for index in range(processes):
        ours, theirs = context.Pipe()
        share = envs * (index + 1) // processes - envs * index // processes
        child = context.Process(target=target, args=(theirs, share, config), daemon=True)
        child.start()
        children.append((child, ours))
    return children


def _floor_share(pipe: Any, envs: int, config: dict[str, Any]) -> None:
    share = Managed(False, envs, config, 1, group_size=1)
    pipe.send(True)
    while pipe.recv():
        pipe.send(share.step())
    share.close()


class BarePipes(Timed):
    """Workers on pipes that are told to step their share, and answer when they have: no manager's work at all."""

    def __init__(self, envs: int, config: dict[str, Any], processes: int) -> None:
        """Start the workers."""
        self._children = _start_shares(_bare_share, envs, config, processes)
        self.play()

    def play(self) -> None:
        """Play one vector turn."""
        for _, pipe in self._children:
            pipe.send(True)
        for _, pipe in self._children:
            pipe.recv()

    def close(self) -> None:
        """End them."""
        for child, pipe in self._children:
            pipe.send(False)
            child.join()


def _bare_share(pipe: Any, envs: int, config: dict[str, Any]) -> None:
    share = _Share(envs, config)
    while pipe.recv():
        pipe.send(share.step())


class GymnasiumAsync(Timed):
    """gymnasium's ``AsyncVectorEnv``: a process per environment."""

    def __init__(self, envs: int, config: dict[str, Any]) -> None:
        """Start a process per environment."""
        import gymnasium

        self._vector = gymnasium.vector.AsyncVectorEnv([lambda: _as_gymnasium(config)] * envs, context="forkserver")
        self._vector.reset(seed=0)
        self._actions = [0] * envs

    def play(self) -> None:
        """Play one vector turn."""
        self._vector.step(self._actions)

    def close(self) -> None:
        """End it."""
        self._vector.close()


class StableBaselines(Timed):
    """Stable-Baselines3's ``SubprocVecEnv``: a process per environment."""

    def __init__(self, envs: int, config: dict[str, Any]) -> None:
        """Start a process per environment."""
        import numpy as np
        from stable_baselines3.common.vec_env import SubprocVecEnv

        self._vector = SubprocVecEnv([lambda: _as_gymnasium(config)] * envs, start_method="forkserver")
        self._vector.reset()
        self._actions = np.zeros(envs, dtype=int)

    def play(self) -> None:
        """Play one vector turn."""
        self._vector.step(self._actions)

    def close(self) -> None:
        """End it."""
        self._vector.close()


def _as_gymnasium(config: dict[str, Any]) -> Any:
    import gymnasium

    class Wrapped(gymnasium.Env):
        action_space = gymnasium.spaces.Discrete(4)
        observation_space = gymnasium.spaces.Text(200, charset=string.printable)

        def __init__(self) -> None:
            self.work = Work(WorkConfig(**config))

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
            return self.work.reset(seed), {}

        def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
            observation, reward, done, info = self.work.step(action)
            return observation, reward, done, False, info

    return Wrapped()


class RayActors(Timed):
    """Ray actors, each with some of the environments."""

    def __init__(self, envs: int, config: dict[str, Any], actors: int) -> None:
        """Start the actors."""
        import ray

        if not ray.is_initialized():
            ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
        self._ray = ray
        actor = ray.remote(num_cpus=0)(_Share)
        shares = [envs * (index + 1) // actors - envs * index // actors for index in range(actors)]
        self._actors = [actor.remote(share, config) for share in shares]
        self.step()

    def play(self) -> None:
        """Play one vector turn."""
        self._ray.get([actor.step.remote() for actor in self._actors])

    def close(self) -> None:
        """End the actors, and Ray with them."""
        self._ray.shutdown()


class _Share:
    def __init__(self, envs: int, config: dict[str, Any]) -> None:
        self._envs = [Work(WorkConfig(**config)) for _ in range(envs)]

    def step(self) -> list[Any]:
        return [env.step("Up") for env in self._envs]


class PlainPool(Timed):
    """A ``ProcessPoolExecutor`` with a task per environment; environments travel to and fro with each."""

    def __init__(self, envs: int, config: dict[str, Any], workers: int) -> None:
        """Start the pool."""
        self._pool = ProcessPoolExecutor(workers, multiprocessing.get_context("forkserver"))
        self._envs = [Work(WorkConfig(**config)) for _ in range(envs)]
        self.step()

    def play(self) -> None:
        """Play one vector turn."""
        self._envs = [env for env, _ in self._pool.map(_step_and_return, self._envs)]

    def close(self) -> None:
        """End the pool."""
        self._pool.shutdown()


def _step_and_return(env: Work) -> tuple[Work, Any]:
    return env, env.step("Up")


class Threads(Timed):
    """A thread pool."""

    def __init__(self, envs: int, config: dict[str, Any], workers: int) -> None:
        """Start the threads."""
        self._pool = ThreadPoolExecutor(workers)
        self._envs = [Work(WorkConfig(**config)) for _ in range(envs)]

    def play(self) -> None:
        """Play one vector turn."""
        list(self._pool.map(lambda env: env.step("Up"), self._envs))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


Builders = dict[str, Callable[[], Any]]


def companies(envs: int, config: dict[str, Any], workers: int, most_processes: int) -> list[Builders]:
    """Contenders by name, ready to be built, in companies that are measured together.

    The floor and the sequential manager are in every company; Ray, whose own processes never quite rest, keeps to
    itself. Those with a process per environment are only there up to a number of environments; if it is negative, no
    others than ours are.
    """
    base: Builders = {
        "floor": lambda: Floor(envs, config, workers),
        "sequential": lambda: Managed(False, envs, config, workers),
    }
    few = envs <= most_processes
    ours: Builders = {
        "ours true": lambda: Managed(True, envs, config, workers),
        "ours auto": lambda: Managed("auto", envs, config, workers),
        "ours executor": lambda: Managed(True, envs, config, workers, backend="executor"),
        "bare pipes": lambda: BarePipes(envs, config, workers),
    }
    pools: Builders = {
        "plain pool": lambda: PlainPool(envs, config, workers),
        "threads": lambda: Threads(envs, config, workers),
    }
    if few:
        pools["gymnasium async"] = lambda: GymnasiumAsync(envs, config)
        if _importable("stable_baselines3"):
            pools["sb3 subproc"] = lambda: StableBaselines(envs, config)
    if most_processes < 0:
        return [base | ours]
    found = [base | ours, base | pools]
    if _importable("ray"):
        found.append(base | {"ray per core": lambda: RayActors(envs, config, workers)})
        if few:
            found.append(base | {"ray per env": lambda: RayActors(envs, config, envs)})
    return found


def in_turn(built: list[Contender], number: int, between: float = 0.0) -> list[float]:
    """Seconds of a vector turn of each, in another order in each round: what one leaves in caches slows the next.

    Args:
        built: The contenders.
        number: Of the round.
        between: Seconds that the main process works before each turn, as it does while a model generates.
    """
    order = random.Random(number).sample(range(len(built)), len(built))
    seconds = {}
    for index in order:
        work(between)
        seconds[index] = built[index].step()
    return [seconds[index] for index in range(len(built))]


def work(seconds: float) -> None:
    """Keep this process busy with memory and objects of its own, as a trainer does between two turns."""
    deadline, kept = time.perf_counter() + seconds, bytearray(8 << 20)
    while time.perf_counter() < deadline:
        kept[::64] = bytes(len(kept) // 64)
        sorted(str(number) for number in range(2000))


def _importable(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


def memory_mb() -> float:
    """Proportional set size of this process and all that it started, in MB."""
    this = psutil.Process()
    total = 0
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 1e6


if sys.platform != "linux":
    raise SystemExit("the benchmarks read proportional memory, which only Linux tells.")
