"""A gymnasium environment on lanes: the same as ``SyncVectorEnv``, bit for bit, also when a worker is killed.

Run it with ``python examples/gymnasium_vector.py``.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv

from envlanes.gym import LaneVectorEnv

ENVS, TURNS = 6, 40


class Drift(gym.Env[np.ndarray, np.int64]):
    """Hold a drifting point near the middle of a line."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (1,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begin somewhere near the middle."""
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1.0, 1.0, 1)
        return self.place.copy(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Push left, not at all, or right; the point drifts on by itself."""
        self.place = self.place + (action - 1) * 0.5 + self.np_random.normal(0.0, 0.4, 1)
        lost = bool(abs(self.place[0]) > 3.0)
        return self.place.copy(), -float(abs(self.place[0])), lost, False, {}


def play(envs: Any, kill: bool = False) -> list[np.ndarray]:
    """Observations and rewards of some turns."""
    rng = np.random.default_rng(0)
    observations, _ = envs.reset(seed=7)
    seen = [observations]
    for turn in range(TURNS):
        if kill and turn == TURNS // 2:
            worker = next(lane.pid for lane in envs.stats() if lane.lane != "main" and lane.pid)
            os.kill(worker, signal.SIGKILL)
        observations, rewards, *_ = envs.step(rng.integers(0, 3, ENVS))
        seen += [observations.copy(), rewards.copy()]
    envs.close()
    return seen


def main() -> None:
    """Play both ways, and compare."""
    functions = [Drift] * ENVS
    expected = play(SyncVectorEnv(functions))
    got = play(LaneVectorEnv(functions, workers=2), kill=True)
    same = all(np.array_equal(a, b) for a, b in zip(expected, got, strict=True))
    print(f"{TURNS} turns of {ENVS} environments in 2 workers, one of them killed: equal is {same}.")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
