"""Every built-in environment with actions to play, and what forks are held against: the same turns, played straight."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from envlanes import EnvSpec
from envlanes.episode.turn import TEXT, Turn
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
from support.faulty_envs import GlobalDraws, Pictures, Walk

SHOPPING = ("search[lamp]", "search[mug]", "click[next >]", "click[< prev]", "click[back to search]", "click[b1]")


@dataclass(frozen=True)
class Kind:
    """A kind of environment.

    Attributes:
        env_class: Its class.
        config: What it is built with.
        words: What may be played; the names of its actions if left out.
    """

    env_class: Any
    config: Any
    words: Sequence[str] = ()

    def spec(self, env_id: int) -> EnvSpec:
        return EnvSpec.of(self.env_class, self.config, env_id)

    def turn(self, rng: random.Random) -> Turn:
        """One to three actions, now and then one that is none."""
        words = self.words or tuple((self.config.action_lookup or {1: "A", 2: "B"}).values())
        return Turn(tuple(rng.choice([*words, "nonsense"]) for _ in range(rng.randint(1, 3))), 9)


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
}
OTHERS = {
    "walk": Kind(Walk, None, ("a", "bb")),
    "draws": Kind(GlobalDraws, None, ("a", "bb")),
    "pictures": Kind(Pictures, None, ("a", "bb")),
}


def straight(kind: Kind, seed: int, turns: Sequence[Turn]) -> list[tuple[Any, ...]]:
    """What an environment that nobody forks gives: the digest of what it shows first, and what is recorded of turns."""
    from envlanes import Engine, Settings

    with Engine([kind.spec(0)], Settings(use_lanes=False)) as engine:
        engine.reset({0: seed})
        for turn in turns:
            engine.play({0: turn})
        journal = engine.records[0].journal
        return [(journal.digest,), *[played.recorded for played in journal.played()]]


def drawn(kind: Kind, count: int, seed: int) -> list[Turn]:
    """So many turns, drawn from a seed."""
    rng = random.Random(seed)
    return [kind.turn(rng) for _ in range(count)]


def recorded(result: Any) -> tuple[Any, ...]:
    """Of a result, what a replay has to give again."""
    return TEXT.record(result)


def bare(kind: Kind) -> Kind:
    """The same game by a class that does not say that it can be copied in mid-episode, so that it is replayed."""
    return replace(kind, env_class=_bare_classes[kind.env_class])


class BareSokoban(SokobanEnv):
    """Adds nothing; but might."""


_bare_classes = {SokobanEnv: BareSokoban}
