"""Does ``auto`` choose well? Sequential, parallel and ``auto`` over a sweep of turn costs and numbers of environments.

``python benchmarks/bench_auto.py [--repeats 25]`` prints, for each point, the medians beside the floor, which is the
same work split over bare processes that exchange nothing (two virtual processors are not always two), and the two
promised ratios: ``auto`` to sequential (at most 1.10), and to the better of both. Turns that take less than a
millisecond are repeated until they have taken so long as the others: the median of a few of them says little.

Then come two goals of their own (``--goals`` prints nothing else):

- a whole first episode, the start of the workers included: ``auto`` takes at most 1.25 times what ``true`` takes;
- environments that wait: ``auto`` with ``max_workers: null`` takes at most 1.5 times what 16 workers take.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import time
from typing import Any

from rich.console import Console
from rich.table import Table
from workload import inputs, loops, manager

LEAST = 1e-3  # seconds of a turn below which there are more repeats, up to ten times as many
COSTS = (2, 5, 15, 50, 200, 1000)
WAIT_S, WAITING = 0.01, 16  # seconds of a turn that waits, and workers for it
ENVS = (8, 32, 128, 512)
MANY, LONG, TURNS = 32, 20_000, 6  # environments, microseconds of a turn, and turns of an episode, for the goals


class Managed:
    """``EnvStateManager``, sequential, parallel or ``auto``."""

    def __init__(
        self,
        mode: Any,
        envs: int,
        config: dict[str, Any],
        workers: int | None,
        group_size: int = 8,
    ) -> None:
        """Build it, and let ``auto`` see some episodes."""
        self._manager = manager(envs, config, group_size=group_size, use_multiprocessing=mode, max_workers=workers)
        self._inputs = inputs(envs)
        self._manager.reset()
        if mode == "auto":
            for _ in range(8):
                for _ in range(3):
                    self.step()
                self._manager.reset()

    def step(self) -> float:
        """Play one vector turn; seconds it took."""
        start = time.perf_counter()
        self._manager.step(self._inputs)
        return time.perf_counter() - start

    def close(self) -> None:
        """End it."""
        self._manager.close()


class Floor:
    """The same work split over bare processes that exchange nothing while they work."""

    def __init__(self, envs: int, config: dict[str, Any], processes: int) -> None:
        """Start a sequential manager in each process."""
        context = multiprocessing.get_context("spawn")
        self._children = []
        processes = min(processes, envs)
        for index in range(processes):
            ours, theirs = context.Pipe()
            share = envs * (index + 1) // processes - envs * index // processes
            child = context.Process(target=_floor_share, args=(theirs, share, config), daemon=True)
            child.start()
            self._children.append((child, ours))
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


def _floor_share(pipe: Any, envs: int, config: dict[str, Any]) -> None:
    share = Managed(False, envs, config, 1, group_size=1)
    pipe.send(True)
    while pipe.recv():
        pipe.send(share.step())
    share.close()


def in_turn(built: list[Any], number: int) -> list[float]:
    """Seconds of a vector turn of each, in another order in each round: what one leaves in caches slows the next.

    Args:
        built: The contenders.
        number: Of the round.
    """
    order = random.Random(number).sample(range(len(built)), len(built))
    seconds = {index: built[index].step() for index in order}
    return [seconds[index] for index in range(len(built))]


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=25)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--goals", action="store_true")
    given = arguments.parse_args()
    console = Console()
    times = ("floor", "sequential", "true", "auto")
    columns = ("us a turn", "envs", *times, *(f"{each} / floor" for each in times[1:]), "auto / seq.", "auto / better")
    table = Table(*columns, title="ms per vector turn")
    for cost in () if given.goals else COSTS:
        for envs in ENVS:
            table.add_row(str(cost), str(envs), *row(envs, {"loops": loops(cost)}, given.workers, given.repeats))
    if not given.goals:
        for envs in ENVS:
            wait = row(envs, {"wait": WAIT_S}, WAITING, min(5, given.repeats))
            table.add_row(f"a wait of {WAIT_S * 1e6:.0f}", str(envs), *wait)
        console.print(table)
    columns = (f"{MANY} environments, {LONG / 1000:.0f} ms a turn", "compared with", "s", "auto, s", "ratio", "goal")
    goals = Table(*columns, title="Goals of their own")
    for goal in (*first_episodes(max(3, given.repeats // 5)), waits(given.repeats)):
        goals.add_row(*goal)
    console.print(goals)


def first_episodes(repeats: int) -> list[list[str]]:
    """Whole episodes of managers that were just made, ``auto`` beside ``true``, in turn."""
    computing, waiting = {"loops": loops(LONG)}, {"wait": LONG * 1e-6}
    rows = []
    for name, config in {"compute, one episode": computing, "wait, one episode": waiting}.items():
        pairs = [(episode(True, config), episode("auto", config)) for _ in range(repeats)]
        rows.append([name, "true", *_compared(pairs), "1.25"])
    return rows


def episode(mode: bool | str, config: dict[str, float]) -> float:
    """Seconds of one episode, from making the manager to its last turn."""
    begin = time.perf_counter()
    made = manager(MANY, config, use_multiprocessing=mode)
    made.reset()
    for _ in range(TURNS):
        made.step(inputs(MANY))
    seconds = time.perf_counter() - begin
    made.close()
    return seconds


def waits(repeats: int) -> list[str]:
    """Turns of environments that wait: ``auto`` with as many workers as it takes, beside 16."""
    config = {"wait": LONG * 1e-6}
    built = [Managed(True, MANY, config, 16), Managed("auto", MANY, config, None)]
    pairs = [tuple(in_turn(built, number)) for number in range(repeats)]
    for contender in built:
        contender.close()
    return ["wait, later turns", "true, 16 workers", *_compared(pairs), "1.5"]


def _compared(pairs: list[tuple[float, ...]]) -> list[str]:
    others, autos = (statistics.median(times) for times in zip(*pairs, strict=True))
    return [f"{others:.3f}", f"{autos:.3f}", f"{statistics.median(auto / other for other, auto in pairs):.2f}"]


def row(envs: int, config: dict[str, float], workers: int, repeats: int) -> list[str]:
    """One point's figures."""
    built = [Floor(envs, config, workers), *(Managed(mode, envs, config, workers) for mode in (False, True, "auto"))]
    seconds = statistics.median([min(contender.step() for contender in built) for _ in range(5)])
    repeats = round(repeats * min(10.0, max(1.0, LEAST / seconds)))
    rounds = [in_turn(built, number) for number in range(repeats)]
    for contender in built:
        contender.close()
    medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    to_sequential = statistics.median([auto / sequential for _, sequential, _, auto in rounds])
    better = 1 if medians[1] < medians[2] else 2
    to_better = statistics.median([times[3] / times[better] for times in rounds])
    to_floor = [statistics.median([times[place] / times[0] for times in rounds]) for place in (1, 2, 3)]
    ratios = [*to_floor, to_sequential, to_better]
    return [*(f"{median * 1e3:.2f}" for median in medians), *(f"{ratio:.2f}" for ratio in ratios)]


if __name__ == "__main__":
    main()
