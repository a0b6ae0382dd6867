"""Milliseconds per vector turn of ours and of others, with the floor measured beside them, as a table and a plot.

``python benchmarks/bench_engines.py [--envs 32,128,512] [--repeats 15] [--seconds 90] [--between 0] [--png FILE]``

The floor is the same work split over bare processes that exchange nothing, measured in the same round as the figures:
two virtual processors are not always two, and the floor shows what they were. A round steps every contender once, in
another order each time; a figure is the median over rounds, with the 10th and 90th percentile.
With ``--between 0.05`` the main process works for 50 ms before each turn, as it does while a model generates, so that
workers and caches are as cold as in training; ``bare pipes`` are two workers that are treated the same.
There are ``--repeats`` rounds, fewer (but three) where they would take longer than ``--seconds``. Contenders with a
process per environment are only built up to ``--most-processes``. Needs ``pip install -e '.[sb3]'``.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from contenders import Builders, Managed, companies, in_turn, memory_mb
from rich.console import Console
from rich.table import Table
from workload import loops, manager

WORKERS = {"cheap 15 us": 2, "1 ms": 2, "20 ms": 2, "waiting 10 ms": 16}

SCALE = 2.2  # times the sequential time, as far as the plot's panels go


@dataclass
class Figure:
    """Seconds of a contender's vector turns, round by round, and what it held in memory and took to start."""

    seconds: list[float]
    memory: float
    start_up: float
    floor: list[float] = field(default_factory=list)
    sequential: list[float] = field(default_factory=list)


def workloads() -> dict[str, dict[str, Any]]:
    """Environment configurations by name."""
    return {
        "cheap 15 us": {"loops": loops(15)},
        "1 ms": {"loops": loops(1000)},
        "20 ms": {"loops": loops(20_000)},
        "waiting 10 ms": {"wait": 0.010},
    }


def measure(
    envs: int, config: dict[str, Any], workers: int, repeats: int, seconds: float, most: int, between: float
) -> dict[str, Figure]:
    """Measure each company of contenders; floor and sequential are those of the contender's own company."""
    figures: dict[str, Figure] = {}
    for company in companies(envs, config, workers, most):
        measured = measure_company(company, repeats, seconds, between)
        for name, figure in measured.items():
            figure.floor, figure.sequential = measured["floor"].seconds, measured["sequential"].seconds
            figures.setdefault(name, figure)
    return figures


def measure_company(company: Builders, repeats: int, seconds: float, between: float) -> dict[str, Figure]:
    """Step all contenders in turn, ``repeats`` times or for about so many seconds, but three times at least."""
    built, figures = {}, {}
    for name, build in company.items():
        before, start = memory_mb(), time.perf_counter()
        built[name] = build()
        figures[name] = Figure([], memory_mb() - before, time.perf_counter() - start)
    for contender in built.values():
        contender.step()
    deadline = time.perf_counter() + seconds
    for done in range(repeats):
        if done >= 3 and time.perf_counter() > deadline:
            break
        for name, seconds in zip(built, in_turn(list(built.values()), done, between), strict=True):
            figures[name].seconds.append(seconds)
    for contender in built.values():
        contender.close()
    return figures


def show(console: Console, title: str, figures: dict[str, Figure]) -> None:
    """Print one workload's table."""
    table = Table(title=title, title_justify="left")
    columns = ("ms", "10-90 %", "/ floor", "- floor, ms", "/ sequential", "memory, MB", "start-up, s")
    table.add_column("contender")
    for column in columns:
        table.add_column(column, justify="right")
    for name, figure in figures.items():
        times = figure.seconds
        low, high = statistics.quantiles(times, n=10)[0], statistics.quantiles(times, n=10)[-1]
        table.add_row(
            name,
            f"{statistics.median(times) * 1e3:.2f}",
            f"{low * 1e3:.2f}-{high * 1e3:.2f}",
            f"{_ratio(times, figure.floor):.2f}",
            f"{statistics.median([a - b for a, b in zip(times, figure.floor, strict=True)]) * 1e3:+.2f}",
            f"{_ratio(times, figure.sequential):.2f}",
            f"{figure.memory:.0f}",
            f"{figure.start_up:.2f}",
        )
    console.print(table)


def _ratio(times: list[float], others: list[float]) -> float:
    return statistics.median([a / b for a, b in zip(times, others, strict=True)])


