"""What the equivalence suite would notice, and that it says so."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ragen.llm_agent.testing.equivalence import Recording
from ragen.llm_agent.testing.suite import Check, Size, main, run

SUITE = Path(__file__).parents[2] / "test_multiprocessing_es_manager.py"

ENVIRONMENT = """
import os

class Walk:
    def reset(self, seed=None):
        self.place = seed % 5

    def step(self, action):
        self.place += len(action)
        return self.render(), self.place / 3, self.place % 7 == 0, {"place": self.place}

    def render(self):
        return str(self.place)

class Restless(Walk):
    def render(self):
        return f"{self.place}, process {os.getpid()}"

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
"""


def picture(value: int = 0, size: tuple[int, int] = (4, 3), mode: str = "RGB") -> Image.Image:
    image = Image.new(mode, size)
    image.putpixel((1, 1), value)
    return image


def difference(one: Any, other: Any) -> str:
    recordings = Recording(), Recording()
    for recording, value in zip(recordings, (one, other), strict=True):
        recording.note("it", value)
    return recordings[0].first_difference(recordings[1])


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
    (SimpleNamespace(x=1.0), SimpleNamespace(x=1)),
    ({1, 2}, {1, 3}),
    (float("nan"), np.float32("nan")),
    (object(), Recording),
]


@pytest.mark.parametrize(("one", "other"), UNEQUAL)
def test_a_difference_in_value_type_or_order_is_found(one: Any, other: Any) -> None:
    assert difference({"deep": [one]}, {"deep": [other]}).startswith("episode 0, it")
    assert difference(one, other) and difference(other, one) and not difference(one, one)


def test_the_message_names_the_place_and_shows_where_long_texts_part() -> None:
    text = "x" * 5000
    message = difference({"history": [{"state": text + "a" + text}]}, {"history": [{"state": text + "b" + text}]})
    assert message.startswith("episode 0, it.history[0].state: ")
    assert "xax" in message and "xbx" in message and len(message) < 500


@pytest.fixture
def walking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment's module in the current folder."""
    (tmp_path / "walking.py").write_text(ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])  # a copy: the command adds to it
    yield
    sys.modules.pop("walking", None)


@pytest.mark.parametrize(
    ("name", "code", "said"), [("Stumbles", 0, "All 7 are equal"), ("Restless", 1, "are not equal")]
)
def test_the_script_is_the_command_and_exits_with_1_on_a_difference(
    walking: None, name: str, code: int, said: str
) -> None:
    command = [sys.executable, str(SUITE), "--env-type", f"walking:{name}", "--seeds", "1", "--turns", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stderr) == (code, "") and said in ended.stdout, ended.stdout


@pytest.mark.parametrize(
    ("env_type", "found"),
    [
        ("walking:Restless", r"episode 1, reset\[0\]\.history\[0\]\.state: str '\d, process "),
        ("walking:Exemplary", r": str 'process \d+' became str 'process \d+'$"),
        ("walking:Unready", "no level"),
        ("support.faulty_envs:Clock", "not reproducible: the main process played it twice, and episode 1, "),
    ],
)
def test_what_workers_change_or_nobody_can_repeat_is_found(walking: None, env_type: str, found: str) -> None:
    entry = {"env_type": env_type, "max_actions_per_traj": 8}
    assert re.search(found, run(Check("it", {"It": entry}), Size(seeds=1, turns=3)).difference)


def test_the_actions_that_an_instruction_names_are_played(walking: None) -> None:
    instruction = {"env_instruction": "So: <answer>query: a || query: b</answer>"}
    check = Check("it", {"It": {"env_type": "walking:Queries", "max_actions_per_traj": 8} | instruction})
    assert "process" in run(check, Size(seeds=1, turns=3)).difference


@pytest.mark.parametrize(
    "arguments",
    [("--env-type", "walking:Run"), ("--config-name", "_2_sokoban", "es_manager.max_wrokers=2"), ("--seeds", "0")],
)
def test_what_cannot_be_checked_is_refused(walking: None, arguments: tuple[str, ...]) -> None:
    try:
        assert main(arguments) == 2
    except SystemExit as ended:
        assert ended.code == 2
