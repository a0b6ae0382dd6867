from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ragen.env.sokoban import generator, reverse_search
from ragen.env.sokoban.config import SokobanEnvConfig
from ragen.env.sokoban.env import SokobanEnv
from ragen.env.sokoban.generator import LevelSpec, generate_level, level_of_seed, next_seed
from ragen.env.sokoban.level import BOX, BOX_ON_TARGET, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, Level, room_shape
from ragen.env.sokoban.solver import solve
from ragen.errors import ConfigError, InputError, LevelError
from support import env_contract, golden
from support.sokoban_reference import Model

CASES = [(version, tag) for version in ("up25", "up26") for tag in golden.tags(version, "resets", "sokoban")]
ACTIONS = [1, 4, 2, 2, 3, 1, 4, 4, 3, 2, 1, 1]
UP, DOWN, LEFT, RIGHT = 1, 2, 3, 4
TILES = "#_O√XPS"


def make_env(**config: Any) -> SokobanEnv:
    return SokobanEnv(SokobanEnvConfig(**{"num_boxes": 1, **config}))


def walled(*inside: str) -> str:
    """A room with walls around these rows, in the default symbols."""
    border = "#" * (len(inside[0]) + 2)
    return "\n".join([border, *(f"#{row}#" for row in inside), border])


def env_showing(*inside: str, **config: Any) -> SokobanEnv:
    """An environment that was reset to the level with these rows inside its walls."""
    drawing = walled(*inside)
    room = bytes([f"{TILES}\n".index(tile) for tile in drawing])
    under = {BOX_ON_TARGET: TARGET, BOX: FLOOR, PLAYER: FLOOR, PLAYER_ON_TARGET: TARGET}
    player = next(cell for cell, tile in enumerate(room) if tile in (PLAYER, PLAYER_ON_TARGET))
    boxes = drawing.count("X") + drawing.count("√")
    env = make_env(dim_room=(len(inside) + 2, len(inside[0]) + 2), **{"num_boxes": boxes, **config})
    env._start(Level(bytes(under.get(tile, tile) for tile in room), room, player, ()))
    return env


# ------------------------------------------------------------------------------------------ equal to the reference


def test_seeds_that_the_reference_retries_give_no_level_of_their_own() -> None:
    specs = {
        tag: LevelSpec(*config.dim_room, config.num_boxes, config.search_depth)
        for version, tag in CASES
        for config in [SokobanEnvConfig(**golden.resets(version, tag).env_config)]
    }
    retries = [record for record in golden.records("up25", "sokoban_retry_seeds.jsonl.gz") if record["kind"] == "retry"]
    for record in [record for record in retries if record["tag"] in specs][::15]:
        *failed, last = record["chain"]
        assert [level_of_seed(specs[record["tag"]], seed)[0] for seed in failed] == [None] * len(failed)
        env = SokobanEnv(SokobanEnvConfig(**golden.resets("up25", record["tag"]).env_config))
        golden.assert_same_observation(env.reset(last), record["state"], record["seed"])


def env_of_level(level: Level, spec: LevelSpec) -> SokobanEnv:
    env = make_env(dim_room=(spec.height, spec.width))
    env._start(level)
    return env


@pytest.mark.parametrize("case", range(60))
def test_odd_rooms_are_those_of_a_literal_recursive_model(case: int) -> None:
    rng = random.Random(case)
    height, width = rng.randint(3, 9), rng.randint(3, 9)
    boxes, depth = rng.randint(1, 3), rng.choice([5, 10, 30, 300])
    seed = rng.randrange(2**32)
    expected = Model(seed).level(height, width, boxes, depth)
    level, _ = level_of_seed(LevelSpec(height, width, boxes, depth), seed)
    if expected is None:
        assert level is None
        return
    env = env_of_level(level, LevelSpec(height, width, boxes, depth))
    assert (env.room_fixed.tolist(), env.room_state.tolist(), list(level.boxes)) == expected


def test_the_search_stops_at_the_same_number_of_states_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reverse_search.STATE_LIMIT == 300_000
    spec = LevelSpec(7, 7, 2, 300)
    levels = {}
    for limit in (40, 60, 300_000):
        monkeypatch.setattr(reverse_search, "STATE_LIMIT", limit)
        level, explored = level_of_seed(spec, 4)
        fixed, room, pairs = Model(4, limit).level(*spec)
        env = env_of_level(level, spec)
        assert (env.room_fixed.tolist(), env.room_state.tolist(), list(level.boxes)) == (fixed, room, pairs)
        levels[limit] = explored
    assert levels[40] < levels[60] < levels[300_000]


