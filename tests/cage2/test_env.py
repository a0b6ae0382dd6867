"""One environment: what gymnasium asks of it, what it is built with, and what is refused."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

from ragen.cage2 import Cage2Env, real
from ragen.cage2.env import Cage2Config
from ragen.errors import ConfigError, EpisodeOverError, InputError, StateError
from ragen.vector import LaneVectorEnv
from support.cage2 import plain
from support.import_lines import imported_needlessly


def test_gymnasium_finds_nothing_wrong_with_it():
    check_env(Cage2Env("b_line", simulator="embedded"), skip_render_check=True)


def test_spaces_are_those_of_the_challenge():
    env = Cage2Env(simulator="embedded")
    assert env.observation_space == gymnasium.spaces.Box(-1.0, 1.0, (52,), np.float32)
    assert env.action_space == gymnasium.spaces.Discrete(145)


def test_an_episode_follows_from_its_seed_on_a_fresh_and_on_a_used_environment():
    actions = np.random.default_rng(0).integers(145, size=40)

    def episode(env):
        found = [env.reset(seed=11)[0].tolist()]
        return found + [(obs.tolist(), *rest) for obs, *rest in map(env.step, actions)]

    used = Cage2Env("meander", simulator="embedded")
    used.reset(seed=5)
    used.step(3)
    assert episode(used) == episode(Cage2Env("meander", simulator="embedded"))


def test_without_a_seed_another_episode_comes():
    env = Cage2Env("b_line", simulator="embedded")
    env.reset(seed=0)
    totals = []
    for _ in range(4):
        totals.append([env.step(0)[1] for _ in range(100)])
        env.reset()
    assert len({tuple(each) for each in totals}) > 1


def test_episodes_are_truncated_and_never_terminate():
    env = Cage2Env("b_line", max_steps=3, simulator="embedded")
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    with pytest.raises(EpisodeOverError, match="after 3 steps"):
        env.step(0)
    env.reset()
    assert env.step(0)[3] is False


def test_info_tells_what_was_compromised_before_the_action_and_is_after_it():
    env = Cage2Env("b_line", simulator="embedded")
    _, info = env.reset(seed=1)
    last, seen = info["compromised"], set()
    assert last == (False,) * 5
    for _ in range(100):
        info = env.step(0)[4]
        assert info["compromised_before"] == last
        last = info["compromised"]
        seen.add(last)
        levels = env.access_levels()
        assert last[4] == any(levels[f"User{number}"] != "None" for number in range(1, 5))
        assert last[2] == (levels["Op_Server0"] != "None")
    assert (False, True, True, False, True) in seen


def test_a_step_before_the_first_reset_is_refused():
    with pytest.raises(StateError, match="call reset"):
        Cage2Env(simulator="embedded").step(0)


@pytest.mark.parametrize("action", [-1, 145, 1.5, "Sleep", None, [1, 2]])
def test_actions_that_do_not_exist_are_refused_and_nothing_is_played(action):
    env = Cage2Env("b_line", simulator="embedded")
    env.reset(seed=0)
    with pytest.raises(InputError, match="0 to 144"):
        env.step(action)
    shown = [env.step(each)[0].any() for each in (0, np.int64(1))]
    assert shown == [False, True]  # Red's second action, its first scan, comes in the second step


@pytest.mark.parametrize("name", ["b_line", "B_lineAgent", "meander", "RedMeanderAgent", "sleep", "SleepAgent"])
def test_red_is_known_by_both_names(name):
    assert Cage2Config.of(name, simulator="embedded").red_agent in ("b_line", "meander", "sleep")


class Custom:
    pass


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"red_agent": "blue"}, r"red_agent \(red_agent_type\) = 'blue'.*B_lineAgent"),
        ({"red_agent": Custom}, "CAGE 2 itself"),
        ({"max_steps": 0}, "max_steps = 0"),
        ({"max_steps": True}, "max_steps = True"),
        ({"simulator": "cyborg"}, "simulator = 'cyborg'.*embedded"),
        ({"bugs": "some"}, "bugs = 'some'.*fixed"),
        ({"simulator": "embedded", "cage2_path": "/"}, "leave one"),
        ({"simulator": "cage2", "cage2_path": "/nowhere"}, "cage2_path = '/nowhere'"),
        ({"cage2_path": "/nowhere"}, "cage2_path = '/nowhere'"),
        ({"simulator": "embedded", "scenario_path": "Scenario1b.yaml"}, "plays Scenario2.yaml alone"),
    ],
)
def test_arguments_that_cannot_work_are_refused_by_name(given, told):
    with pytest.raises(ConfigError, match=told):
        Cage2Env(**given)


def test_the_scenario_that_it_plays_may_be_named():
    assert Cage2Env(simulator="embedded", scenario_path="x/Scenario2.yaml").simulator == "embedded"


def test_a_named_place_in_the_environment_has_to_be_right(monkeypatch):
    monkeypatch.setenv("RAGEN_CAGE2_PATH", "/nowhere")
    with pytest.raises(ConfigError, match="RAGEN_CAGE2_PATH = '/nowhere'"):
        Cage2Env()


def test_auto_takes_the_embedded_simulator_where_there_is_no_other():
    if real.find() is not None:
        pytest.skip("CybORG is installed here")
    assert Cage2Env().simulator == "embedded"
    with pytest.raises(ConfigError, match="RAGEN_CAGE2_PATH"):
        Cage2Env(simulator="cage2")


@pytest.mark.processes
def test_it_lives_in_gymnasium_s_vector_environments_too():
    """A configuration builds environments, where a function is asked for."""
    builds = [Cage2Config.of("b_line", 6, "embedded")] * 3
    actions = np.random.default_rng(2).integers(145, size=(20, 3))
    runs = []
    for envs in (SyncVectorEnv(builds), LaneVectorEnv(builds, workers=2)):
        shown, infos = envs.reset(seed=1)
        found = [plain(shown), infos["compromised"].tolist()]
        for each in actions:
            *arrays, infos = envs.step(each)
            found += [plain(arrays), infos["compromised"].tolist()]
        envs.close()
        runs.append(found)
    assert runs[0] == runs[1]


LINES = [
    ("import ragen", "ragen.cage2 gymnasium torch numpy"),
    ("import ragen.cage2", "gymnasium torch numpy"),
    ("import ragen.cage2.env", "torch omegaconf matplotlib CybORG"),
    ("from ragen.cage2 import ParallelEnvWrapper", "torch omegaconf matplotlib CybORG"),
]


def test_what_is_imported_is_what_is_needed():
    found = imported_needlessly(LINES)
    assert found == ["[]"] * len(LINES), found
