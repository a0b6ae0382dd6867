"""What a turn of many environments costs, as a function of a few measured constants.

    turn  =  main  +  wire  +  max(the longest lane, the lanes' work shared by the processors)

    main             one after the other: a constant, something for each lane, something for each environment
    wire             a round trip to the farthest lane, and the bytes through the link of main
    longest lane     its environments one after the other, or at the same time where they overlap their waits
    lanes' work      what lanes compute, shared by the processors that they have

``python benchmarks/cost_model.py ROWS.json`` reads what ``bench_cluster.py --json`` wrote, fits the constants to the
processor times of its smallest and its largest sizes, predicts all turns with them, and says what follows for more
environments.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Setup:
    """What is played where.

    Attributes:
        envs: Environments.
        lanes: Lanes that host them.
        wait: Seconds that a turn of one waits.
        compute: Seconds that a turn of one computes.
        overlaps: Whether those of a lane wait at the same time.
        cores: Processors that lanes have, all nodes together.
    """

    envs: int
    lanes: int
    wait: float = 0.0
    compute: float = 0.0
    overlaps: bool = False
    cores: float = 2.0

    @property
    def in_a_lane(self) -> int:
        """Environments of the fullest lane."""
        return math.ceil(self.envs / self.lanes)

    @property
    def ideal(self) -> float:
        """Seconds of a turn if nothing but the environments took time."""
        waits = self.wait * (1 if self.overlaps else self.in_a_lane)
        return max(waits + self.compute * self.in_a_lane, self.compute * self.envs / self.cores)


@dataclass(frozen=True)
class Costs:
    """The constants, all in seconds but the last.

    Attributes:
        main_turn, main_lane, main_env: Of main's processor: a turn, each lane, each environment.
        lane_turn, lane_env, lane_thread: Of the lanes' processors: each lane, each environment, and what one more
            costs that overlaps its wait.
        oversleep: By how much a wait takes longer than it should.
        round_trip: Of a message to the farthest lane and back.
        env_bytes: Of one environment's turn, both ways.
        bandwidth: Bytes a second of the link of main.
    """

    main_turn: float
    main_lane: float
    main_env: float
    lane_turn: float
    lane_env: float
    lane_thread: float = 0.0
    oversleep: float = 1e-4
    round_trip: float = 2e-4
    env_bytes: float = 300.0
    bandwidth: float = 1.2e9

    def main_s(self, setup: Setup) -> float:
        """Seconds of main's processor for a turn."""
        return self.main_turn + self.main_lane * setup.lanes + self.main_env * setup.envs

    def lanes_s(self, setup: Setup) -> float:
        """Seconds of the lanes' processors for a turn, all together, the environments' own included."""
        each = self.lane_env + setup.compute + (self.lane_thread if setup.overlaps else 0.0)
        return self.lane_turn * setup.lanes + each * setup.envs

    def turn_s(self, setup: Setup) -> float:
        """Seconds of a turn."""
        count = setup.in_a_lane
        own = self.lane_env + setup.compute + (self.lane_thread if setup.overlaps else 0.0)
        waits = (setup.wait + self.oversleep) * (1 if setup.overlaps else count) if setup.wait else 0.0
        longest = self.lane_turn + own * count + waits
        shared = self.lanes_s(setup) / setup.cores
        wire = self.round_trip + setup.envs * self.env_bytes / self.bandwidth
        return self.main_s(setup) + wire + max(longest, shared)


@dataclass(frozen=True)
class Row:
    """One measured setup; seconds of a turn.

    Attributes:
        setup: What was played where.
        turn_s: From the call of ``step`` to its return.
        main_s: Of main's processor.
        lanes_s: Of the lanes' processors, all together.
        env_bytes: Of one environment's turn, both ways.
    """

    setup: Setup
    turn_s: float
    main_s: float
    lanes_s: float
    env_bytes: float = 300.0