# ------------------------------------------------------------------------------------------------- retries and seeds


def test_a_seed_without_level_goes_on_with_the_same_seed_in_every_process() -> None:
    script = (
        "from ragen.env.sokoban.generator import *\n"
        "print([generate_level(LevelSpec(6, 6, 3, 300), seed).room.hex() for seed in range(8)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    here = [generate_level(LevelSpec(6, 6, 3, 300), seed).room.hex() for seed in range(8)]
    assert outputs == {f"{here}\n"}


def test_the_next_seed_is_the_start_of_the_seed_s_sha256() -> None:
    assert next_seed(0) == 0x5FECEB66
    spec = LevelSpec(6, 6, 3, 300)
    failing = next(seed for seed in range(100) if level_of_seed(spec, seed)[0] is None)
    following = failing
    while level_of_seed(spec, following)[0] is None:
        following = next_seed(following)
    assert generate_level(spec, failing) == level_of_seed(spec, following)[0]


def test_a_configuration_without_levels_ends_in_a_clear_error() -> None:
    env = make_env(dim_room=(3, 6), num_boxes=2)  # a corridor of four cells
    with pytest.raises(LevelError, match=r"seed 5 with dim_room=\(3, 6\), num_boxes=2"):
        env.reset(5)


def test_searches_that_find_nothing_are_bounded_by_the_states_explored(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fruitless(spec: LevelSpec, seed: int) -> tuple[None, int]:
        tried.append(seed)
        return None, 1_200_000

    monkeypatch.setattr(generator, "level_of_seed", fruitless)
    with pytest.raises(LevelError):
        generate_level(LevelSpec(10, 10, 9, 301), 1)
    assert len(tried) < 20


@pytest.mark.parametrize("seed", [-1, 2**32, "1", 1.5])
def test_a_seed_must_be_an_integer_of_32_bits(seed: Any) -> None:
    with pytest.raises(InputError, match="seed"):
        make_env().reset(seed)


def test_without_a_seed_some_level_is_made() -> None:
    assert "P" in make_env(grid_lookup=dict(enumerate("#_O√XPP"))).reset()


def test_levels_made_by_threads_at_once_are_the_usual_ones() -> None:
    specs = [(LevelSpec(6, 6, 2, 300), seed) for seed in range(40)] * 2
    with ThreadPoolExecutor(4) as threads:
        rooms = list(threads.map(lambda job: level_of_seed(*job), specs))
    assert rooms == [level_of_seed(*job) for job in specs]


# ---------------------------------------------------------------------------------------------------- the contract


def test_a_room_s_tables_are_not_pickled() -> None:
    shape = room_shape(100, 100)
    assert len(pickle.dumps(shape)) < 200
    assert pickle.loads(pickle.dumps(shape)) is shape


# -------------------------------------------------------------------------------------------------------- the rules


def test_the_player_walks_in_four_directions() -> None:
    env = env_showing("____", "_P__", "X__O")
    for action, after in [(UP, "#_P__#"), (LEFT, "#P___#"), (DOWN, "#P___#"), (RIGHT, "#_P__#")]:
        shown, reward, done, info = env.step(action)
        assert after in shown.split("\n")
        assert (reward, done) == (-0.1, False)
        assert info == {"action_is_effective": True, "action_is_valid": True, "success": False}


@pytest.mark.parametrize("row", ["P#___", "PX#__", "PX√__", "PXX__", "___#P"])
def test_walls_and_blocked_boxes_stop_the_player(row: str) -> None:
    env = env_showing(row, "XOOOO")
    shown, reward, done, info = env.step(RIGHT)
    assert shown == walled(row, "XOOOO")
    assert (reward, done, info["action_is_effective"]) == (-0.1, False, False)


def test_a_box_is_pushed_only_if_the_cell_behind_is_free() -> None:
    env = env_showing("PX__", "O___")
    assert env.step(RIGHT)[0] == walled("_PX_", "O___")
    assert env.step(RIGHT)[0] == walled("__PX", "O___")
    assert env.step(RIGHT)[3]["action_is_effective"] is False
    assert env.render() == walled("__PX", "O___")


def test_a_box_pushed_onto_a_target_gives_1_and_pushed_off_takes_it_back() -> None:
    env = env_showing("PXO_", "XO__")
    assert env.step(RIGHT)[:3] == (walled("_P√_", "XO__"), 0.9, False)
    assert env.step(RIGHT)[:3] == (walled("__SX", "XO__"), -1.1, False)


def test_a_box_pushed_from_target_to_target_gives_neither() -> None:
    env = env_showing("P√O_", "X___")
    env._boxes_on_target = 1
    assert env.step(RIGHT)[:2] == (walled("_S√_", "X___"), -0.1)


def test_solving_the_level_gives_10_more_and_ends_the_episode() -> None:
    shown, reward, done, info = env_showing("PXO_").step(RIGHT)
    assert (shown, reward, done, info["success"]) == (walled("_P√_"), 10.9, True, True)


def test_stepping_on_after_the_end_goes_on_as_in_the_reference() -> None:
    env = env_showing("PXO_")
    env.step(RIGHT)
    assert env.step(LEFT)[1:] == (9.9, True, {"action_is_effective": True, "action_is_valid": True, "success": True})
    env.step(RIGHT)
    assert env.step(RIGHT)[1:3] == (-1.1, False)


def test_the_step_number_max_steps_ends_the_episode_and_no_other_does() -> None:
    env = env_showing("P_XO", max_steps=3)
    assert [env.step(LEFT)[2] for _ in range(5)] == [False, False, True, False, False]


def test_a_target_stays_where_the_player_leaves_it() -> None:
    env = env_showing("PO_X", "_O_X")
    assert env.step(RIGHT)[0] == walled("_S_X", "_O_X")
    assert env.step(LEFT)[0] == walled("PO_X", "_O_X")


# ------------------------------------------------------------------------------------------------------ observations


def test_symbols_come_from_the_lookup_and_may_be_longer_than_a_character() -> None:
    lookup = {str(code): f" {tile} " for code, tile in enumerate("W.GCBA@")}
    env = env_showing("PXO_", grid_lookup=lookup)
    assert env.render().split("\n")[1] == " W  A  B  G  .  W "
    assert env.config.grid_vocab[" B "] == "box"


def test_coordinates_list_what_there_is_row_by_row() -> None:
    assert env_showing("P√XO_", "_XO__", observation_format="coord").render() == (
        "Board size: 4 rows x 7 cols (zero-indexed).\n"
        "Targets: (1, 2), (1, 4), (2, 3)\n"
        "Boxes: (1, 3), (2, 2)\n"
        "Boxes on target: (1, 2)\n"
        "Player: (1, 1)"
    )


def test_both_formats_stand_one_after_the_other() -> None:
    shown = {shape: env_showing("SX__", observation_format=shape).render() for shape in ("grid", "coord", "grid_coord")}
    assert shown["coord"].endswith("Targets: (1, 1)\nBoxes: (1, 2)\nPlayer on target: (1, 1)")
    assert shown["grid_coord"] == f"Coordinates: \n{shown['coord']}\nGrid Map: \n{shown['grid']}"


def test_images_have_16_pixels_a_cell_and_show_every_tile_differently() -> None:
    env = env_showing("_O√XP", "S____", render_mode="rgb_array")
    image = env.render()
    assert (image.shape, image.dtype) == ((64, 112, 3), np.uint8)
    cells = image.reshape(4, 16, 7, 16, 3).swapaxes(1, 2)
    assert len({cells[place].tobytes() for place in [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 1)]}) == 7
    assert env.step(RIGHT)[0].shape == image.shape


def test_an_image_is_the_caller_s_own() -> None:
    env = make_env(render_mode="rgb_array")
    image = env.reset(1)
    image[:] = 0
    assert env.render().any()


def test_text_and_images_can_be_asked_for_whatever_the_configuration_says() -> None:
    env = make_env()
    shown = env.reset(1)
    assert env.render("rgb_array").shape == (96, 96, 3)
    assert make_env(render_mode="rgb_array").reset(1).shape == (96, 96, 3)
    assert env.render("text") == shown
    with pytest.raises(InputError, match="'ansi'"):
        env.render("ansi")


# ----------------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dim_room", (2, 6)),
        ("dim_room", (6, 101)),
        ("dim_room", (6,)),
        ("dim_room", 6),
        ("dim_room", "66"),
        ("dim_room", (6.0, 6)),
        ("dim_x", 2),
        ("dim_y", "6"),
        ("num_boxes", 0),
        ("num_boxes", 15),
        ("num_boxes", True),
        ("max_steps", 0),
        ("search_depth", 2),
        ("search_depth", 3.5),
        ("render_mode", "human"),
        ("render_mode", None),
        ("observation_format", "xml"),
        ("grid_lookup", {0: "#"}),
        ("grid_lookup", dict(enumerate("#_O√XPS?"))),
        ("grid_lookup", {**dict(enumerate("#_O√XPS")), 3: ""}),
        ("grid_lookup", {**dict(enumerate("#_O√XPS")), 3: "a\nb"}),
        ("grid_lookup", ["#", "_"]),
        ("grid_vocab", "wall"),
        ("grid_vocab", {"#": 1}),
        ("action_lookup", {1: "Up", 2: "Down", 3: "Left"}),
        ("action_lookup", {1: "Up", 2: "Down", 3: "Left", 4: "up"}),
        ("action_lookup", None),
    ],
)
def test_a_bad_value_is_refused_by_key_and_value_at_construction(key: str, value: Any) -> None:
    assert "expected" in env_contract.assert_refused(SokobanEnvConfig, key, value)


