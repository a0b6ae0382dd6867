"""FrozenLake, Sokoban and 2048: the rules that recorded episodes cannot show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ragen.env.frozen_lake.config import FrozenLakeEnvConfig
from ragen.env.frozen_lake.env import FrozenLakeEnv, Lake
from ragen.env.frozen_lake.solver import solve as cross
from ragen.env.game_2048.config import Game2048EnvConfig
from ragen.env.game_2048.env import LEFT as SLIDE_LEFT
from ragen.env.game_2048.env import Game2048Env
from ragen.env.sokoban.config import SokobanEnvConfig
from ragen.env.sokoban.env import SokobanEnv
from ragen.env.sokoban.solver import solve


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


def test_a_reset_without_seed_takes_map_seed_and_one_with_a_seed_does_not() -> None:
    fixed = make_env(map_seed=7)
    assert fixed.reset() == make_env().reset(7)
    assert fixed.reset(8) == make_env().reset(8)
    assert "G" in make_env().reset()


def test_every_lake_is_crossed_by_the_solver_s_way_where_nothing_is_slippery() -> None:
    env = make_env(size=7, p=0.7, is_slippery=False)
    numbers = {name: number for number, name in env.config.action_lookup.items()}
    for seed in range(40):
        way = cross(env.reset(seed))
        assert way, seed
        assert [env.step(numbers[name])[1] for name in way][-1] == 1, seed


@pytest.mark.parametrize("boxes", [1, 2, 3])
def test_every_level_is_solved_by_the_solvers_moves_which_earn_10_at_the_end(boxes: int) -> None:
    env = SokobanEnv(SokobanEnvConfig(num_boxes=boxes, dim_room=(6, 7)))
    numbers = {name: number for number, name in env.config.action_lookup.items()}
    for seed in range(25):
        *_, (_, reward, done, info) = [env.step(numbers[name]) for name in solve(env.reset(seed)) or ()]
        assert (reward, done, info["success"]) == (10.9, True, True), seed


def stuck_env(largest: int) -> Game2048Env:
    """A 2x2 board that one move left fills up, with this tile on it."""
    env = Game2048Env(Game2048EnvConfig(size=2, two_prob=1.0))
    env.reset(0)
    env._board = ((0, largest), (8, 16))
    env._look()
    return env


@pytest.mark.parametrize(("largest", "success"), [(2048, True), (1024, False), (4096, True)])
def test_2048_counts_if_it_is_there_when_the_board_is_stuck(largest: int, success: bool) -> None:
    text, _, done, info = stuck_env(largest).step(SLIDE_LEFT)
    assert done
    assert (info["success"], info["max_tile"]) == (success, largest)
    assert "Valid Actions: None." in text