def fitted(rows: Sequence[Row]) -> Costs:
    """Constants that give the processor times of these rows, which turns are then predicted from.

    Args:
        rows: Of at least two sizes and two numbers of lanes. How long their turns took is not looked at.

    Raises:
        ValueError: They are too few to tell the constants apart.
    """
    if len({row.setup.envs for row in rows}) < 2 or len({row.setup.lanes for row in rows}) < 2:
        raise ValueError("a fit needs rows of two numbers of environments and of lanes; measure more sizes.")
    main = _solved([[1.0, row.setup.lanes, row.setup.envs] for row in rows], [row.main_s for row in rows])
    idle = [row for row in rows if not row.setup.compute] or rows  # where lanes' own work is not lost beside it
    lanes = _solved(
        [[row.setup.lanes, row.setup.envs, row.setup.envs * row.setup.overlaps] for row in idle],
        [max(0.0, row.lanes_s - row.setup.compute * row.setup.envs) for row in idle],
    )
    env_bytes = statistics.median(row.env_bytes for row in rows)
    return replace(Costs(*main, *lanes), env_bytes=env_bytes)


def _solved(columns: list[list[float]], values: list[float]) -> list[float]:
    """Least squares of relative errors, without negative constants: those are left out, one after the other.

    What was too little to be told from an idle process's time counts as a tenth of the median.
    """
    matrix, target = np.array(columns), np.array(values)
    scale = 1.0 / np.maximum(target, 0.1 * np.median(target))
    left = list(range(matrix.shape[1]))
    while True:
        found = np.linalg.lstsq(matrix[:, left] * scale[:, None], target * scale, rcond=None)[0]
        if (found >= 0).all() or len(left) == 1:
            break
        del left[int(found.argmin())]
    solution = dict(zip(left, found, strict=True))
    return [max(0.0, float(solution.get(index, 0.0))) for index in range(matrix.shape[1])]


def chosen(rows: Sequence[Row]) -> list[Row]:
    """The rows that constants are fitted to: of each kind of work the smallest and the largest size."""
    kinds: dict[tuple[float, float, bool], list[Row]] = {}
    for row in rows:
        kinds.setdefault((row.setup.wait, row.setup.compute, row.setup.overlaps), []).append(row)
    found = []
    for group in kinds.values():
        ordered = sorted(group, key=lambda row: (row.setup.envs, row.setup.lanes))
        found += [ordered[0], ordered[-1]] if len(ordered) > 1 else ordered
    return found


def read(path: Path) -> list[Row]:
    """Rows that ``bench_cluster.py --json`` wrote."""
    names = {field.name for field in fields(Setup)}
    entries = json.loads(path.read_text())
    return [
        Row(Setup(**{name: entry[name] for name in names & entry.keys()}), *(entry[name] for name in _MEASURED))
        for entry in entries
    ]


_MEASURED = ("turn_s", "main_s", "lanes_s", "env_bytes")


def main() -> None:
    """Fit, predict, extrapolate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    given = parser.parse_args()
    rows = read(given.rows)
    costs = fitted(chosen(rows))
    print("\n".join(f"{field.name}: {getattr(costs, field.name):.4g}" for field in fields(costs)), end="\n\n")
    print("| environments | lanes | wait, ms | compute, ms | overlap | measured, ms | model, ms | model / measured |")
    print("|---|---|---|---|---|---|---|---|")
    ratios = []
    for row in rows:
        setup, predicted = row.setup, costs.turn_s(row.setup)
        ratios.append(predicted / row.turn_s)
        told = setup.envs, setup.lanes, 1e3 * setup.wait, round(1e3 * setup.compute, 2), setup.overlaps
        figures = f"{1e3 * row.turn_s:.1f} | {1e3 * predicted:.1f} | {ratios[-1]:.2f}"
        print(f"| {' | '.join(map(str, told))} | {figures} |")
    near = sum(0.8 <= ratio <= 1.2 for ratio in ratios)
    print(f"\n{near} of {len(ratios)} within 20 %; ratios from {min(ratios):.2f} to {max(ratios):.2f}\n")
    print("| environments that wait 50 ms | lanes | main, s | turn, s | turns a second | main's share |")
    print("|---|---|---|---|---|---|")
    for envs in (1_000, 10_000, 100_000):
        setup = Setup(envs, max(1, envs // 16), wait=0.05, cores=max(2.0, envs / 500))
        main_s, turn_s = costs.main_s(setup), costs.turn_s(setup)
        figures = f"{main_s:.2f} | {turn_s:.2f} | {envs / turn_s:,.0f} | {main_s / turn_s:.2f}"
        print(f"| {envs:,} | {setup.lanes:,} | {figures} |")


if __name__ == "__main__":
    main()
