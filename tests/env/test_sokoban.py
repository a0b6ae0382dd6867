from __future__ import annotations

import pytest

from ragen.env.sokoban.config import SokobanEnvConfig
from ragen.env.sokoban.env import SokobanEnv
from ragen.env.sokoban.solver import solve


@pytest.mark.parametrize("boxes", [1, 2, 3])
def test_every_level_is_solved_by_the_solvers_moves_which_earn_10_at_the_end(boxes: int) -> None:
    env = SokobanEnv(SokobanEnvConfig(num_boxes=boxes, dim_room=(6, 7)))
    numbers = {name: number for number, name in env.config.action_lookup.items()}
    for seed in range(25):
        *_, (_, reward, done, info) = [env.step(numbers[name]) for name in solve(env.reset(seed)) or ()]
        assert (reward, done, info["success"]) == (10.9, True, True), seed
