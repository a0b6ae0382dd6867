from __future__ import annotations

from ragen.env.rubikscube.config import RubiksCubeEnvConfig
from ragen.env.rubikscube.env import RubiksCubeEnv


def test_a_solved_cube_pays_and_ends_the_game_but_render_does_not_say_so() -> None:
    env = RubiksCubeEnv(RubiksCubeEnvConfig(scramble_depth=0))
    env.reset(0)
    assert env.step(1)[1:3] == (0.0, False)
    text, reward, done, info = env.step(2)
    assert (reward, done, info["success"]) == (1.0, True, True)
    assert text.endswith("=== Game Over: Cube Solved! ===")
    assert "Game Over" not in env.render()
