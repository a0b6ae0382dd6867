"""Does ``auto`` choose well? Sequential, parallel and ``auto`` over a sweep of turn costs and numbers of environments.

``python benchmarks/bench_auto.py [--repeats 25]`` prints, for each point, the medians and the two promised ratios:
``auto`` to sequential (at most 1.05), and to the better of both. Turns that take less than a millisecond are repeated
until they have taken so long as the others: the median of a few of them says little.
"""

from __future__ import annotations

import argparse
import statistics

from contenders import Floor, Managed, in_turn
from rich.console import Console
from rich.table import Table
from workload import loops

LEAST = 1e-3  # seconds of a turn below which there are more repeats, up to ten times as many
COSTS = (2, 5, 15, 50, 200, 1000)
ENVS = (8, 32, 128, 512)


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=25)
    arguments.add_argument("--workers", type=int, default=2)
    given = arguments.parse_args()
    console = Console()
    columns = ("us a turn", "envs", "floor", "sequential", "true", "auto", "auto / seq.", "auto / better")
    table = Table(*columns, title="ms per vector turn")
    for cost in COSTS:
        for envs in ENVS:
            table.add_row(str(cost), str(envs), *row(envs, {"loops": loops(cost)}, given.workers, given.repeats))
    console.print(table)


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
