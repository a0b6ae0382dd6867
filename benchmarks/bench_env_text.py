"""Microseconds per reset, copy, step and pickle of the text environments, next to RAGEN's where they are known.

``python benchmarks/bench_env_text.py [SECONDS]`` spends about that long (0.3 by default) on each figure. The reference
figures are CPU milliseconds a turn of RAGEN on a two-core machine; compare orders of magnitude, not digits.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable
from itertools import count, cycle
from typing import Any

from ragen.env import resolve_env

REFERENCE_MS = {  # reset, step
    "bandit": (0.015, 0.004),
    "countdown": (0.049, 0.035),
    "metamathqa": (0.12, 0.004),
    "sudoku": (6.3, 1.11),
    "game_2048": (0.35, 0.22),
    "rubikscube": (0.12, 0.017),
}
SUDOKU_MOVES = [f"place {v} at row {r} col {c}" for v in range(1, 10) for r in range(1, 10) for c in range(1, 10)]
ACTIONS: dict[str, list[Any]] = {
    "bandit": [1, 2],
    "countdown": ["67 + 14 - 9 * (82 - 3)", "no expression", "1 / 2 + 3 ** 4"],
    "metamathqa": ["42", "the answer is 7", ""],
    "sudoku": SUDOKU_MOVES[::7],
    "game_2048": [0, 1, 2, 3],
    "rubikscube": list(range(1, 13)),
}


def microseconds(call: Callable[[], Any], seconds: float) -> float:
    """The mean time of a call, repeated for about so many seconds."""
    call()
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(20):
            call()
        calls += 20
    return (time.perf_counter() - start) / calls * 1e6


def figures(env_type: str, seconds: float) -> tuple[float, float, float, float]:
    """Reset, copy, step and pickling round trip of one environment with its default configuration."""
    env_class, config_class = resolve_env(env_type)
    env, twin = env_class(config_class()), env_class(config_class())
    seeds, actions = count(1000), cycle(ACTIONS[env_type])
    reset = microseconds(lambda: env.reset(next(seeds)), seconds)
    copy = microseconds(lambda: twin.load(env.save()), seconds)
    step = microseconds(lambda: env.step(next(actions)), seconds)
    return reset, copy, step, microseconds(lambda: pickle.loads(pickle.dumps(env)), seconds)


def main() -> None:
    """Print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.3
    print(f"{'us per':<12}{'reset':>10}{'(RAGEN)':>10}{'copy':>10}{'step':>10}{'(RAGEN)':>10}{'pickle':>10}")
    for env_type, (reset_ms, step_ms) in REFERENCE_MS.items():
        reset, copy, step, pickled = figures(env_type, seconds)
        row = f"{env_type:<12}{reset:>10.1f}{reset_ms * 1000:>10.0f}{copy:>10.1f}"
        print(f"{row}{step:>10.1f}{step_ms * 1000:>10.0f}{pickled:>10.1f}")


if __name__ == "__main__":
    main()
