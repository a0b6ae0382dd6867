"""Forks of every built-in environment play on as if nobody had forked."""

from __future__ import annotations

import random
from typing import Any

import pytest

from envlanes import Engine, Settings
from ragen.env.bandit.config import BanditEnvConfig
from ragen.env.bandit.env import BanditEnv
from ragen.env.countdown.config import CountdownEnvConfig
from ragen.env.countdown.env import CountdownEnv
from ragen.env.frozen_lake.config import FrozenLakeEnvConfig
from ragen.env.frozen_lake.env import FrozenLakeEnv
from ragen.env.game_2048.config import Game2048EnvConfig
from ragen.env.game_2048.env import Game2048Env
from ragen.env.metamathqa.config import MetaMathQAEnvConfig
from ragen.env.metamathqa.env import MetaMathQAEnv
from ragen.env.rubikscube.config import RubiksCubeEnvConfig
from ragen.env.rubikscube.env import RubiksCubeEnv
from ragen.env.sokoban.config import SokobanEnvConfig
from ragen.env.sokoban.env import SokobanEnv
from ragen.env.sudoku.config import SudokuEnvConfig
from ragen.env.sudoku.env import SudokuEnv
from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv
from support.forking import Kind, drawn, recorded, straight

SEED = 7
SHOPPING = ("search[lamp]", "search[mug]", "click[next >]", "click[< prev]", "click[back to search]", "click[b1]")


class BareSokoban(SokobanEnv):
    """Does not declare itself that it can be copied in mid-episode, so that it is replayed."""


BUILT_IN = {
    "bandit": Kind(BanditEnv, BanditEnvConfig(), ("Phoenix", "Dragon")),
    "countdown": Kind(CountdownEnv, CountdownEnvConfig(), ("1 + 1", "", "47 + 31 + 63")),
    "frozen_lake": Kind(FrozenLakeEnv, FrozenLakeEnvConfig()),
    "frozen_lake-images": Kind(FrozenLakeEnv, FrozenLakeEnvConfig(render_mode="rgb_array")),
    "game_2048": Kind(Game2048Env, Game2048EnvConfig()),
    "metamathqa": Kind(MetaMathQAEnv, MetaMathQAEnvConfig(), ("1", "", "415")),
    "rubikscube": Kind(RubiksCubeEnv, RubiksCubeEnvConfig()),
    "sokoban": Kind(SokobanEnv, SokobanEnvConfig(num_boxes=1)),
    "sokoban-images": Kind(SokobanEnv, SokobanEnvConfig(num_boxes=1, render_mode="rgb_array")),
    "sudoku": Kind(SudokuEnv, SudokuEnvConfig(), tuple(f"{i % 4 + 1},{i // 4 + 1},{i % 3 + 1}" for i in range(16))),
    "webshop": Kind(WebShopEnv, WebShopEnvConfig(), SHOPPING),
    "sokoban-replayed": Kind(BareSokoban, SokobanEnvConfig(num_boxes=1)),
}


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("use_lanes", [True, False])
@pytest.mark.parametrize("name", BUILT_IN)
def test_forks_at_any_turn_play_on_as_if_nobody_had_forked(name: str, use_lanes: Any) -> None:
    kind = BUILT_IN[name]
    turns = drawn(kind, 8, seed=3)
    expected = straight(kind, SEED, turns)  # builds the shop's catalogue too
    with Engine([kind.spec(0)], Settings(use_lanes=use_lanes, max_workers=2)) as engine:
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
