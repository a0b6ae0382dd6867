"""Text adventures: TextWorld's generated games and what may be said to them; ALFWorld's tasks and official games."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ragen.env import resolve_env
from ragen.env.alfworld.tasks import GOAL, TASK_TYPES, generate
from ragen.env.textworld.config import TextWorldEnvConfig
from ragen.env.textworld.games import choose, seed_of, story
from ragen.errors import ConfigError
from ragen.extras import missing

needs_alfworld = pytest.mark.skipif(bool(missing("alfworld")), reason="ALFWorld is not installed")
needs_textworld = pytest.mark.skipif(bool(missing("textworld")), reason="TextWorld is not installed")
pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.timeout(600)]  # a game takes seconds to compile
FEW: dict[str, dict[str, Any]] = {
    "alfworld": {"num_train_games": 2, "num_eval_games": 1, "task_types": [1]},
    "textworld": {"families": ["coin"], "games": 2, "val_games": 1},
}
OUTSIDE = (
    *("save", "quit", "restart", "restore", "undo", "script", "again", "tw-trace-actions", "", "\0", "x" * 100_000),
    *("look. quit", "look then quit", "look\nquit", "take coin, quit", "\u017fave"),
)


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """A function that makes an environment with few games; all are closed in the end."""
    made: list[Any] = []

    def build(env_type: str, **fields: Any) -> Any:
        env_class, config_class = resolve_env(env_type)
        made.append(env_class(config_class(**{**FEW[env_type], **fields})))  # type: ignore[misc]
        return made[-1]

    yield build
    for env in made:
        env.close()


# TextWorld


def test_games_of_splits_have_no_seed_in_common() -> None:
    config = TextWorldEnvConfig(["coin", "cooking"], [1, 2], games=300, val_games=300)
    chosen = {split: {choose(seed, split, config) for seed in range(900)} for split in ("train", "val", "test")}
    assert [len(games) for games in chosen.values()] == [300] * 3
    seeds = [seed_of(game, attempt) for games in chosen.values() for game in games for attempt in range(2)]
    assert len(set(seeds)) == len(seeds)


@needs_textworld
def test_texts_and_commands_are_those_of_textworld_itself(make: Callable[..., Any]) -> None:
    import textworld

    from ragen.env.textworld.engine import SEED, Story

    env = make("textworld")
    env.reset(0)
    assert env.game is not None
    path = str(story(env.game))
    names = ("feedback", "admissible_commands", "score", "won", "verbs", "max_score")
    theirs = textworld.start(path, textworld.EnvInfos(feedback=True, admissible_commands=True, score=True))
    theirs.seed(SEED)
    ours = Story(path)
    states = [(theirs.reset(), ours.reset())]
    for command in ["look", "go nowhere", "inventory", *states[0][0]["game"].metadata["walkthrough"]]:
        states.append((theirs.step(command)[0], ours.step(command)[0]))
    for expected, found in states:
        assert [expected[name] for name in names] == [found[name] for name in names]
    assert states[-1][0]["won"]
    theirs.close()
    ours.close()


@needs_textworld
def test_only_commands_of_the_world_reach_the_game(make: Callable[..., Any], tmp_path: Path) -> None:
    env = make("textworld")
    first = env.reset(0)
    where = os.getcwd()
    os.chdir(tmp_path)
    try:
        for action in OUTSIDE:
            _, reward, done, info = env.step(action)
            assert (reward, done, info["action_is_valid"]) == (0.0, False, False), action
    finally:
        os.chdir(where)
    assert not list(tmp_path.iterdir())
    room = first[first.index("-= ") :].partition(" =-")[0]
    assert room in env.step("LOOK ")[0]


@needs_textworld
def test_the_end_of_an_episode_is_won_or_out_of_steps_and_nothing_happens_after_it(
    make: Callable[..., Any],
) -> None:
    env = make("textworld", max_steps=2)
    env.reset(0)
    assert [env.step("look")[2], env.step("look")[2]] == [False, True]
    env = make("textworld", reward="all", show_admissible=False)
    env.reset(0)
    plan = env._story.state["game"].metadata["walkthrough"]
    *_, (told, reward, done, info) = [env.step(command) for command in plan]
    assert (reward, done, info["success"]) == (1.0, True, True) and "Admissible" not in told
    assert env.step("look") == (told, 0.0, True, {**info, "success": False, "action_is_effective": False,
                                                  "action_is_valid": False})  # fmt: skip


# ALFWorld


@needs_alfworld
def test_generated_tasks_follow_from_their_number_and_differ_between_splits() -> None:
    splits = {
        split: [generate(number, split, TASK_TYPES) for number in range(60)]
        for split in ("train", "valid_seen", "valid_unseen")
    }
    assert splits["train"] == [generate(number, "train", TASK_TYPES) for number in range(60)]
    problems = [game.problem for games in splits.values() for game in games]
    assert len(set(problems)) == len(problems)
    assert {game.kind for game in splits["train"]} == set(TASK_TYPES.values())
    for game in splits["train"]:
        assert game.problem.count("(") == game.problem.count(")")
        assert GOAL in game.grammar and game.task


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """Two games in the form of the official data, one of a kind that is left out."""
    for number, name in enumerate(
        ("pick_and_place_simple-Mug-None-Desk-1", "pick_and_place_simple-MugSliced-None-Desk-1")
    ):
        game = generate(number, "train", [1])
        folder = tmp_path / "json_2.1.1" / "train" / name / "trial"
        folder.mkdir(parents=True)
        data = {
            "pddl_domain": game.domain,
            "pddl_problem": game.problem,
            "grammar": game.grammar.replace(GOAL, game.task),
            "solvable": True,
        }
        (folder / "game.tw-pddl").write_text(json.dumps(data))
        (folder / "traj_data.json").write_text(json.dumps({"task_type": "pick_and_place_simple"}))
    return tmp_path


@needs_alfworld
def test_an_official_game_is_played_as_it_stands_in_its_file(official: Path, make: Callable[..., Any]) -> None:
    env, generated = make("alfworld", data=str(official)), make("alfworld")
    assert {env.reset(seed) for seed in range(3)} == {generated.reset(0)}
    assert env.rollout_info() == {"task_type": "pick_and_place_simple"}
    with pytest.raises(ConfigError, match=r"no game\.tw-pddl.*valid_seen.*alfworld-download"):
        env.reset(0, "val")
    with pytest.raises(ConfigError, match="task types"):
        make("alfworld", data=str(official), task_types=[2])
