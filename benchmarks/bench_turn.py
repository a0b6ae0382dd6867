"""Where the time of a vector turn goes, beside the floor, for cheap environments.

``python benchmarks/bench_turn.py [--cost 15] [--envs 128 512] [--turns 300]`` steps a manager with ``auto``, which
shares them between the main process and a lane, and prints when in a turn what is done: the inputs are checked, the
lane has its work, main has played its own share, the lane has played, all outcomes are taken in, the call returns. Main
works alone until the lane has its work, and again from the lane's end on; the floor splits all work evenly, and sends
nothing. Below the table stands what sending costs in processor time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil
from contenders import Floor
from rich.console import Console
from rich.table import Table
from workload import inputs, loops, manager

from ragen.llm_agent import es_manager
from ragen.parallel import engine, pool

EPISODES_BEFORE = 12  # in which auto finds its way
TURNS = 8  # of an episode
MOMENTS = ("checked", "sent", "own share played", "lane has played", "taken in", "returned")

_last: dict[str, float] = {}  # when something was done for the last time


def watch(owner: Any, name: str, moment: str) -> None:
    """Take down when a function returned."""
    watched = getattr(owner, name)

    def watching(*arguments: Any, **named: Any) -> Any:
        returned = watched(*arguments, **named)
        _last[moment] = time.monotonic()
        return returned

    setattr(owner, name, watching)


def watch_lane() -> None:
    """Take down when the lane ended its work, as outcomes are taken in."""
    take: Callable[..., None] = engine._Round.take

    def watching(asked: Any, lane: pool.Lane | None, outcomes: Any) -> None:
        take(asked, lane, outcomes)
        _last["taken in"] = time.monotonic()
        if lane is not None:
            _last["lane has played"] = lane.finished()

    engine._Round.take = watching  # type: ignore[method-assign]


def lane_seconds(of: es_manager.EnvStateManager) -> float:
    """Seconds of processor time that the lane has used."""
    pids = [stats.pid for stats in of.lane_stats()[1:] if stats.pid]
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def measure(envs: int, loops_per_turn: int, turns: int) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Moments of each turn, in ms after its start, with the floor beside it; and figures of the whole."""
    config, given = {"loops": loops_per_turn}, inputs(envs)
    floor = Floor(envs, config, 2)
    alone = manager(envs, config)
    shared = manager(envs, config, use_multiprocessing="auto", max_workers=2)
    rows, lane, spent = [], 0.0, {"alone": 0.0, "shared": 0.0}
    for episode in range(EPISODES_BEFORE + -(-turns // TURNS)):
        alone.reset()
        shared.reset()
        if shared.lane_stats()[0].envs == envs or episode < EPISODES_BEFORE:
            shared.step(given)
            continue
        lane -= lane_seconds(shared)
        for _ in range(TURNS):
            bare = floor.step()
            before = time.process_time()
            alone.step(given)
            spent["alone"] += time.process_time() - before
            before, start = time.process_time(), time.monotonic()
            shared.step(given)
            _last["returned"] = time.monotonic()
            spent["shared"] += time.process_time() - before
            rows.append({moment: 1e3 * (_last[moment] - start) for moment in MOMENTS} | {"floor": 1e3 * bare})
        lane += lane_seconds(shared)
    away = envs - shared.lane_stats()[0].envs
    for each in (floor, alone, shared):
        each.close()
    return rows, {"away": away, "alone": spent["alone"], "shared": spent["shared"] + lane}


def main() -> None:
    """Print a table for each number of environments."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--cost", type=float, default=15, help="microseconds of a turn of one environment")
    arguments.add_argument("--envs", type=int, nargs="+", default=[128, 512])
    arguments.add_argument("--turns", type=int, default=300)
    given = arguments.parse_args()
    watch(es_manager.EnvStateManager, "_checked", "checked")
    watch(pool.Lane, "begin", "sent")
    watch(engine.Engine, "_do_in_main", "own share played")
    watch_lane()
    console = Console()
    for envs in given.envs:
        show(console, envs, given.cost, *measure(envs, loops(given.cost), given.turns))


def show(console: Console, envs: int, cost: float, rows: list[dict[str, float]], whole: dict[str, float]) -> None:
    """Print one table."""
    if len(rows) < 2:
        console.print(f"{envs} environments of {cost:g} us: auto kept them in main.")
        return
    title = f"{envs} environments of {cost:g} us, {whole['away']:.0f} of them in a lane: ms after the start of a turn"
    table = Table("moment", "first quartile", "median", "third quartile", title=title)
    for moment in (*MOMENTS, "floor"):
        table.add_row(moment, *_quartiles([row[moment] for row in rows]))
    table.add_row("returned above floor", *_quartiles([row["returned"] - row["floor"] for row in rows]))
    console.print(table)
    alone, shared = (1e6 * whole[kind] / len(rows) / envs for kind in ("alone", "shared"))
    console.print(f"Processor time of a turn of one environment: {alone:.1f} us in main, {shared:.1f} us shared.\n")


def _quartiles(values: list[float]) -> list[str]:
    return [f"{value:.2f}" for value in statistics.quantiles(values, n=4)]


if __name__ == "__main__":
    main()
