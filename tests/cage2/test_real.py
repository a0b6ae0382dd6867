"""The real CAGE Challenge 2: found, played without a trace, in lanes, and what the tables say of it."""

import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ragen.cage2 import Cage2Env, real
from ragen.cage2.layout import DECOYS, HOSTS, N_ACTIONS
from ragen.cage2.simulator import Blue, Network
from support.cage2 import plain, run

pytestmark = pytest.mark.processes


def real_env(cage2_path, **given):
    return Cage2Env(**{"red_agent": "b_line", "cage2_path": cage2_path, **given})


def episode(env, seed, actions):
    shown, info = env.reset(seed=seed)
    return [plain([shown, info]), *(plain(env.step(action)) for action in actions), env.access_levels()]


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


def test_an_episode_follows_from_its_seed_on_fresh_and_used_environments_and_whatever_others_draw(cage2_path):
    actions = np.random.default_rng(1).integers(N_ACTIONS, size=15).tolist()
    used, other = real_env(cage2_path), real_env(cage2_path)
    found = episode(used, 3, actions)
    assert episode(used, 4, actions) != found
    random.seed(99)
    state = random.getstate()
    used.reset(seed=3)
    other.reset(seed=3)
    for action, expected in zip(actions, found[1:], strict=False):
        assert plain(other.step(action)) == plain(used.step(action)) == expected
    assert random.getstate() == state


def test_lanes_equal_the_main_process_also_when_they_are_killed(cage2_path):
    given = {"cage2_path": cage2_path, "max_steps": 3, "red_agent_type": "B_lineAgent", "n_envs": 2, "seed": 1}
    at_home = run(4, workers=0, **given)
    lanes = {"workers": 2, "use_multiprocessing": True}
    assert run(4, **lanes, **given) == at_home
    assert run(4, (1,), **lanes, **given) == at_home


# What the tables say of it


def theirs(env, host):
    """Ports of a host's listening processes, with who runs them."""
    found = []
    for process in env.game._controller.state.hosts[host].processes:
        ports = [each["local_port"] for each in process.connections if "remote_port" not in each]
        found += [(port, process.user in ("root", "SYSTEM")) for port in ports]
    return sorted(found)


def ours(network, host):
    return sorted((each.port, each.is_privileged) for each in network.services[HOSTS.index(host)])


RIGHTS_MATTER = {21, 25, 139, 3389, 3390, 80, 443}  # ports that something other than passwords gets in by


def test_the_same_listens_at_the_start_and_after_a_restore(cage2_path):
    env, network, blue = real_env(cage2_path), Network(random.Random(0)), Blue()
    env.reset(seed=0)
    for host in HOSTS * 2:
        mine, other = ours(network, host), theirs(env, host)
        assert [port for port, _ in mine] == [port for port, _ in other], host
        for (port, privileged), (_, really) in zip(mine, other, strict=True):
            exploited = any(each.port == port and each.kind for each in network.services[HOSTS.index(host)])
            assert privileged == really or port not in RIGHTS_MATTER or not exploited, (host, port)
        env.step(132 + HOSTS.index(host))
        blue.act(network, 132 + HOSTS.index(host))
