from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ragen.env.frozen_lake.config import FrozenLakeEnvConfig
from ragen.env.frozen_lake.env import FrozenLakeEnv
from ragen.env.frozen_lake.lake import FROZEN, GOAL, HOLE, Lake, generate_lake
from ragen.env.frozen_lake.solver import solve

LEFT, DOWN, RIGHT, UP = 1, 2, 3, 4


def make_env(**config: Any) -> FrozenLakeEnv:
    return FrozenLakeEnv(FrozenLakeEnvConfig(**config))


def env_showing(*rows: str, seed: int = 0, **config: Any) -> FrozenLakeEnv:
    """An environment that was reset to this lake; P is the start."""
    drawing = "".join(rows)
    kinds = {"P": FROZEN, "_": FROZEN, "O": HOLE, "G": GOAL}
    env = make_env(size=len(rows), **{"is_slippery": False, **config})
    shown = Lake(len(rows), bytes(kinds[tile] for tile in drawing), drawing.index("P"), drawing.index("G"))
    env._start(shown, seed, env._draw_board(shown))
    return env


def letter_rows(shown: Lake) -> list[str]:
    """A lake in gymnasium's letters."""
    letters = ["FHG"[tile] for tile in shown.tiles]
    letters[shown.start] = "S"
    return ["".join(letters[row : row + shown.size]) for row in range(0, len(letters), shown.size)]


def literal_map(size: int, p: float, seed: int) -> list[str]:
    """The map as numpy's ``choice`` draws it, S and G set, the first where a way leads from S to G."""
    rng = np.random.default_rng(seed)
    while True:
        board = rng.choice(["F", "H"], (size, size), p=[p, 1 - p])
        start, goal = tuple(rng.integers(size, size=2)), tuple(rng.integers(size, size=2))
        if start == goal:
            continue
        board[start], board[goal] = "S", "G"
        reached = board == "S"
        for _ in range(size * size):
            grown = np.pad(reached, 1)
            spread = grown[1:-1, :-2] | grown[1:-1, 2:] | grown[:-2, 1:-1] | grown[2:, 1:-1]
            reached |= spread & (board != "H")
        if reached[goal]:
            return ["".join(row) for row in board]


@pytest.mark.parametrize("size", [2, 3, 5, 9])
@pytest.mark.parametrize("p", [0.0, 0.1, 1 / 3, 0.77, 1.0])
def test_odd_lakes_are_those_of_a_literal_drawing(size: int, p: float) -> None:
    for seed in range(4):
        assert letter_rows(generate_lake(size, p, seed)) == literal_map(size, p, seed)


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


# ---------------------------------------------------------------------------------------------------- the contract


# -------------------------------------------------------------------------------------------------------- the rules


RULES = {  # a lake: the move, the lake after it, the reward, whether it is done, effective and a success
    "a way": ("P_\n_G", RIGHT, "_P\n_G", 0, (False, True, False)),
    "the edge": ("P_\n_G", UP, "P_\n_G", 0, (False, False, False)),
    "the goal": ("_P\n_G", DOWN, "__\n_√", 1, (True, True, True)),
    "a hole": ("PO\n_G", RIGHT, "_X\n_G", 0, (True, True, False)),
}


@pytest.mark.parametrize(("shown", "move", "after", "reward", "ended"), RULES.values(), ids=RULES)
def test_the_rules_of_the_game(shown: str, move: int, after: str, reward: int, ended: tuple[bool, ...]) -> None:
    env = env_showing(*shown.split("\n"))
    last, got, done, info = env.step(move)
    assert (last, got, type(got)) == (after, reward, int)
    assert (done, info["action_is_effective"], info["success"]) == ended
    if done:
        assert env.step(LEFT)[:3] == (last, 0, True)


def test_slips_lead_sideways_and_as_often_as_configured() -> None:
    arrived = []
    for seed in range(3000):
        env = env_showing("___", "_P_", "__G", seed=seed, is_slippery=True, success_rate=0.6)
        env.step(LEFT)
        arrived.append(env.player_position)
    shares = {position: round(arrived.count(position) / len(arrived), 1) for position in set(arrived)}
    assert shares == {(1, 0): 0.6, (0, 1): 0.2, (2, 1): 0.2}


def test_a_reset_without_seed_takes_map_seed_and_one_with_a_seed_does_not() -> None:
    fixed = make_env(map_seed=7)
    assert fixed.reset() == make_env().reset(7)
    assert fixed.reset(8) == make_env().reset(8)
    assert "G" in make_env().reset()


# ------------------------------------------------------------------------------------------------------ observations


def test_images_have_64_pixels_a_cell_and_show_every_tile_differently() -> None:
    env = env_showing("P_", "OG", render_mode="rgb_array")
    image = env.render()
    assert (image.shape, image.dtype) == ((128, 128, 3), np.uint8)
    pictures = {
        image[:64, :64].tobytes(),
        image[:64, 64:].tobytes(),
        image[64:, :64].tobytes(),
        image[64:, 64:].tobytes(),
    }
    sunk = env.step(DOWN)[0]
    arrived = env_showing("P_", "_G", render_mode="rgb_array")
    arrived.step(DOWN)
    pictures |= {sunk[64:, :64].tobytes(), arrived.step(RIGHT)[0][64:, 64:].tobytes()}
    assert len(pictures) == 6
    assert make_env(render_mode="rgb_array").reset(0).shape == (256, 256, 3)


# ----------------------------------------------------------------------------------------------------- configuration


# ------------------------------------------------------------------------------------------------------------ solver


def test_every_lake_is_crossed_by_the_solver_s_way_where_nothing_is_slippery() -> None:
    env = make_env(size=7, p=0.7, is_slippery=False)
    numbers = {name: number for number, name in env.config.action_lookup.items()}
    for seed in range(40):
        way = solve(env.reset(seed))
        assert way, seed
        assert [env.step(numbers[name])[1] for name in way][-1] == 1, seed
