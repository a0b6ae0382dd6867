"""What every environment promises. WebShop's own module calls the same checks with a shop of its own."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen.env import tiles
from ragen.env.bandit.config import BanditEnvConfig
from ragen.env.bandit.env import BanditEnv
from ragen.env.countdown.env import CountdownEnv
from ragen.env.frozen_lake.config import FrozenLakeEnvConfig
from ragen.env.frozen_lake.env import FrozenLakeEnv
from ragen.env.game_2048.config import Game2048EnvConfig
from ragen.env.game_2048.env import Game2048Env
from ragen.env.metamathqa.env import MetaMathQAEnv
from ragen.env.rubikscube.config import RubiksCubeEnvConfig
from ragen.env.rubikscube.env import RubiksCubeEnv
from ragen.env.sokoban.config import SokobanEnvConfig
from ragen.env.sokoban.env import SokobanEnv
from ragen.env.sudoku.config import SudokuEnvConfig
from ragen.env.sudoku.env import SudokuEnv
from ragen.errors import InputError, StateError
from support import env_contract

PULLS = (2, 1, 1, 2, 2, 1, 1, 2, 2, 2, 1, 1)
MOVES = (1, 4, 2, 2, 3, 1, 4, 4, 3, 2, 1, 1)
SLIDES = (0, 1, 2, 3, 3, 3, 1, 0, 2, 1, 0, 3)
TURNS = (12, 1, 8, 3, 11, 6)
NO_MOVES = (0, 5, 99, -1, "Up", "1", None, 1.5, [1], {})


@dataclass(frozen=True)
class Game:
    """An environment to hold against the contract.

    Attributes:
        make: Makes it.
        actions: What is played.
        pickled: How many bytes it may have when it is pickled.
        refused: What is no action of it, and changes nothing.
        named: What its refusal says is expected; a regular expression.
    """

    make: Callable[[], Any]
    actions: Sequence[Any]
    pickled: int = 4000
    refused: Sequence[Any] = ()
    named: str = ""


def sudoku(render_format: str) -> SudokuEnv:
    return SudokuEnv(SudokuEnvConfig(grid_size=9, render_format=render_format))


def placements() -> list[str]:
    """Five right ones for the seed that is played, and what is none."""
    env = sudoku("simple")
    env.reset(env_contract.SEED)
    blanks = [index for index, number in enumerate(env.given) if not number][:5]
    right = [f"place {env.solution[index]} at row {index // 9 + 1} col {index % 9 + 1}" for index in blanks]
    return [*right, "hello", "1,1,1", "0,0,0"]


def bandit(split: str | None) -> Game:
    make = functools.partial(BanditEnv, BanditEnvConfig(split=split))
    return Game(make, PULLS, refused=(0, 3, "dragon", None, [1]), named="expected one of 1")


def game_2048(size: int) -> Game:
    make = functools.partial(Game2048Env, Game2048EnvConfig(size=size))
    return Game(make, SLIDES, refused=(4, -1, "Up", None), named=r"expected one of 0 \(Up\)")


def rubikscube(legacy: bool) -> Game:
    make = functools.partial(RubiksCubeEnv, RubiksCubeEnvConfig(legacy_b_move=legacy))
    return Game(make, TURNS, refused=(0, 13, "U", None), named=r"expected one of 1 \(U\)")


def frozen_lake(**config: Any) -> FrozenLakeEnv:
    return FrozenLakeEnv(FrozenLakeEnvConfig(**config))


def sokoban(**config: Any) -> SokobanEnv:
    return SokobanEnv(SokobanEnvConfig(num_boxes=1, **config))


NUMBERED = {
    "bandit": bandit(None),
    "bandit-train": bandit("train"),
    "frozen_lake": Game(frozen_lake, MOVES, refused=NO_MOVES, named=r"expected one of 1 \(Left\)"),
    **{f"game_2048-{size}": game_2048(size) for size in (2, 4, 5)},
    "rubikscube": rubikscube(False),
    "rubikscube-legacy": rubikscube(True),
    "sokoban": Game(sokoban, MOVES, refused=NO_MOVES, named=r"expected one of 1 \(Up\)"),
}
SPOKEN = {
    "countdown": Game(CountdownEnv, ("1 + 1", "", "47 + 31 + 63"), pickled=2000),
    "metamathqa": Game(MetaMathQAEnv, ("1", "", "415"), pickled=2000),
    **{
        f"sudoku-{name}": Game(functools.partial(sudoku, name), placements())
        for name in ("simple", "detailed", "with_feedback")
    },
}
GAMES = {**NUMBERED, **SPOKEN}
GRIDS = ("frozen_lake", "sokoban")
every_game = pytest.mark.parametrize("game", GAMES.values(), ids=GAMES)
every_grid = pytest.mark.parametrize("game", [GAMES[name] for name in GRIDS], ids=GRIDS)


@every_game
def test_seed_and_actions_decide_everything(game: Game) -> None:
    env_contract.assert_seed_and_actions_decide_everything(game.make, game.actions)


@every_game
def test_what_loads_a_snapshot_of_any_moment_goes_its_own_way(game: Game) -> None:
    env_contract.assert_saves_at_any_moment(game.make, game.actions)


@every_game
def test_an_episode_survives_pickling(game: Game) -> None:
    env_contract.assert_pickles_in_mid_episode(game.make, game.actions, game.pickled)


@every_game
def test_the_global_generators_are_left_alone(game: Game) -> None:
    env_contract.assert_leaves_the_global_generators_alone(game.make, game.actions)


@every_game
def test_nothing_can_be_played_before_a_reset(game: Game) -> None:
    with pytest.raises(StateError, match="before the first reset"):
        game.make().step(game.actions[0])


@every_grid
def test_nothing_is_shown_before_a_reset(game: Game) -> None:
    with pytest.raises(StateError, match="before the first reset"):
        game.make().render()


@pytest.mark.parametrize(
    ("name", "action"), [(name, action) for name, game in NUMBERED.items() for action in game.refused]
)
def test_an_unknown_action_is_refused_and_changes_nothing(name: str, action: Any) -> None:
    env = NUMBERED[name].make()
    shown = env.reset(1)
    before = pickle.dumps(env)
    with pytest.raises(InputError, match=NUMBERED[name].named):
        env.step(action)
    assert env.render() == shown
    assert pickle.dumps(env) == before


@every_grid
@given(action=st.one_of(st.text(), st.integers(), st.floats(), st.binary(), st.none(), st.lists(st.integers())))
def test_any_action_is_either_played_or_refused(game: Game, action: Any) -> None:
    env = game.make()
    env.reset(1)
    try:
        env.step(action)
    except InputError:
        assert not isinstance(action, int) or action not in env.get_all_actions()


@pytest.mark.parametrize("make", [frozen_lake, sokoban])
def test_stepping_and_rendering_text_paint_nothing(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "mosaic", lambda *_: pytest.fail("an image was painted"))
    env = make(observation_format="grid_coord")
    env.reset(1)
    env_contract.play(env, MOVES)
