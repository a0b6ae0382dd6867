from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ragen.env.sokoban.config import SokobanEnvConfig
from ragen.env.sokoban.env import SokobanEnv
from ragen.env.sokoban.generator import LevelSpec, generate_level, level_of_seed, next_seed
from ragen.env.sokoban.level import BOX, BOX_ON_TARGET, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, Level
from ragen.env.sokoban.solver import solve
from support import golden
from support.sokoban_reference import Model

CASES = [(version, tag) for version in ("up25", "up26") for tag in golden.tags(version, "resets", "sokoban")]
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


# ---------------------------------------------------------------------------------------------------- the contract


# -------------------------------------------------------------------------------------------------------- the rules


RULES = {  # a row above "XO__": the moves, the row after them, the last reward, whether it is done and effective
    "the player walks": ("P___", [RIGHT], "_P__", -0.1, False, True),
    "a wall stops it": ("P#__", [RIGHT], "P#__", -0.1, False, False),
    "a box at a wall stops it": ("PX#_", [RIGHT], "PX#_", -0.1, False, False),
    "two boxes stop it": ("PXX_", [RIGHT], "PXX_", -0.1, False, False),
    "a box is pushed": ("PX__", [RIGHT], "_PX_", -0.1, False, True),
    "onto a target": ("PXO_", [RIGHT], "_P√_", 0.9, False, True),
    "off a target": ("PXO_", [RIGHT, RIGHT], "__SX", -1.1, False, True),
    "a target stays where the player leaves it": ("PO__", [RIGHT, LEFT], "PO__", -0.1, False, True),
}


@pytest.mark.parametrize(("row", "moves", "after", "reward", "done", "effective"), RULES.values(), ids=RULES)
def test_the_rules_of_the_game(
    row: str, moves: list[int], after: str, reward: float, done: bool, effective: bool
) -> None:
    env = env_showing(row, "XO__")
    *_, last = map(env.step, moves)
    assert last[:3] == (walled(after, "XO__"), reward, done)
    assert last[3] == {"action_is_effective": effective, "action_is_valid": True, "success": False}


def test_solving_the_level_gives_10_more_and_ends_the_episode() -> None:
    shown, reward, done, info = env_showing("PXO_").step(RIGHT)
    assert (shown, reward, done, info["success"]) == (walled("_P√_"), 10.9, True, True)


# ------------------------------------------------------------------------------------------------------ observations


def test_images_have_16_pixels_a_cell_and_show_every_tile_differently() -> None:
    env = env_showing("_O√XP", "S____", render_mode="rgb_array")
    image = env.render()
    assert (image.shape, image.dtype) == ((64, 112, 3), np.uint8)
    cells = image.reshape(4, 16, 7, 16, 3).swapaxes(1, 2)
    assert len({cells[place].tobytes() for place in [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 1)]}) == 7
    assert env.step(RIGHT)[0].shape == image.shape


# ----------------------------------------------------------------------------------------------------- configuration


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
