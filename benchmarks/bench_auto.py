"""Does ``auto`` choose well? Sequential, parallel and ``auto`` over a sweep of turn costs and numbers of environments.

``python benchmarks/bench_auto.py [--repeats 25]`` prints, for each point, the medians and the two promised ratios:
``auto`` to sequential (at most 1.10), and to the better of both. Turns that take less than a millisecond are repeated
until they have taken so long as the others: the median of a few of them says little.

Then come two goals of their own (``--goals`` prints nothing else):

- a whole first episode, the start of the workers included: ``auto`` takes at most 1.25 times what ``true`` takes;
- environments that wait: ``auto`` with ``max_workers: null`` takes at most 1.5 times what 16 workers take.
"""

from __future__ import annotations

import argparse
import statistics
import time

from contenders import Floor, Managed, in_turn
from rich.console import Console
from rich.table import Table
from workload import inputs, loops, manager

LEAST = 1e-3  # seconds of a turn below which there are more repeats, up to ten times as many
COSTS = (2, 5, 15, 50, 200, 1000)
ENVS = (8, 32, 128, 512)
MANY, LONG, TURNS = 32, 20_000, 6  # environments, microseconds of a turn, and turns of an episode, for the goals


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=25)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--goals", action="store_true")
    given = arguments.parse_args()
    console = Console()
    columns = ("us a turn", "envs", "floor", "sequential", "true", "auto", "auto / seq.", "auto / better")
    table = Table(*columns, title="ms per vector turn")
    for cost in () if given.goals else COSTS:
        for envs in ENVS:
            table.add_row(str(cost), str(envs), *row(envs, {"loops": loops(cost)}, given.workers, given.repeats))
    if not given.goals:
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


def row(envs: int, config: dict[str, int], workers: int, repeats: int) -> list[str]:
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
    return [*(f"{median * 1e3:.2f}" for median in medians), f"{to_sequential:.2f}", f"{to_better:.2f}"]


if __name__ == "__main__":
    main()
