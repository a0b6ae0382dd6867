"""The games of this package keep what the engine's own games keep."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from envlanes.gym.game import GYM, GymTurn
from envlanes.ragen.turn import TEXT, Turn
from ragen.cage2.env import Cage2Env
from ragen.errors import ReturnError
from ragen.meta.manager import META
from ragen.turns.game import ACTIONS


def play(game: str, *returned: Any) -> Any:
    """A turn of an environment whose step returns these values."""
    env: Any = SimpleNamespace(step=lambda action: returned, render=lambda: "seen")
    if game == "cage2":
        env = Cage2Env()
        env.reset(seed=1)
        env.game.step = lambda action: ([0] * 52, returned[1])
    plays = {
        "ragen": lambda: TEXT.play(env, Turn(("go",), 1)),
        "container": lambda: ACTIONS.play(env, "go"),
        "meta": lambda: META.play(env, GymTurn("go")),
        "cage2": lambda: GYM.play(env, GymTurn(0)),
    }
    return plays[game]()


@pytest.mark.parametrize("reward", [math.nan, 10**400, None, "1"], ids=repr)
@pytest.mark.parametrize("game", ["ragen", "container", "meta", "cage2"])
def test_a_reward_is_a_finite_number_in_every_game(game: str, reward: Any) -> None:
    with pytest.raises(ReturnError):
        play(game, "seen", reward, False, {})


@pytest.mark.parametrize("key", ["success", "won", "task_success"])
def test_a_container_takes_no_text_for_a_success(key: str) -> None:
    with pytest.raises(ReturnError, match=key):
        play("container", "seen", 1.0, True, {key: "no"})