def test_a_room_too_small_for_its_boxes_is_refused() -> None:
    assert make_env(dim_room=(4, 4), num_boxes=2)
    with pytest.raises(ConfigError, match="num_boxes=3"):
        SokobanEnvConfig(dim_room=(4, 4), num_boxes=3)


def test_dim_x_and_dim_y_replace_dim_room_only_together() -> None:
    assert SokobanEnvConfig(dim_x=7, dim_y=8).dim_room == (7, 8)
    assert SokobanEnvConfig(dim_x=7).dim_room == (6, 6)
    assert make_env(dim_x=5, dim_y=9).reset(3).count("\n") == 4


def test_lookups_take_digits_as_keys_and_become_ints() -> None:
    config = SokobanEnvConfig(
        grid_lookup={str(code): tile for code, tile in enumerate(TILES)},
        action_lookup={"1": "Up", "2": "Down", "3": "Left", "4": "Right"},
    )
    assert config.grid_lookup == dict(enumerate(TILES))
    assert config.action_lookup == {1: "Up", 2: "Down", 3: "Left", 4: "Right"}
    assert SokobanEnv(config).get_all_actions() == [1, 2, 3, 4]


# ------------------------------------------------------------------------------------------------------------ solver


def play_names(env: SokobanEnv, names: list[str]) -> dict[str, Any]:
    numbers = {name: number for number, name in env.config.action_lookup.items()}
    info: dict[str, Any] = {}
    for name in names:
        info = env.step(numbers[name])[3]
    return info


