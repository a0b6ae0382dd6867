from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ragen.env.frozen_lake import lake
from ragen.env.frozen_lake.config import FrozenLakeEnvConfig
from ragen.env.frozen_lake.env import FrozenLakeEnv, SlipNumbers
from ragen.env.frozen_lake.lake import FROZEN, GOAL, HOLE, Lake, generate_lake
from ragen.env.frozen_lake.solver import solve
from ragen.errors import InputError, LevelError
from support import env_contract

ACTIONS = [1, 4, 2, 2, 3, 1, 4, 4, 3, 2, 1, 1]
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


@pytest.mark.parametrize("seed", [-1, 2**32, "1", 1.5])
def test_a_seed_must_be_an_integer_of_32_bits(seed: Any) -> None:
    with pytest.raises(InputError, match="seed"):
        make_env().reset(seed)


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


def test_long_episodes_have_the_generator_s_numbers_to_the_end() -> None:
    slips = SlipNumbers(3)
    assert [slips[step] for step in range(1, 500)] == np.random.default_rng(3).random(500).tolist()[1:]


# -------------------------------------------------------------------------------------------------------- the rules


def test_the_player_goes_where_it_is_told_where_nothing_is_slippery() -> None:
    env = env_showing("___", "_P_", "__G")
    for action, after in [(LEFT, "P__"), (RIGHT, "_P_"), (UP, "_P_"), (DOWN, "_P_")]:
        shown, reward, done, info = env.step(action)
        assert after in shown.split("\n")
        assert (reward, done) == (0, False)
        assert info == {"action_is_effective": True, "action_is_valid": True, "success": False}


def test_the_edge_of_the_lake_stops_the_player() -> None:
    env = env_showing("P_", "_G")
    assert env.step(UP) == (
        "P_\n_G",
        0,
        False,
        {"action_is_effective": False, "action_is_valid": True, "success": False},
    )


def test_arriving_at_the_goal_gives_1_once_and_ends_the_episode() -> None:
    env = env_showing("P_", "_G")
    env.step(RIGHT)
    shown, reward, done, info = env.step(DOWN)
    assert (shown, reward, done, info["success"]) == ("__\n_√", 1, True, True)
    assert type(reward) is int
    stays = {"action_is_effective": False, "action_is_valid": True, "success": True}
    assert env.step(UP) == ("__\n_√", 0, True, stays)


def test_a_hole_ends_the_episode_without_reward_and_holds_the_player() -> None:
    env = env_showing("PO", "_G")
    shown, reward, done, info = env.step(RIGHT)
    assert (shown, reward, done, info["success"]) == ("_X\n_G", 0, True, False)
    assert env.step(DOWN)[:3] == ("_X\n_G", 0, True)


def test_slips_lead_sideways_and_as_often_as_configured() -> None:
    arrived = []
    for seed in range(3000):
        env = env_showing("___", "_P_", "__G", seed=seed, is_slippery=True, success_rate=0.6)
        env.step(LEFT)
        arrived.append(env.player_position)
    shares = {position: round(arrived.count(position) / len(arrived), 1) for position in set(arrived)}
    assert shares == {(1, 0): 0.6, (0, 1): 0.2, (2, 1): 0.2}


def test_actions_follow_the_action_map() -> None:
    env = env_showing("_P_", "___", "G__", action_map={"1": 2, "2": 1, "3": 0, "4": 3})
    assert env.step(1)[0].startswith("__P")


def test_a_reset_without_seed_takes_map_seed_and_one_with_a_seed_does_not() -> None:
    fixed = make_env(map_seed=7)
    assert fixed.reset() == make_env().reset(7)
    assert fixed.reset(8) == make_env().reset(8)
    assert "G" in make_env().reset()


def test_a_lake_that_cannot_be_found_ends_in_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "ROUND_LIMIT", 3)
    with pytest.raises(LevelError, match=r"size=50, p=0\.0"):
        make_env(size=50, p=0.0).reset(2)


# ------------------------------------------------------------------------------------------------------ observations


def test_symbols_come_from_the_lookup_and_may_be_longer_than_a_character() -> None:
    env = env_showing("P_", "OG", grid_lookup={str(code): f"<{tile}>" for code, tile in enumerate("aeghij")})
    assert env.render() == "<a><e>\n<g><h>"
    assert env.step(DOWN)[0] == "<e><e>\n<i><h>"
    assert env.config.grid_vocab["<i>"] == "player in hole"


