"""Milliseconds to fork each built-in environment at turn 10, in the main process and in a lane: median (and least).

``python benchmarks/bench_fork.py [--seconds 0.3] [--turn 10] [--copies 1]`` spends about that long on each figure.
"now" forks an environment as it stands, which is copied; "back" forks it as it was two turns ago, which replays it, the
reset included. Each fork is removed again, which does not count.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from ragen.env import resolve_env
from ragen.env.registry import REGISTERED_ENVS
from ragen.parallel import EnvEngine, EnvSpec, Settings
from ragen.parallel.episode.turn import Turn

TEXTS = {
    "countdown": ["67 + 14 - 9 * (82 - 3)", "no expression"],
    "metamathqa": ["42", "the answer is 7"],
    "sudoku": [f"place {v} at row {r} col {c}" for v in range(1, 5) for r in range(1, 5) for c in range(1, 5)][::7],
    "webshop": ["search[lamp]", "click[next >]", "click[< prev]", "click[back to search]"],
}
AIM = 2.0  # milliseconds


class Figure(NamedTuple):
    """Milliseconds; on a busy machine the least says more of the work, and the median more of the waiting."""

    median: float
    least: float


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=0.3)
    arguments.add_argument("--turn", type=int, default=10)
    arguments.add_argument("--copies", type=int, default=1, help="forks made by one call")
    given = arguments.parse_args()
    table = Table("environment", "now, main", "back, main", "now, lane", "back, lane", title="ms, median (least)")
    over = []
    for env_type in sorted(REGISTERED_ENVS):
        row = [
            figure
            for use_lanes in (False, True)
            for figure in figures(env_type, use_lanes, given.turn, given.copies, given.seconds)
        ]
        table.add_row(env_type, *[f"{median:.2f} ({least:.2f})" for median, least in row])
        over += [env_type] if max(median for median, _ in row) > AIM else []
    Console().print(table)
    print(f"median above {AIM:g} ms: {', '.join(over) or 'none'}")


def figures(env_type: str, use_lanes: bool, turn: int, copies: int, seconds: float) -> list[Figure]:
    """Milliseconds of a fork now, and of one two turns back."""
    env_class, config_class = resolve_env(env_type)
    config = config_class() if config_class else None
    settings = Settings(use_lanes=use_lanes, max_workers=1)
    with EnvEngine([EnvSpec.of(env_class, config, 0)], settings) as engine:
        engine.reset({0: 1000})
        played = names(engine, env_type, config)
        ids, times = itertools.count(1), []
        for count, after in ((turn, None), (turn + 2, turn)):
            while engine.records[0].journal.turns < count:
                engine.play({0: Turn((next(played),), 9)})
            times.append(measured(engine, ids, copies, after, seconds))
        return times


def names(engine: EnvEngine, env_type: str, config: Any) -> itertools.cycle[str]:
    """What is played."""
    if env_type in TEXTS:
        return itertools.cycle(TEXTS[env_type])
    lookup = config.action_lookup or engine.read([0], "config")[0].action_lookup
    return itertools.cycle(lookup.values())


def measured(engine: EnvEngine, ids: Any, copies: int, turn: int | None, seconds: float) -> Figure:
    """The time of a fork, over about so many seconds of forking; the first one loads what is to be loaded."""
    times: list[float] = []
    while sum(times) < seconds or len(times) < 5:
        new_ids = [next(ids) for _ in range(copies)]
        start = time.perf_counter()
        engine.fork(0, new_ids, turn)
        times.append(time.perf_counter() - start)
        engine.remove(new_ids)
    return Figure(1e3 * statistics.median(times[1:]), 1e3 * min(times[1:]))


if __name__ == "__main__":
    main()
