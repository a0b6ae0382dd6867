from __future__ import annotations

import pytest

from ragen.env.game_2048.config import Game2048EnvConfig
from ragen.env.game_2048.env import LEFT, Game2048Env


def stuck_env(largest: int) -> Game2048Env:
    """A 2x2 board that one move left fills up, with this tile on it."""
    env = Game2048Env(Game2048EnvConfig(size=2, two_prob=1.0))
    env.reset(0)
    env._board = ((0, largest), (8, 16))
    env._look()
    return env


@pytest.mark.parametrize(("largest", "success"), [(2048, True), (1024, False), (4096, True)])
def test_2048_counts_if_it_is_there_when_the_board_is_stuck(largest: int, success: bool) -> None:
    text, _, done, info = stuck_env(largest).step(LEFT)
    assert done
    assert (info["success"], info["max_tile"]) == (success, largest)
    assert "Valid Actions: None." in text
