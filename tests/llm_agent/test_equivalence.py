"""What the equivalence suite would notice, and that it says so."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.testing.equivalence import Recording, describe, facts_of, record_episode
from ragen.llm_agent.testing.random_player import RandomPlayer
from ragen.llm_agent.testing.suite import Check, Size, main, run

SUITE = Path(__file__).parents[2] / "test_multiprocessing_es_manager.py"

ENVIRONMENT = """
import os
from dataclasses import dataclass

@dataclass
class Config:
    step_size: int = 1
    shows_pid: bool = False

class Walk:
    config_class = Config

    def __init__(self, config):
        self.config = config

    def reset(self, seed=None):
        self.place = seed % 5

    def step(self, action):
        self.place += self.config.step_size * len(action)
        return self.render(), self.place / 3, self.place % 7 == 0, {"place": self.place}

    def render(self):
        return f"{self.place}, process {os.getpid() if self.config.shows_pid else 0}"

class Unready(Walk):
    def reset(self, seed=None):
        raise AttributeError("no level")

class Stumbles(Walk):
    def step(self, action):
        {"on": 1}[action if action == "over" else "on"]
        return super().step(action)

class Queries:
    def reset(self, seed=None):
        self.shown = f"seed {seed}"

    def step(self, action):
        self.shown = f"process {os.getpid()}" if action.startswith("query:") else "An action is query: SQL"
        return self.shown, 0.0, False, {"success": False}

    def render(self):
        return self.shown

class Exemplary(Queries):
    def example_action(self, rng):
        return "query: select 1"

class Flagged(Queries):
    def step(self, action):
        return "", 0.0, False, {"action_is_valid": action == "query: 2"}