def test_coordinates_say_where_everything_is() -> None:
    env = env_showing("P_", "OG", observation_format="coord")
    board = "Board size: 2 rows x 2 cols (zero-indexed).\nStart: (0, 0)\nGoal: (1, 1)\n"
    assert env.render() == f"{board}Player: (0, 0)\nHoles: (1, 0)"
    assert env.step(DOWN)[0] == f"{board}Player in hole: (1, 0)\nHoles: (1, 0)"
    free = env_showing("P_", "_G", observation_format="coord")
    free.step(DOWN)
    assert free.step(RIGHT)[0] == f"{board}Player on goal: (1, 1)"


def test_both_formats_stand_one_after_the_other() -> None:
    shown = {
        shape: env_showing("P_", "OG", observation_format=shape).render() for shape in ("grid", "coord", "grid_coord")
    }
    assert shown["grid_coord"] == f"Coordinates: \n{shown['coord']}\nGrid Map: \n{shown['grid']}"


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


def test_an_unknown_render_mode_is_refused() -> None:
    env = make_env()
    env.reset(1)
    with pytest.raises(InputError, match="'ansi'"):
        env.render("ansi")


# ----------------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("size", 1),
        ("size", 101),
        ("size", 4.0),
        ("size", "4"),
        ("p", -0.1),
        ("p", 1.1),
        ("p", float("nan")),
        ("p", "0.8"),
        ("success_rate", 1.5),
        ("success_rate", None),
        ("is_slippery", "no"),
        ("map_seed", -1),
        ("map_seed", 1.5),
        ("render_mode", "human"),
        ("observation_format", ["grid"]),
        ("grid_lookup", {0: "P"}),
        ("grid_lookup", dict(enumerate("P_OGX√?"))),
        ("grid_lookup", {**dict(enumerate("P_OGX√")), "0": "Q"}),
        ("grid_vocab", 3),
        ("action_lookup", {1: "Left"}),
        ("action_lookup", {1: "A", 2: "B", 3: "C", 4: 4}),
        ("action_map", {1: 0, 2: 1, 3: 2}),
        ("action_map", {1: 0, 2: 1, 3: 2, 4: 4}),
        ("action_map", {"": 0, 2: 1, 3: 2, 4: 3}),
        ("action_map", [0, 1, 2, 3]),
    ],
)
def test_a_bad_value_is_refused_by_key_and_value_at_construction(key: str, value: Any) -> None:
    assert "expected" in env_contract.assert_refused(FrozenLakeEnvConfig, key, value)


def test_the_defaults_are_those_of_2025() -> None:
    config = FrozenLakeEnvConfig()
    assert (config.size, config.p, config.is_slippery, config.success_rate) == (4, 0.8, True, 1 / 3)
    assert config.action_lookup == {1: "Left", 2: "Down", 3: "Right", 4: "Up"}


# ------------------------------------------------------------------------------------------------------------ solver


def test_every_lake_is_crossed_by_the_solver_s_way_where_nothing_is_slippery() -> None:
    env = make_env(size=7, p=0.7, is_slippery=False)
    numbers = {name: number for number, name in env.config.action_lookup.items()}
    for seed in range(40):
        way = solve(env.reset(seed))
        assert way, seed
        assert [env.step(numbers[name])[1] for name in way][-1] == 1, seed


def test_the_way_is_the_shortest() -> None:
    assert solve("P__\nO_O\n__G") == ["Right", "Down", "Down", "Right"]
    assert solve("P_G\n_O_\n___") == ["Right", "Right"]


def test_where_it_is_slippery_a_longer_way_past_fewer_holes_is_taken() -> None:
    shown = "P_OG\n____\n____\n____"
    assert len(solve(shown)) == 5
    assert solve(shown, slippery=True) == ["Down", "Down", "Right", "Right", "Right", "Up", "Up"]


def test_no_way_is_needed_on_the_goal_and_there_is_none_from_a_hole_or_an_island() -> None:
    assert solve("__\n_√") == []
    assert solve("_X\n_G") is None
    assert solve("PO\nOG") is None


def test_the_solver_reads_other_symbols_names_and_formats() -> None:
    names = {1: "W", 2: "S", 3: "E", 4: "N"}
    lookup = {code: f"<{tile}>" for code, tile in enumerate("aeghij")}
    env = env_showing("P_", "OG", grid_lookup=lookup, action_lookup=names, observation_format="grid_coord")
    assert solve(env.render(), lookup, names) == ["E", "S"]


@pytest.mark.parametrize("text", ["", "hello", "P_\nG", "P_G", "PP\n_G", "__\n_G", "Board size: 4 rows x 4 cols"])
def test_the_solver_declines_what_is_no_lake(text: str) -> None:
    assert solve(text) is None
