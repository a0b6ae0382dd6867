"""The real CAGE Challenge 2: found, played without a trace, and in workers."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ragen.cage2 import Cage2Env, real
from ragen.cage2.layout import DECOYS, HOSTS
from support.cage2 import run

pytestmark = pytest.mark.processes


def real_env(cage2_path, **given):
    return Cage2Env(**{"red_agent": "b_line", "cage2_path": cage2_path, **given})


# Found


@pytest.mark.parametrize("inner", [".", "CybORG", "CybORG/CybORG"])
def test_it_is_found_from_its_checkout_and_from_its_folders(cage2_path, inner):
    assert real.find(cage2_path / inner) == (cage2_path / "CybORG" / "CybORG").resolve()


# Without a trace

TRACELESS = """
import random, sys
before = random.getstate(), list(sys.path)
from ragen.cage2 import Cage2Env
env = Cage2Env("b_line", cage2_path=sys.argv[1])
env.reset(seed=0); env.step(0)
assert (random.getstate(), list(sys.path)) == before
found = [name for name in ("gym", "paramiko", "prettytable") if name in sys.modules]
print(env.simulator, found)
import gym
print(gym.__file__)
"""


def test_nothing_of_it_leaks_into_the_process_and_a_real_gym_is_still_imported(cage2_path, tmp_path):
    """Stand-ins are there while it is imported: afterwards, gym is whatever the user has, or nothing."""
    (tmp_path / "program.py").write_text(TRACELESS)
    command = [sys.executable, str(tmp_path / "program.py"), str(cage2_path)]
    root = str(Path(real.__file__).parents[2])
    given = {"env": {"PYTHONPATH": root}, "capture_output": True, "text": True}
    if importlib.util.find_spec("gym") is None:
        done = subprocess.run(command, **given)
        assert "No module named 'gym'" in done.stderr and done.stdout.split() == ["cage2", "[]"]
    own = tmp_path / "own" / "gym"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("from gymnasium import Env, spaces\n")
    given["env"] = {"PYTHONPATH": f"{root}:{own.parent}"}
    done = subprocess.run(command, **given)
    assert done.stdout.split("\n")[1] == str(own / "__init__.py"), done.stderr


# Played


def test_it_is_played_with_the_same_spaces_and_numbers_of_actions(cage2_path):
    env = real_env(cage2_path)
    assert env.simulator == "cage2"
    wrapper = env.game.env
    assert env.observation_space.shape == wrapper.observation_space.shape
    possible = wrapper.env.env.possible_actions
    theirs = [" ".join(filter(None, [type(each).__name__, getattr(each, "hostname", "")])) for each in possible]
    blocks = ["Analyse", "Remove", *(f"Decoy{name}" for name in DECOYS), "Restore"]
    assert theirs == ["Sleep", "Monitor", *(f"{block} {host}" for block in blocks for host in HOSTS)]


def test_workers_equal_the_main_process_also_when_they_are_killed(cage2_path):
    given = {"cage2_path": cage2_path, "max_steps": 3, "red_agent_type": "B_lineAgent", "n_envs": 2, "seed": 1}
    at_home = run(4, workers=0, **given)
    homes = {"workers": 2, "use_multiprocessing": True}
    assert run(4, **homes, **given) == at_home
    assert run(4, (1,), **homes, **given) == at_home
