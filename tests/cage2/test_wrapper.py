"""Many environments: the same for any number of workers, killed or not; what comes back, and what is refused."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from ragen.cage2 import Cage2Env, ParallelEnvWrapper, wrapper
from ragen.cage2.env import Cage2Config
from ragen.errors import ConfigError, InputError, StateError
from support.cage2 import run

STEPS, GIVEN = 12, {"simulator": "embedded", "max_steps": 5, "red_agent_type": "B_lineAgent", "seed": 4}


@pytest.fixture(scope="module")
def at_home() -> list[Any]:
    """What environments give in the main process."""
    return run(STEPS, workers=0, **GIVEN)


HOMES = [
    ({"workers": 1, "use_multiprocessing": True}, ()),
    ({"workers": 2, "use_multiprocessing": "auto"}, ()),
    ({"use_multiprocessing": False}, ()),
    ({"workers": 3, "use_multiprocessing": True}, (0, 3, 5, 10)),
    ({"workers": 2, "use_multiprocessing": True, "backend": "executor"}, (7,)),
]


@pytest.mark.processes
@pytest.mark.parametrize(("home", "kill_at"), HOMES, ids=str)
def test_results_do_not_depend_on_workers_that_may_be_killed(at_home, home, kill_at):
    assert run(STEPS, kill_at, **GIVEN, **home) == at_home


def test_a_step_gives_arrays_of_a_row_for_each_environment():
    with ParallelEnvWrapper(3, simulator="embedded", workers=0) as envs:
        observations = envs.reset()
        assert (envs.simulator, observations.shape, observations.dtype) == ("embedded", (3, 52), np.float32)
        observations, rewards, dones, infos = envs.step(np.array([0, 1, 132]))
        assert (observations.shape, observations.dtype) == ((3, 52), np.float32)
        assert (rewards.dtype, rewards.tolist()) == (np.float64, [0.0, 0.0, -1.0])
        assert (dones.dtype, dones.tolist()) == (np.bool_, [False] * 3)
        assert [set(info) for info in infos] == [{"compromised_before", "compromised"}] * 3
        kept = observations.copy()
        envs.step([0, 0, 0])
        assert (observations == kept).all()  # what was given does not change afterwards


def test_a_finished_environment_is_reset_and_says_how_it_went():
    with ParallelEnvWrapper(4, workers=0, simulator="embedded", red_agent_type="b_line", max_steps=20) as envs:
        envs.reset()
        for _ in range(2):
            steps = [envs.step([0] * 4) for _ in range(20)]
            assert [step[2].tolist() for step in steps] == [[False] * 4] * 19 + [[True] * 4]
            observations, *_, infos = steps[-1]
            assert not observations.any()  # the first one of an episode
            for index, info in enumerate(infos):
                assert info["final_observation"].any() and info["truncated"] is True
                assert info["episode"] == {"r": pytest.approx(sum(step[1][index] for step in steps)), "l": 20}
                assert info["compromised"] != info["reset_info"]["compromised"] == (False,) * 5


def test_true_states_name_every_host_s_access_level():
    with ParallelEnvWrapper(2, workers=0, simulator="embedded", red_agent_type="b_line") as envs:
        envs.reset()
        for state in envs.get_true_states():
            assert len(state) == 13 and state.pop("User0") == "Privileged" and set(state.values()) == {"None"}
        for _ in range(40):
            envs.step([0, 0])
        assert all(state["Op_Server0"] == "Privileged" for state in envs.get_true_states())


WRONG = [
    *({"n_envs": 0}, {"seed": -1}, {"seed": None}, {"max_steps": 0}, {"backend": "threads"}, {"workers": -1}),
    *({"workers": "all"}, {"use_multiprocessing": "yes"}, {"step_timeout": 0}, {"red_agent_type": "B_line"}),
]


@pytest.mark.parametrize("given", WRONG, ids=str)
def test_arguments_that_cannot_work_are_refused_by_name(given):
    with pytest.raises(InputError if "seed" in given else ConfigError):
        ParallelEnvWrapper(**{"simulator": "embedded", **given})


@pytest.mark.parametrize("actions", [[0], 0, [0, 145], [-1, 0], [0.5, 0], [[0], [0]], ["a", 0]])
def test_actions_that_do_not_fit_are_refused_and_nobody_is_stepped(actions):
    with ParallelEnvWrapper(2, simulator="embedded", workers=0, max_steps=1) as envs:
        envs.reset()
        with pytest.raises(InputError):
            envs.step(actions)
        assert envs.step((0, 0))[3][0]["episode"]["l"] == 1


def test_calls_out_of_order_are_refused():
    envs = ParallelEnvWrapper(2, simulator="embedded", workers=0)
    with pytest.raises(StateError):
        envs.step([0, 0])
    envs.close()
    envs.close()
    for call in (envs.reset, envs.get_true_states, partial(envs.step, [0, 0])):
        with pytest.raises(StateError):
            call()


class Fails(Cage2Env):
    """Raises at an action."""

    def step(self, action):
        if self._steps == 1 and action == 144:
            raise ValueError("no more")
        return super().step(action)


class FailsConfig(Cage2Config):
    """Builds such environments."""

    def __call__(self):
        return Fails(config=self)


@pytest.mark.processes
def test_an_environment_that_keeps_failing_is_truncated_and_the_others_go_on(monkeypatch):
    given = {"n_envs": 3, "simulator": "embedded", "max_steps": 4, "red_agent_type": "b_line"}
    honest = ParallelEnvWrapper(workers=0, **given)
    monkeypatch.setattr(wrapper, "Cage2Config", FailsConfig)
    with honest, ParallelEnvWrapper(workers=2, use_multiprocessing=True, **given) as envs:
        assert (envs.reset() == honest.reset()).all()
        envs.step([0, 0, 0])
        before, *_ = honest.step([0, 0, 0])
        (observations, rewards, dones, infos), expected = envs.step([0, 144, 0]), honest.step([0, 0, 0])
        assert (dones.tolist(), rewards[1]) == ([False, True, False], 0)
        assert (observations[[0, 2]] == expected[0][[0, 2]]).all() and not observations[1].any()
        assert infos[1]["env_error"] and infos[1]["truncated"] and "episode" not in infos[1]
        assert (infos[1]["final_observation"] == before[1]).all()
        assert [envs.step([0, 0, 0])[2].tolist() for _ in range(4)][-1] == [False, True, False]
