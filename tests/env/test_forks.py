"""Forks of every built-in environment play on as if nobody had forked."""

from __future__ import annotations

import random
from typing import Any

import pytest

from envlanes import Engine, Settings
from ragen.env import resolve_env
from ragen.env.sokoban.env import SokobanEnv
from support.forking import Kind, drawn, recorded, straight

SEED = 7
SHOPPING = ("search[lamp]", "search[mug]", "click[next >]", "click[< prev]", "click[back to search]", "click[b1]")


class BareSokoban(SokobanEnv):
    """Does not declare itself that it can be copied in mid-episode, so that it is replayed."""


def kind(env_type: str, *actions: str, **fields: Any) -> Kind:
    env_class, config_class = resolve_env(env_type)
    return Kind(env_class, config_class(**fields), actions)  # type: ignore[misc]


BUILT_IN = {
    "bandit": kind("bandit", "Phoenix", "Dragon"),
    "countdown": kind("countdown", "1 + 1", "", "47 + 31 + 63"),
    "frozen_lake": kind("frozen_lake"),
    "frozen_lake-images": kind("frozen_lake", render_mode="rgb_array"),
    "game_2048": kind("game_2048"),
    "metamathqa": kind("metamathqa", "1", "", "415"),
    "rubikscube": kind("rubikscube"),
    "sokoban": kind("sokoban", num_boxes=1),
    "sudoku": kind("sudoku", *(f"{i % 4 + 1},{i // 4 + 1},{i % 3 + 1}" for i in range(16))),
    "webshop": kind("webshop", *SHOPPING),
    "sokoban-replayed": Kind(BareSokoban, kind("sokoban", num_boxes=1).config),
}


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("use_lanes", [True, False])
@pytest.mark.parametrize("name", BUILT_IN)
def test_forks_at_any_turn_play_on_as_if_nobody_had_forked(name: str, use_lanes: Any) -> None:
    forked = BUILT_IN[name]
    turns = drawn(forked, 8, seed=3)
    expected = straight(forked, SEED, turns)  # builds the shop's catalogue too
    with Engine([forked.spec(0)], Settings(use_lanes=use_lanes, max_workers=2)) as engine:
        engine.reset({0: SEED})
        rng, at = random.Random(5), {0: 0}
        for turn in turns[:6]:
            engine.play({0: turn})
            at[0] += 1
            earlier = rng.randrange(at[0] + 1)
            for stands, until in ((at[0], None), (earlier, earlier)):
                engine.fork(0, [len(at)], until)
                at[len(at)] = stands
        for env_id, after in at.items():
            played = [recorded(engine.play({env_id: turn})[env_id]) for turn in turns[after:]]
            assert played == expected[after + 1 :]
