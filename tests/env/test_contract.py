"""What every environment promises."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from ragen.env import resolve_env
from ragen.errors import InputError, MissingExtraError, SandboxError, StateError
from support import env_contract

NO_MOVES = (0, 13, -1, "Up", "1", None, 1.5, [1], {})
PULLS, MOVES, SLIDES, TURNS = (2, 1, 1, 2), (1, 4, 2, 2, 3, 1, 4, 4, 3), (0, 1, 2, 3, 3, 1), (12, 1, 8, 3, 11)
PLACEMENTS = ("place 1 at row 1 col 1", "2,2,3", "(3, 1, 4)", "hello", "4,4,1", "0,0,0")
COMMANDS = ("echo a > a.txt; ls", "cd /tmp; touch b", "pwd; ls; false", "rm -rf ~/*", "date; echo $RANDOM; mktemp")
GAMES: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "alfworld": (
        "alfworld",
        {"num_train_games": 2, "num_eval_games": 1, "task_types": [1]},
        ("look", "inventory", "go to garbagecan 1", "examine garbagecan 1", "dance", ""),
    ),
    "bandit": ("bandit", {}, PULLS),
    "bandit-train": ("bandit", {"split": "train"}, PULLS),
    "code": ("code", {"cpu_seconds": 0.5, "max_tries": 9}, ("def f(): return None", "```\nprint(1)\n```", "def f(:")),
    "countdown": ("countdown", {}, ("1 + 1", "", "47 + 31 + 63")),
    "frozen_lake": ("frozen_lake", {}, MOVES),
    "game_2048": ("game_2048", {"size": 3}, SLIDES),
    "metamathqa": ("metamathqa", {}, ("1", "", "415")),
    "rubikscube": ("rubikscube", {}, TURNS),
    "search": ("search", {"entities": 120, "max_searches": 2}, ("search[river]", "search[]", "", "answer[nothing]")),
    "sokoban": ("sokoban", {"num_boxes": 1}, MOVES),
    "sudoku": ("sudoku", {"grid_size": 4}, PLACEMENTS),
    "terminal": ("terminal", {"max_steps": 50}, COMMANDS),
    "textworld": (
        "textworld",
        {"families": ["coin"], "games": 2, "val_games": 1},
        ("look", "Inventory", "save", "", "take coin", "go north", "go west", "go east", "go south"),
    ),
    "webshop": ("webshop", {}, ("search[lamp]", "click[next >]", "click[back to search]", "click[buy now]", "tall")),
}
NUMBERED = [name for name, (_, _, actions) in GAMES.items() if isinstance(actions[0], int)]


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """A function that makes an environment, or skips the test where it cannot be had; all are closed in the end."""
    made: list[Any] = []

    def build(name: str, **more: Any) -> Any:
        env_type, fields, _ = GAMES[name]
        env_class, config_class = resolve_env(env_type)
        try:
            made.append(env_class(config_class(**fields, **more)))  # type: ignore[misc]
        except (MissingExtraError, SandboxError) as lacks:
            pytest.skip(str(lacks))
        return made[-1]

    yield build
    for env in made:
        env.close()


@pytest.mark.usefixtures("own_cache")
@pytest.mark.timeout(600)  # games are compiled
@pytest.mark.parametrize("name", GAMES)
def test_the_contract_of_environments_is_kept(name: str, make: Callable[..., Any]) -> None:
    made, actions = partial(make, name), GAMES[name][2]
    env_contract.assert_seed_and_actions_decide_everything(made, actions)
    if hasattr(made(), "save"):
        env_contract.assert_saves_at_any_moment(made, actions)
        env_contract.assert_pickles_in_mid_episode(made, actions)
    env_contract.assert_leaves_the_global_generators_alone(made, actions)
    with pytest.raises(StateError):
        made().step(actions[0])


@pytest.mark.parametrize("name", NUMBERED)
def test_an_unknown_action_is_refused_and_changes_nothing(name: str, make: Callable[..., Any]) -> None:
    env = make(name)
    env.reset(1)
    before = pickle.dumps(env)
    for action in NO_MOVES:
        if isinstance(action, list | dict) or action not in env.config.action_lookup:
            with pytest.raises(InputError):
                env.step(action)
    assert pickle.dumps(env) == before
