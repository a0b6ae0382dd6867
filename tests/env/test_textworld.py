"""TextWorld: generated games, what may be said to them, and rollouts in workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ragen.env.textworld.config import TextWorldEnvConfig
from ragen.env.textworld.env import TextWorldEnv
from ragen.env.textworld.games import choose, seed_of, story
from ragen.extras import missing
from support.adventures import building

needs_textworld = pytest.mark.skipif(bool(missing("textworld")), reason="TextWorld is not installed")
pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.timeout(600)]  # a game takes seconds to compile
FEW: dict[str, Any] = {"families": ["coin"], "games": 2, "val_games": 1}
OUTSIDE = (
    *("save", "quit", "restart", "restore", "undo", "script", "again", "tw-trace-actions", "", "\0", "x" * 100_000),
    *("look. quit", "look then quit", "look\nquit", "take coin, quit", "\u017fave"),
)


@pytest.fixture
def make() -> Iterator[Callable[..., TextWorldEnv]]:
    with building(TextWorldEnv, TextWorldEnvConfig, FEW) as build:
        yield build


# Games and their texts


def test_games_of_splits_have_no_seed_in_common() -> None:
    chosen = {
        split: {choose(seed, split, ("coin", "cooking"), (1, 2), 300, False, "house") for seed in range(900)}
        for split in ("train", "val", "test")
    }
    assert [len(games) for games in chosen.values()] == [300] * 3
    seeds = [seed_of(game, attempt) for games in chosen.values() for game in games for attempt in range(2)]
    assert len(set(seeds)) == len(seeds)


# Promises of every environment


@needs_textworld
def test_texts_and_commands_are_those_of_textworld_itself(make: Callable[..., TextWorldEnv]) -> None:
    import textworld

    from ragen.env.textworld.engine import SEED, Story

    env = make()
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


# What may be said


@needs_textworld
def test_only_commands_of_the_world_reach_the_game(make: Callable[..., TextWorldEnv], tmp_path: Path) -> None:
    env = make()
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
    make: Callable[..., TextWorldEnv],
) -> None:
    env = make(max_steps=2)
    env.reset(0)
    assert [env.step("look")[2], env.step("look")[2]] == [False, True]
    env = make(reward="all", show_admissible=False)
    env.reset(0)
    plan = env._story.state["game"].metadata["walkthrough"]
    *_, (told, reward, done, info) = [env.step(command) for command in plan]
    assert (reward, done, info["success"]) == (1.0, True, True) and "Admissible" not in told
    assert env.step("look") == (told, 0.0, True, {**info, "success": False, "action_is_effective": False,
                                                  "action_is_valid": False})  # fmt: skip
