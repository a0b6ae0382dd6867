"""CAGE 2 environments in lanes beside the floor, two bare workers with a pipe each, and beside one process.

    python benchmarks/bench_cage2.py --cage2-path ../cage-challenge-2            25 of the real one, two workers
    python benchmarks/bench_cage2.py --simulator embedded --envs 25 --steps 300

The floor's workers hold half of the environments each, the challenge's own wrapper with nothing around it, and exchange
actions for observations and rewards. Contenders are alive at the same time and take turns, each with the same actions;
shown are the median time of a vector step, the median of its ratio to the floor's step of the same round, and the ratio
of the processor time that it took in all processes, which other work on the machine disturbs least. Episodes end within
the run, so that resets are part of it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil

from ragen.cage2 import ParallelEnvWrapper
from ragen.cage2.env import Cage2Config
from ragen.cage2.real import Cage2Game


class Bare:
    """One environment as its simulator has it."""

    def __init__(self, config: Cage2Config, seed: int) -> None:
        """Build it, and begin an episode."""
        self._game, self._most, self._steps = config().game, config.max_steps, 0
        self._env: Any = self._game.env if isinstance(self._game, Cage2Game) else self._game
        self._game.reset(seed)

    def step(self, action: int) -> tuple[Any, float]:
        """Step it, and reset it where its episode ends."""
        observation, reward, *_ = self._env.step(action)
        self._steps += 1
        if self._steps % self._most == 0:
            observation = self._env.reset() if isinstance(self._game, Cage2Game) else self._env.reset(self._steps)
        return observation, reward


def _serve(pipe: Any, config: Cage2Config, seeds: Sequence[int]) -> None:
    os.setsid()  # as lanes' workers: where others compute too, Linux gives each session its share
    envs = [Bare(config, seed) for seed in seeds]
    pipe.send(None)
    while (actions := pipe.recv()) is not None:
        pipe.send([env.step(action) for env, action in zip(envs, actions, strict=True)])


class Floor:
    """Bare workers that share the environments evenly.

    Attributes:
        pids: Their process ids.
    """

    def __init__(self, config: Cage2Config, count: int, workers: int) -> None:
        """Start them, and wait until their environments are built."""
        context = multiprocessing.get_context("spawn")
        shares = np.array_split(np.arange(count), workers)
        self._bounds = [(int(share[0]), int(share[-1]) + 1) for share in shares]
        pipes = [context.Pipe() for _ in shares]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(target=_serve, args=(theirs, config, share.tolist()), daemon=True)
            for (_, theirs), share in zip(pipes, shares, strict=True)
        ]
        for process in self._processes:
            process.start()
        self.pids = [process.pid for process in self._processes if process.pid]
        for pipe in self._pipes:
            pipe.recv()

    def step(self, actions: list[int]) -> tuple[Any, Any]:
        """Step all; arrays of observations and rewards."""
        for pipe, (first, end) in zip(self._pipes, self._bounds, strict=True):
            pipe.send(actions[first:end])
        each = [result for pipe in self._pipes for result in pipe.recv()]
        return np.array([shown for shown, _ in each], np.float32), np.array([reward for _, reward in each])

    def close(self) -> None:
        """End them."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()


class Clock:
    """Times the steps of one contender.

    Attributes:
        times: Seconds of each.
        cpu: Seconds of processor time of all of them, in this process and in its workers.
    """

    def __init__(self, step: Callable[[list[int]], Any], pids: Sequence[int]) -> None:
        """Time this, which is done in these processes beside this one."""
        self._step, self._processes = step, [psutil.Process(pid) for pid in (*pids, None)]
        self.times: list[float] = []
        self.cpu = 0.0

    def step(self, actions: list[int]) -> None:
        """Take one."""
        start, before = time.perf_counter(), self._cpu()
        self._step(actions)
        self.times.append(time.perf_counter() - start)
        self.cpu += self._cpu() - before

    def _cpu(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)


def measured(given: argparse.Namespace) -> dict[str, Clock]:
    """What each contender took; the same round at the same place."""
    config = Cage2Config.of(given.red, given.max_steps, given.simulator, given.cage2_path)
    alike = {"simulator": given.simulator, "cage2_path": given.cage2_path, "max_steps": given.max_steps}
    floor = Floor(config, given.envs, given.workers)
    lanes = {"lanes": {"workers": given.workers, "use_multiprocessing": True}, "one process": {"workers": 0}}
    ours = {
        name: ParallelEnvWrapper(given.envs, None, given.red, **alike, **each)  # type: ignore[arg-type]
        for name, each in lanes.items()
    }
    for envs in ours.values():
        envs.reset()
    clocks = {"floor": Clock(floor.step, floor.pids)}
    for name, envs in ours.items():
        clocks[name] = Clock(envs.step, [home.pid for home in envs.stats() if home.lane != "main" and home.pid])
    actions = np.random.default_rng(0).integers(145, size=(given.steps, given.envs)).tolist()
    for number, each in enumerate(actions):
        for clock in list(clocks.values())[:: 1 if number % 2 else -1]:
            clock.step(each)
    for envs in ours.values():
        envs.close()
    floor.close()
    return clocks


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--envs", type=int, default=25)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=90, help="vector steps")
    parser.add_argument("--max-steps", type=int, default=30, help="of an episode")
    parser.add_argument("--red", default="RedMeanderAgent")
    parser.add_argument("--simulator", default="auto", choices=("auto", "embedded", "cage2"))
    parser.add_argument("--cage2-path")
    given = parser.parse_args()
    found = measured(given)
    print(f"{given.envs} environments, {given.workers} workers, {given.steps} vector steps")
    print("| | ms a vector step | us an environment and step | of the floor | of its processor time |")
    print("|---|---|---|---|---|")
    floor = found["floor"]
    for name, clock in found.items():
        ratio = statistics.median(mine / least for mine, least in zip(clock.times, floor.times, strict=True))
        median = statistics.median(clock.times)
        numbers = f"{median * 1e3:.2f} | {median / given.envs * 1e6:.0f} | {ratio:.2f} | {clock.cpu / floor.cpu:.2f}"
        print(f"| {name} | {numbers} |")


if __name__ == "__main__":
    main()
