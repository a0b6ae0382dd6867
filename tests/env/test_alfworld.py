"""ALFWorld: generated tasks, official games, and rollouts in workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ragen.env.alfworld.config import AlfWorldEnvConfig
from ragen.env.alfworld.env import AlfWorldEnv
from ragen.env.alfworld.tasks import GOAL, TASK_TYPES, generate
from ragen.errors import ConfigError
from ragen.extras import missing
from support.adventures import building

needs_alfworld = pytest.mark.skipif(bool(missing("alfworld")), reason="ALFWorld is not installed")
pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.timeout(600)]  # on a busy machine
FEW: dict[str, Any] = {"num_train_games": 2, "num_eval_games": 1, "task_types": [1]}


@pytest.fixture
def make() -> Iterator[Callable[..., AlfWorldEnv]]:
    with building(AlfWorldEnv, AlfWorldEnvConfig, FEW) as build:
        yield build


# Generated tasks


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


# Promises of every environment


# Official games


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
def test_an_official_game_is_played_as_it_stands_in_its_file(official: Path, make: Callable[..., AlfWorldEnv]) -> None:
    env, generated = make(data=str(official)), make()
    assert {env.reset(seed) for seed in range(3)} == {generated.reset(0)}
    assert env.rollout_info() == {"task_type": "pick_and_place_simple"}
    with pytest.raises(ConfigError, match=r"no game\.tw-pddl.*valid_seen.*alfworld-download"):
        env.reset(0, "val")
    with pytest.raises(ConfigError, match="task types"):
        make(data=str(official), task_types=[2])
