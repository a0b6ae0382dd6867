from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ragen.env.frozen_lake.config import FrozenLakeEnvConfig
from ragen.env.frozen_lake.env import FrozenLakeEnv
from ragen.env.frozen_lake.lake import Lake
from ragen.env.frozen_lake.solver import solve

LEFT, DOWN, RIGHT, UP = 1, 2, 3, 4


def make_env(**config: Any) -> FrozenLakeEnv:
    return FrozenLakeEnv(FrozenLakeEnvConfig(**config))


def letter_rows(shown: Lake) -> list[str]:
    """A lake in gymnasium's letters."""
    letters = ["FHG"[tile] for tile in shown.tiles]
    letters[shown.start] = "S"
    return ["".join(letters[row : row + shown.size]) for row in range(0, len(letters), shown.size)]


@pytest.mark.parametrize("success_rate", [0.0, 1 / 3, 0.5, 0.8, 0.99, 1.0])
def test_slips_are_those_of_gymnasium(success_rate: float) -> None:
    gymnasium = pytest.importorskip("gymnasium", minversion="1.2.1", reason="older ones have no success_rate")
    env = make_env(size=6, success_rate=success_rate)
    for seed in range(8):
        env.reset(seed)
        other = gymnasium.make("FrozenLake-v1", desc=letter_rows(env._lake), success_rate=success_rate).unwrapped
        assert other.reset(seed=seed)[0] == env._cell
        for action in np.random.default_rng(seed).integers(1, 5, size=60).tolist():
            expected = other.step(action - 1)[:3]
            _, reward, done, _ = env.step(action)
            assert (env._cell, reward, done) == expected


# -------------------------------------------------------------------------------------------------------- the rules


def test_a_reset_without_seed_takes_map_seed_and_one_with_a_seed_does_not() -> None:
    fixed = make_env(map_seed=7)
    assert fixed.reset() == make_env().reset(7)
    assert fixed.reset(8) == make_env().reset(8)
    assert "G" in make_env().reset()


# ------------------------------------------------------------------------------------------------------------ solver


def test_every_lake_is_crossed_by_the_solver_s_way_where_nothing_is_slippery() -> None:
    env = make_env(size=7, p=0.7, is_slippery=False)
    numbers = {name: number for number, name in env.config.action_lookup.items()}
    for seed in range(40):
        way = solve(env.reset(seed))
        assert way, seed
        assert [env.step(numbers[name])[1] for name in way][-1] == 1, seed