"""


@dataclass
class Point:
    x: float


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x


def picture(value: int = 0, size: tuple[int, int] = (4, 3), mode: str = "RGB") -> Image.Image:
    image = Image.new(mode, size)
    image.putpixel((1, 1), value)
    return image


def difference(one: Any, other: Any) -> str:
    recordings = []
    for value in (one, other):
        recordings.append(Recording())
        recordings[-1].note("it", value)
    return str(recordings[0].first_difference(recordings[1]) or "")


UNEQUAL = [
    (0, 0.0),
    (0, False),
    (0.0, -0.0),
    (0.1 + 0.2, 0.3),
    (1.0, np.float64(1.0)),
    ("a", "a "),
    (None, "None"),
    ([1, 2], [2, 1]),
    ([1, 2], (1, 2)),
    ([1], [1, 1]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"a": 1}, {"a": 1, "b": None}),
    ({1: "a"}, {"1": "a"}),
    ({"a": 1}, OrderedDict(a=1)),
    (picture(0), picture(1)),
    (picture(size=(4, 3)), picture(size=(3, 4))),
    (picture(mode="L"), picture(mode="P")),
    (np.zeros(3), np.array([0.0, 0.0, -0.0])),
    (np.zeros(4), np.zeros((2, 2))),
    (np.zeros(3, np.float32), np.zeros(3)),
    (np.array([1, None], object), np.array([1, 2], object)),
    (Point(1.0), Point(1)),
    (Plain([1]), Plain([2])),
    ({1, 2}, {1, 3}),
]


@pytest.mark.parametrize(("one", "other"), UNEQUAL)
def test_a_difference_in_value_type_or_order_is_found(one: Any, other: Any) -> None:
    assert difference({"deep": [one]}, {"deep": [other]}).startswith("episode 0, it")
    assert difference(one, other)
    assert difference(other, one)


@pytest.mark.parametrize("value", [*(pair[0] for pair in UNEQUAL), float("nan"), np.float32("nan"), object(), describe])
def test_a_value_is_equal_to_itself(value: Any) -> None:
    assert difference(value, value) == ""


def test_a_value_that_holds_itself_comes_to_an_end() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    assert len(list(describe(circle))) == 3


def test_the_message_names_the_place_and_shows_where_long_texts_part() -> None:
    text = "x" * 5000
    message = difference({"history": [{"state": text + "a" + text}]}, {"history": [{"state": text + "b" + text}]})
    assert message.startswith("episode 0, it.history[0].state: ...xxx")
    assert "xax" in message and "xbx" in message
    assert len(message) < 500


def config(env_type: str) -> dict[str, Any]:
    part = {"env_groups": 2, "group_size": 2, "env_configs": {"tags": ["It"], "n_groups": [2]}}
    return {
        "custom_envs": {"It": {"env_type": env_type, "max_actions_per_traj": 8}},
        "seed": {"train": 1},
        "es_manager": {"train": part, "use_multiprocessing": False},
    }


def played(env_type: str, player_seed: int = 0) -> tuple[Recording, EnvStateManager]:
    with EnvStateManager(config(env_type)) as manager:
        return record_episode(manager, RandomPlayer(player_seed), turns=6), manager


def test_equal_players_play_equal_episodes_and_others_others() -> None:
    one, other = played("frozen_lake")[0], played("frozen_lake")[0]
    assert sum(len(facts_of(note)) for note in one.notes) > 200
    assert one.first_difference(other) is None and played("frozen_lake", 2)[0].first_difference(one) is not None


def test_the_player_mixes_actions_that_work_with_malformed_ones() -> None:
    _, manager = played("sokoban")
    turns = [turn for cache in manager.rollout_cache or [] for turn in cache["history"] if "actions" in turn]
    assert any(turn["actions"] for turn in turns)
    assert any(cache["penalty"] < 0 for cache in manager.rollout_cache or [])


def suite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "walking.py").write_text(ENVIRONMENT)
    command = [sys.executable, str(SUITE), *arguments, "--seeds", "1", "--turns", "3"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


WALK = ("--env-type", "walking:Walk", "--env-config", "step_size=3")


@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        (("--env-type", "walking:Unready"), 1, ["no level", "7 of 7 are not equal"]),
        (("--env-type", "walking:Stumbles", "--actions", "on", "over"), 0, ["Stumbles: ", "'over'", "All 7 are equal"]),
        ((*WALK, "--actions", "on", "over"), 0, ["All 7 are equal"]),
    ],
)
def test_the_command_checks_an_environment_of_ones_own(
    arguments: tuple[str, ...], code: int, printed: list[str], tmp_path: Path
) -> None:
    ended = suite(tmp_path, *arguments)
    assert (ended.returncode, ended.stderr) == (code, "")
    assert all(text in ended.stdout for text in printed), ended.stdout


def entry_of(name: str, **more: Any) -> dict[str, dict[str, Any]]:
    return {name: {"env_type": f"walking:{name}", "max_actions_per_traj": 8, **more}}


@pytest.mark.parametrize(
    "entry", [entry_of("Exemplary"), entry_of("Queries", env_instruction="So: <answer>query: a || query: b</answer>")]
)
def test_what_only_valid_actions_show_is_found(walking: None, entry: dict[str, Any]) -> None:
    report = run(Check("it", entry), Size(seeds=1, turns=3))
    assert re.search(r": str 'process \d+' became str 'process \d+'$", report.difference), report


@pytest.mark.parametrize(("action", "is_proved"), [("query: select", False), ("query: 2", True)])
def test_equal_rollouts_without_a_valid_action_are_told(walking: None, action: str, is_proved: bool) -> None:
    report = run(Check("it", entry_of("Flagged", env_instruction=f"<answer>{action}</answer>")), Size(turns=3))
    assert report.difference == "" and (not report.notes) == is_proved


def test_a_configuration_is_checked_with_its_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Any] = []
    monkeypatch.setattr("ragen.llm_agent.testing.suite._run_all", lambda checks, size: played.extend(checks) or 0)
    assert main(("custom_envs.SimpleSokoban.env_config.dim_x=8", "--config-name", "_2_sokoban")) == 0
    assert {check.custom_envs["SimpleSokoban"]["env_config"]["dim_x"] for check in played} == {8}


@pytest.fixture
def walking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment's module in the current folder."""
    (tmp_path / "walking.py").write_text(ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])  # a copy: the command adds to it
    yield
    sys.modules.pop("walking", None)


def test_the_command_prints_the_first_difference_and_fails(walking: None, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--seeds", "1", "--turns", "3")
    assert main(("--env-type", "walking:Walk", "--env-config", "shows_pid=true", *few)) == 1
    shown = capsys.readouterr().out
    assert re.search(r"^Walk +episode 1, reset\[0\].history\[0\].state: str '0, process ", shown, re.MULTILINE)


def test_an_environment_that_does_not_repeat_itself_is_told_from_one_that_workers_change() -> None:
    entry = {"env_type": "support.faulty_envs:Clock", "max_actions_per_traj": 8}
    report = run(Check("Clock", {"Clock": entry}), Size(seeds=1, turns=3))
    assert report.difference.startswith("not reproducible: the main process played it twice, and episode 1, ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--env-type", "walking:Run"),
        ("--env-type", "walking:Walk", "--env-config", "speed=3"),
        ("--config-name", "_2_sokoban", "es_manager.max_wrokers=2"),
        ("es_manager.max_workers=2", "--seeds", "1"),
        ("--actions", "go"),
    ],
)
def test_what_cannot_be_checked_is_refused(walking: None, arguments: tuple[str, ...]) -> None:
    assert main(arguments) == 2