def plot(results: dict[str, dict[str, Figure]], path: Path) -> None:
    """Draw the time of a vector turn relative to sequential: a row for each workload, a panel for each number of envs.

    All panels have one scale; what takes longer than that is told by its number.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = len({title.split(",")[0] for title in results})
    columns = -(-len(results) // rows)
    panels, axes = plt.subplots(rows, columns, figsize=(4.5 * columns, 2.6 * rows), squeeze=False)
    for axis, (title, figures) in zip(axes.flat, results.items(), strict=True):
        names = list(figures)
        ratios = [_ratio(figures[name].seconds, figures[name].sequential) for name in names]
        colours = ["tab:green" if name.startswith("ours") else "tab:grey" for name in names]
        axis.barh(names[::-1], [min(ratio, SCALE) for ratio in ratios[::-1]], color=colours[::-1])
        for place, ratio in enumerate(ratios[::-1]):
            axis.text(min(ratio, SCALE) + 0.02, place, f"{ratio:.2f}", va="center", fontsize=7)
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_xlim(0, SCALE * 1.15)
        axis.tick_params(labelsize=8)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("time / sequential", fontsize=8)
    panels.tight_layout()
    panels.savefig(path, dpi=110)


def measure_resets(console: Console, repeats: int) -> None:
    """A reset of 8 groups of 16 against 8 resets one after the other, both in main and in lanes."""
    config = {"reset_loops": loops(2000)}
    single = Managed(False, 8, config, 1, group_size=1)
    contenders = {mode: Managed(mode, 128, config, 2, group_size=16) for mode in (False, True)}
    rounds = [(single.reset(), *(contender.reset() for contender in contenders.values())) for _ in range(repeats)]
    eight, main, lanes = (statistics.median(times) * 1e3 for times in zip(*rounds, strict=True))
    console.print(
        f"reset of 8 groups x 16, 2 ms a reset: 8 resets {eight:.1f} ms; in main {main:.1f} ms "
        f"({main / eight:.2f}); in 2 lanes {lanes:.1f} ms ({lanes / eight:.2f})"
    )
    for contender in (single, *contenders.values()):
        contender.close()


def measure_start(console: Console, repeats: int) -> None:
    """Time from the making of a manager with 2 workers to the end of its first reset; memory of 16 idle workers."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        with manager(16, {}, use_multiprocessing=True, max_workers=2) as made:
            made.reset()
            times.append(time.perf_counter() - start)
    with manager(16, {}, use_multiprocessing=True, max_workers=16) as made:
        made.reset()
        pids = [stats.pid for stats in made.lane_stats()[1:]]
        held = [psutil.Process(pid).memory_full_info().pss / 1e6 for pid in pids]
    console.print(
        f"first reset done {statistics.median(times):.2f} s ({min(times):.2f}-{max(times):.2f}) after a manager with 2 "
        f"workers was made; {len(held)} idle workers hold {min(held):.1f} to {max(held):.1f} MB each"
    )


def main() -> None:
    """Print the tables and draw the plot."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--envs", default="32,128,512")
    arguments.add_argument("--repeats", type=int, default=15)
    arguments.add_argument("--seconds", type=float, default=90.0)
    arguments.add_argument("--most-processes", type=int, default=32)
    arguments.add_argument("--workloads", default=",".join(WORKERS))
    arguments.add_argument("--between", type=float, default=0.0)
    arguments.add_argument("--ours", action="store_true", help="only ours, the floor and bare pipes")
    arguments.add_argument("--png", type=Path)
    given = arguments.parse_args()
    console = Console(width=130)
    console.print(f"{platform.platform()}, Python {platform.python_version()}, {given.repeats} rounds")
    results = {}
    for name in given.workloads.split(","):
        for envs in map(int, given.envs.split(",")):
            title = f"{name}, {envs} envs, {WORKERS[name]} workers"
            results[title] = measure(
                envs,
                workloads()[name],
                WORKERS[name],
                given.repeats,
                given.seconds,
                -1 if given.ours else given.most_processes,
                given.between,
            )
            show(console, title, results[title])
    measure_resets(console, given.repeats)
    measure_start(console, 5)
    if given.png:
        plot(results, given.png)
        console.print(f"plot in {given.png}")


if __name__ == "__main__":
    main()
