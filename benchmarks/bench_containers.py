"""The cost of a container's step, beside a process and a pipe for each environment.

    python benchmarks/bench_containers.py                  a table
    python benchmarks/bench_containers.py --envs 8 --picture docs/parallel_envs.png

FrozenLakes are stepped into a wall: next to no work, so what is measured is the way there and back. Start is the time
to the end of the first reset; memory is what all processes but this one hold of their own (USS), at the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psutil

from ragen.env.frozen_lake.config import FrozenLakeEnvConfig
from ragen.env.frozen_lake.env import FrozenLakeEnv
from ragen.turns.container import MultiProcessEnvironmentContainer

STEPS = 60
LAKE: dict[str, Any] = {"size": 8, "is_slippery": False}


class Figures(NamedTuple):
    """Of one way to play; seconds, milliseconds a step of all environments (median), and MB."""

    start: float
    step: float
    memory: float


def _serve(pipe: Any) -> None:
    """One environment in a process of its own."""
    env = FrozenLakeEnv(FrozenLakeEnvConfig(**LAKE))
    while True:
        kind, value = pipe.recv()
        if kind == "close":
            return
        pipe.send(env.reset(seed=value) if kind == "reset" else env.step(value))


class ProcessEach:
    """A process and a pipe for each environment."""

    def __init__(self, count: int) -> None:
        """Start them."""
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(count)]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [context.Process(target=_serve, args=(theirs,), daemon=True) for _, theirs in pipes]
        for process in self._processes:
            process.start()

    def reset(self) -> list[Any]:
        """Reset all."""
        return self._ask("reset", range(len(self._pipes)))

    def step(self, actions: Sequence[int]) -> list[Any]:
        """Step all."""
        return self._ask("step", actions)

    def _ask(self, kind: str, values: Sequence[int]) -> list[Any]:
        for pipe, value in zip(self._pipes, values, strict=True):
            pipe.send((kind, value))
        return [pipe.recv() for pipe in self._pipes]

    def close(self) -> None:
        """End all."""
        for pipe in self._pipes:
            pipe.send(("close", None))
        for process in self._processes:
            process.join()


def in_lanes(workers: int) -> Callable[[int], Any]:
    """A container in so many workers; 0 for none."""
    settings = {"use_lanes": workers > 0, "max_workers": max(1, workers)}
    return lambda count: MultiProcessEnvironmentContainer("frozen_lake", count, 1, 0, LAKE, settings=settings)


WAYS: dict[str, Callable[[int], Any]] = {
    "a process each": ProcessEach,
    "2 workers": in_lanes(2),
    "main": in_lanes(0),
}


def measure(make: Callable[[int], Any], count: int) -> Figures:
    """Play some steps."""
    begin = time.perf_counter()
    envs = make(count)
    try:
        envs.reset()
        start = time.perf_counter() - begin
        times = []
        for number in range(STEPS):
            if number % 10 == 0:
                envs.reset()
            before = time.perf_counter()
            envs.step([1] * count)  # into the wall at the left: no lake ends so
            times.append(1000 * (time.perf_counter() - before))
        children = psutil.Process().children(recursive=True)
        return Figures(start, statistics.median(times), sum(each.memory_full_info().uss for each in children) / 2**20)
    finally:
        envs.close()


def main() -> None:
    """Measure, print, and draw if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--picture", help="file to draw the memory and the time of a step into")
    arguments = parser.parse_args()
    found: dict[str, list[Figures]] = {name: [] for name in WAYS}
    print("environments  way              start s  step ms  memory MB")
    for count in arguments.envs:
        for name, make in WAYS.items():
            figures = measure(make, count)
            found[name].append(figures)
            print(f"{count:12}  {name:15} {figures.start:8.2f} {figures.step:8.2f} {figures.memory:10.0f}", flush=True)
    if arguments.picture:
        draw(arguments.picture, arguments.envs, found)


def draw(path: str, counts: Sequence[int], found: dict[str, list[Figures]]) -> None:
    """Draw each figure over the number of environments."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(10, 3), layout="constrained")
    titles = {"start": "start, s", "step": "a step of all, ms", "memory": "memory of workers, MB"}
    for axis, (field, title) in zip(axes, titles.items(), strict=True):
        for name, figures in found.items():
            axis.plot(counts, [getattr(each, field) for each in figures], marker="o", label=name)
        axis.set(title=title, xlabel="environments", xscale="log", xticks=counts, xticklabels=counts)
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