@pytest.mark.parametrize("boxes", [1, 2, 3])
def test_every_level_made_is_solved_by_the_solver_s_moves(boxes: int) -> None:
    env = make_env(num_boxes=boxes, dim_room=(6, 7))
    for seed in range(25):
        names = solve(env.reset(seed))
        assert names, seed
        assert play_names(env, names)["success"] is True, seed


def test_a_solution_has_the_fewest_moves() -> None:
    assert solve(walled("_____", "PX_O_", "_____")) == ["Right", "Right"]
    assert solve(walled("____", "_X__", "_OP_")) == ["Up", "Up", "Left", "Down"]


def test_a_solved_level_needs_no_moves_and_a_stuck_one_has_none() -> None:
    assert solve(walled("P√_")) == []
    assert solve(walled("X__", "_PO")) is None


def test_the_solver_gives_up_beyond_its_limit() -> None:
    level = walled("______", "_X_P__", "__X___", "O____O")
    assert solve(level)
    assert solve(level, node_limit=10) is None


def test_the_solver_reads_other_symbols_names_and_formats() -> None:
    lookup = {code: f" {tile} " for code, tile in enumerate("W.GCBA@")}
    names = {1: "N", 2: "S", 3: "W", 4: "E"}
    env = env_showing("PXO_", grid_lookup=lookup, action_lookup=names, observation_format="grid_coord")
    assert solve(env.render(), lookup, names) == ["E"]


@pytest.mark.parametrize(
    "text", ["", "hello", "###\n#P#\n##", "###\n#_#\n###", "PP\nXO", "Board size: 4 rows x 4 cols (zero-indexed)."]
)
def test_the_solver_declines_what_is_no_level(text: str) -> None:
    assert solve(text) is None
