"""What every light environment promises. Heavy ones call the same checks in modules of their own."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen.env import resolve_env, tiles
from ragen.errors import InputError, StateError
from support import env_contract

NO_MOVES = (0, 13, -1, "Up", "1", None, 1.5, [1], {})
PULLS, MOVES, SLIDES, TURNS = (2, 1, 1, 2), (1, 4, 2, 2, 3, 1, 4, 4, 3), (0, 1, 2, 3, 3, 1), (12, 1, 8, 3, 11)
PLACEMENTS = ("place 1 at row 1 col 1", "2,2,3", "(3, 1, 4)", "hello", "4,4,1", "0,0,0")
GAMES: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "bandit": ("bandit", {}, PULLS),
    "bandit-train": ("bandit", {"split": "train"}, PULLS),
    "countdown": ("countdown", {}, ("1 + 1", "", "47 + 31 + 63")),
    "frozen_lake": ("frozen_lake", {}, MOVES),
    "game_2048": ("game_2048", {"size": 3}, SLIDES),
    "metamathqa": ("metamathqa", {}, ("1", "", "415")),
    "rubikscube": ("rubikscube", {}, TURNS),
    "sokoban": ("sokoban", {"num_boxes": 1}, MOVES),
    "sudoku": ("sudoku", {"grid_size": 4}, PLACEMENTS),
}
NUMBERED = [name for name, (_, _, actions) in GAMES.items() if isinstance(actions[0], int)]
GRIDS = ("frozen_lake", "sokoban")


def make(name: str, **more: Any) -> Any:
    env_type, fields, _ = GAMES[name]
    env_class, config_class = resolve_env(env_type)
    return env_class(config_class(**fields, **more))  # type: ignore[misc]


@pytest.mark.parametrize("name", GAMES)
def test_the_contract_of_environments_is_kept(name: str) -> None:
    made, actions = partial(make, name), GAMES[name][2]
    env_contract.assert_seed_and_actions_decide_everything(made, actions)
    env_contract.assert_saves_at_any_moment(made, actions)
    env_contract.assert_pickles_in_mid_episode(made, actions)
    env_contract.assert_leaves_the_global_generators_alone(made, actions)
    with pytest.raises(StateError):
        made().step(actions[0])


@pytest.mark.parametrize("name", NUMBERED)
def test_an_unknown_action_is_refused_and_changes_nothing(name: str) -> None:
    env = make(name)
    env.reset(1)
    before = pickle.dumps(env)
    for action in NO_MOVES:
        if isinstance(action, list | dict) or action not in env.config.action_lookup:
            with pytest.raises(InputError):
                env.step(action)
    assert pickle.dumps(env) == before


@pytest.mark.parametrize("name", GRIDS)
@given(action=st.one_of(st.text(), st.integers(), st.floats(), st.binary(), st.none(), st.lists(st.integers())))
def test_any_action_is_either_played_or_refused(name: str, action: Any) -> None:
    env = make(name)
    env.reset(1)
    try:
        env.step(action)
    except InputError:
        assert not isinstance(action, int) or action not in env.get_all_actions()


@pytest.mark.parametrize("name", GRIDS)
def test_text_paints_nothing_and_nothing_is_shown_before_a_reset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "mosaic", lambda *_: pytest.fail("an image was painted"))
    env = make(name, observation_format="grid_coord")
    with pytest.raises(StateError):
        env.render()
    env.reset(1)
    env_contract.play(env, MOVES)
