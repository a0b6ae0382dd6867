"""Where the time of a vector turn goes, beside the floor, for cheap environments.

``python benchmarks/bench_turn.py [--cost 15] [--envs 128 512] [--turns 300]`` steps a manager with ``auto``, which
shares them between the main process and a lane, and prints when in a turn what is done: the inputs are checked, the
lane has its work, main has played its own share, all replies are here, journals are written, the call returns. Main
works alone until the lane has its work, and again from the lane's end on; the floor splits all work evenly, and sends
nothing. With ``--mode false`` it prints what a turn costs in the main process above a bare loop.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from contenders import Floor
from rich.console import Console
from rich.table import Table
from workload import Work, WorkConfig, inputs, loops, manager

from envlanes import engine, round
from envlanes.placement import MainHome
from envlanes.workers.worker import Worker
from ragen.llm_agent import es_manager

EPISODES_BEFORE = 12  # in which auto finds its way
TURNS = 8  # of an episode
MOMENTS = ("checked", "sent", "own share played", "replies here", "journals written", "returned")

_last: dict[str, float] = {}  # when something was done for the last time


def watch(owner: Any, name: str, moment: str) -> None:
    """Take down when a function returned."""
    watched = getattr(owner, name)

    def watching(*arguments: Any, **named: Any) -> Any:
        returned = watched(*arguments, **named)
        _last[moment] = time.monotonic()
        return returned

    setattr(owner, name, watching)


def measure(envs: int, loops_per_turn: int, turns: int) -> tuple[int, list[dict[str, float]]]:
    """How many environments lived in the lane, and moments of each turn in ms after its start, the floor beside it."""
    config, given = {"loops": loops_per_turn}, inputs(envs)
    floor = Floor(envs, config, 2)
    rows, away = [], 0
    with manager(envs, config, use_multiprocessing="auto", max_workers=2) as shared:
        for episode in range(EPISODES_BEFORE + -(-turns // TURNS)):
            shared.reset()
            in_lane = envs - shared.lane_stats()[0].envs
            if not in_lane or episode < EPISODES_BEFORE:
                shared.step(given)
                continue
            away = in_lane
            for _ in range(TURNS):
                bare, start = floor.step(), time.monotonic()
                shared.step(given)
                _last["returned"] = time.monotonic()
                rows.append({moment: 1e3 * (_last[moment] - start) for moment in MOMENTS} | {"floor": 1e3 * bare})
    floor.close()
    return away, rows


def main() -> None:
    """Print a table for each number of environments."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--cost", type=float, default=15, help="microseconds of a turn of one environment")
    arguments.add_argument("--envs", type=int, nargs="+", default=[128, 512])
    arguments.add_argument("--turns", type=int, default=300)
    arguments.add_argument("--mode", choices=("auto", "false"), default="auto")
    given = arguments.parse_args()
    console = Console()
    if given.mode == "false":
        for envs in given.envs:
            show_sequential(console, envs, loops(given.cost), given.turns)
        return
    watch(es_manager, "checked_turns", "checked")
    watch(Worker, "begin", "sent")
    watch(MainHome, "run", "own share played")
    watch(round, "exchange", "replies here")
    watch(engine.Engine, "play", "journals written")
    for envs in given.envs:
        show(console, envs, given.cost, *measure(envs, loops(given.cost), given.turns))


def show_sequential(console: Console, envs: int, loops_per_turn: int, turns: int) -> None:
    """Print what a turn costs in the main process, and what a bare loop over the environments costs, in one run."""
    bare, given = [Work(WorkConfig(loops=loops_per_turn)) for _ in range(envs)], inputs(envs)
    times: list[tuple[float, float]] = []
    with manager(envs, {"loops": loops_per_turn}, use_multiprocessing=False) as sequential:
        for turn in range(turns):
            if turn % TURNS == 0:
                sequential.reset()
                sequential.step(given)
            start = time.perf_counter()
            for env in bare:
                env.step("Up")
                env.render()
            middle = time.perf_counter()
            sequential.step(given)
            times.append((middle - start, time.perf_counter() - middle))
    loop, ours = (statistics.median(each) / envs * 1e6 for each in zip(*times, strict=True))
    above = statistics.median([(own - alone) / envs * 1e6 for alone, own in times])
    console.print(
        f"{envs} environments: bare loop {loop:.2f} us each, step {ours:.2f} us each, {above:.2f} us above it"
    )


def show(console: Console, envs: int, cost: float, away: int, rows: list[dict[str, float]]) -> None:
    """Print one table."""
    if len(rows) < 2:
        console.print(f"{envs} environments of {cost:g} us: auto kept them in main.")
        return
    title = f"ms after the start of a turn: {envs} environments of {cost:g} us, {away} of them in a lane"
    table = Table("moment", "first quartile", "median", "third quartile", title=title)
    for moment in (*MOMENTS, "floor"):
        table.add_row(moment, *_quartiles([row[moment] for row in rows]))
    table.add_row("returned above floor", *_quartiles([row["returned"] - row["floor"] for row in rows]))
    console.print(table)


def _quartiles(values: list[float]) -> list[str]:
    return [f"{value:.2f}" for value in statistics.quantiles(values, n=4)]


if __name__ == "__main__":
    main()
