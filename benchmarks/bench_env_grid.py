"""Times Sokoban and FrozenLake: microseconds per reset, step and rendering, beside the reference's.

    python benchmarks/bench_env_grid.py [--levels 300] [--tags SimpleSokoban FrozenLake]

Every reset makes a new level: no seed comes twice within a repetition, and remembered levels are forgotten before each.
A step includes its observation, as the environment returns it. Of several repetitions the fastest is shown, which is
the one that other work on the machine disturbed least; the reference's figures are medians from a 2-core machine.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ragen.env.frozen_lake.env import FrozenLakeEnv, FrozenLakeEnvConfig
from ragen.env.frozen_lake.lake import generate_lake
from ragen.env.grid import GridEnv
from ragen.env.sokoban.env import SokobanEnv, SokobanEnvConfig
from ragen.env.sokoban.generator import generate_level

REPETITIONS = 5
FIRST_SEED = 10_000


@dataclass(frozen=True)
class Case:
    """One tag.

    Attributes:
        env_type: ``sokoban`` or ``frozen_lake``.
        config: Its ``env_config``.
        reference: Microseconds per reset and per action in RAGEN, None where they were not measured.
    """

    env_type: str
    config: dict[str, Any]
    reference: tuple[float | None, float | None] = (None, None)

    def make(self) -> GridEnv:
        """An environment, not reset yet."""
        if self.env_type == "sokoban":
            return SokobanEnv(SokobanEnvConfig(**self.config))
        return FrozenLakeEnv(FrozenLakeEnvConfig(**self.config))


_SIMPLE: dict[str, Any] = {"dim_x": 6, "dim_y": 6, "num_boxes": 1}
_IMAGE = {"render_mode": "rgb_array"}

CASES = {
    "SimpleSokoban": Case("sokoban", _SIMPLE, (1850, 1600)),
    "LargerSokoban": Case("sokoban", {"dim_x": 8, "dim_y": 8, "num_boxes": 2, "search_depth": 10}, (4270, 1600)),
    "SokobanDefault": Case("sokoban", {}, (13800, 1600)),
    "Sokoban8x8Depth300": Case("sokoban", {"dim_x": 8, "dim_y": 8, "num_boxes": 2}),
    "CoordSokoban": Case("sokoban", {**_SIMPLE, "observation_format": "grid_coord"}),
    "VisualSimpleSokoban": Case("sokoban", {**_SIMPLE, **_IMAGE}, (5240, 4030)),
    "FrozenLake": Case("frozen_lake", {}, (510, 38)),
    "FrozenLake8": Case("frozen_lake", {"size": 8}, (1370, 56)),
    "CoordFrozenLake": Case("frozen_lake", {"observation_format": "grid_coord", "success_rate": 0.8}),
    "FrozenLakeVisual": Case("frozen_lake", _IMAGE, (2980, 1690)),
}


def main() -> None:
    options = _options()
    print(f"{'us':>22} {'reset':>9} {'copied':>9} {'step':>9} {'render':>9}   faster than RAGEN: reset, step")
    for tag in options.tags:
        case = CASES[tag]
        env, seeds = case.make(), range(FIRST_SEED, FIRST_SEED + options.levels)
        actions = random.Random(0).choices(range(1, 5), k=options.levels)
        original = case.make()
        original.reset(FIRST_SEED)
        reset = fastest(env.reset, seeds, before=_forget_levels)
        copied = fastest(lambda _, env=env, original=original: env.load(original.save()), seeds)
        env.reset(FIRST_SEED)
        step = fastest(env.step, actions)
        render = fastest(lambda _, env=env: env.render(), actions)
        factors = [
            f"{than / ours:.0f}x" if than else "-" for than, ours in zip(case.reference, (reset, step), strict=True)
        ]
        print(f"{tag:>22} {reset:9.1f} {copied:9.1f} {step:9.1f} {render:9.1f}   {factors[0]:>8} {factors[1]:>8}")


def fastest(call: Callable[[Any], Any], arguments: Any, before: Callable[[], None] = lambda: None) -> float:
    """Microseconds per call, of the fastest repetition."""
    times = []
    for _ in range(REPETITIONS):
        before()
        started = time.perf_counter()
        for argument in arguments:
            call(argument)
        times.append((time.perf_counter() - started) / len(arguments))
    return min(times) * 1e6


def _forget_levels() -> None:
    generate_level.cache_clear()
    generate_lake.cache_clear()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--levels", type=int, default=300, help="resets, steps and renderings per repetition")
    parser.add_argument("--tags", nargs="*", default=list(CASES), choices=list(CASES), metavar="TAG")
    return parser.parse_args()


if __name__ == "__main__":
    main()
