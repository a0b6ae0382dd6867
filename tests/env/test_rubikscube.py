from __future__ import annotations

import pytest

from ragen.env.rubikscube.config import RubiksCubeEnvConfig
from ragen.env.rubikscube.cube import MOVES, TURNS
from ragen.env.rubikscube.env import RubiksCubeEnv

CORNERS = [(0, 4, 17), (1, 16, 13), (2, 5, 8), (3, 9, 12), (20, 7, 10), (21, 11, 14), (22, 6, 19), (23, 15, 18)]


@pytest.mark.parametrize("name", MOVES)
def test_a_turn_keeps_the_stickers_of_a_corner_together(name: str) -> None:
    turned = TURNS[MOVES.index(name)](tuple(range(24)))
    assert {frozenset(turned[place] for place in corner) for corner in CORNERS} == set(map(frozenset, CORNERS))


def test_a_solved_cube_pays_and_ends_the_game_but_render_does_not_say_so() -> None:
    env = RubiksCubeEnv(RubiksCubeEnvConfig(scramble_depth=0))
    env.reset(0)
    assert env.step(1)[1:3] == (0.0, False)
    text, reward, done, info = env.step(2)
    assert (reward, done, info["success"]) == (1.0, True, True)
    assert text.endswith("=== Game Over: Cube Solved! ===")
    assert "Game Over" not in env.render()
