"""One environment: what gymnasium asks of it, what it is built with, and what is refused."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ragen.cage2 import Cage2Env
from ragen.cage2.env import Cage2Config
from ragen.errors import ConfigError, EpisodeOverError, InputError
from support.import_lines import imported_needlessly


def test_gymnasium_finds_nothing_wrong_with_it():
    check_env(Cage2Env("b_line", simulator="embedded"), skip_render_check=True)


def test_spaces_are_those_of_the_challenge():
    env = Cage2Env(simulator="embedded")
    assert env.observation_space == gymnasium.spaces.Box(-1.0, 1.0, (52,), np.float32)
    assert env.action_space == gymnasium.spaces.Discrete(145)


def test_info_tells_what_was_compromised_before_the_action_and_is_after_it():
    env = Cage2Env("b_line", simulator="embedded")
    _, info = env.reset(seed=1)
    last, seen = info["compromised"], set()
    assert last == (False,) * 5
    for _ in range(100):
        _, _, terminated, truncated, info = env.step(0)
        assert info["compromised_before"] == last and not terminated
        last, levels = info["compromised"], env.access_levels()
        seen.add(last)
        assert last[4] == any(levels[f"User{number}"] != "None" for number in range(1, 5))  # User0 does not count
        assert last[2] == (levels["Op_Server0"] != "None")
    assert truncated and (False, True, True, False, True) in seen
    with pytest.raises(EpisodeOverError):
        env.step(0)


@pytest.mark.parametrize("action", [-1, 145, 1.5, "Sleep", None, [1, 2]])
def test_actions_that_do_not_exist_are_refused_and_nothing_is_played(action):
    env = Cage2Env("b_line", simulator="embedded")
    with pytest.raises(EpisodeOverError):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(InputError):
        env.step(action)
    shown = [env.step(each)[0].any() for each in (0, np.int64(1))]
    assert shown == [False, True]  # Red's second action, its first scan, comes in the second step


@pytest.mark.parametrize("name", ["b_line", "B_lineAgent", "meander", "RedMeanderAgent", "sleep", "SleepAgent"])
def test_red_is_known_by_both_names(name):
    assert Cage2Config(name, simulator="embedded").red_agent in ("b_line", "meander", "sleep")


WRONG = [
    *({"red_agent": "blue"}, {"red_agent": dict}, {"max_steps": 0}, {"simulator": "cyborg"}),
    *({"simulator": "cage2", "cage2_path": "/nowhere"}, {"cage2_path": "/nowhere"}),
    {"simulator": "embedded", "scenario_path": "Scenario1b.yaml"},
]


@pytest.mark.parametrize("given", WRONG, ids=str)
def test_arguments_that_cannot_work_are_refused_by_name(given):
    *_, last = given
    with pytest.raises(ConfigError, match=last):
        Cage2Env(**given)


def test_workers_import_no_torch():
    assert (
        imported_needlessly("from ragen.cage2 import ParallelEnvWrapper", "torch omegaconf matplotlib CybORG") == "[]"
    )
