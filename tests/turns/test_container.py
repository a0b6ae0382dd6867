"""The container: groups and seeds, one action a call, what is answered in whose place, and equality however it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ragen.errors import ConfigError, InputError, StateError, UnknownEnvError
from ragen.llm_agent.environments import read_config
from ragen.turns.container import (
    NO_MOVE,
    EnvironmentContainer,
    MultiProcessEnvironmentContainer,
    to_numpy,
)

SOKOBAN = {"dim_x": 6, "dim_y": 6, "num_boxes": 1, "max_steps": 6}
AT_HOME = {"use_lanes": False}
WALK, FAULTY = "support.faulty_envs:Walk", "support.faulty_envs:Faulty"
RAISES = {"fault": "raises", "place": "turn -1"}  # at every step: its turns are counted by what it renders


def container(env_type: str = "sokoban", env_num: int = 2, group_n: int = 2, **more: Any) -> Any:
    more.setdefault("env_kwargs", SOKOBAN if env_type == "sokoban" else None)
    more.setdefault("settings", AT_HOME)
    return MultiProcessEnvironmentContainer(env_type, env_num, group_n, more.pop("seed", 42), **more)


def test_members_of_a_group_begin_alike_and_a_step_is_exactly_one_action():
    with container() as envs:
        shown, infos = envs.reset()
        assert shown[0] == shown[1] != shown[2] == shown[3] and infos == [{}] * 4
        assert (envs.num_processes, envs.env_num, envs.group_n) == (4, 2, 2)
        shown, rewards, dones, infos = envs.step([1, 2, 3, 4])
    assert all(isinstance(each, list) and len(each) == 4 for each in (shown, rewards, dones, infos))
    assert all(type(reward) is float for reward in rewards) and all(type(done) is bool for done in dones)
    assert all(info["action_is_valid"] for info in infos) and rewards == [pytest.approx(-0.1)] * 4


def test_later_resets_count_on_in_training_and_repeat_otherwise_and_given_seeds_do_not_count():
    with container(seed=5) as train, container(seed=5, is_train=False) as val, container(seed=7) as later:
        first, given, second = train.reset()[0], train.reset([9, 8, 9, 5])[0], train.reset()[0]
        assert first != second and second == later.reset()[0] and given[3] == first[0]
        assert val.reset() == val.reset()


def test_an_environment_that_gets_none_or_is_finished_is_left_alone():
    with container() as envs:
        before = envs.reset()[0]
        assert envs.step([None, NO_MOVE, None, np.int64(0)]) == (before, [0.0] * 4, [False] * 4, [{}] * 4)
    with container("bandit", 1, 2) as envs:
        envs.reset()
        last = envs.step([1, None])
        shown, rewards, dones, infos = envs.step([1, 2])
        assert (shown[0], rewards[0], dones) == (last[0][0], 0.0, [True, True])
        assert infos[0] == {**last[3][0], "finished": True} and "finished" not in infos[1]


@pytest.mark.parametrize("actions", [[1, 1, 1], [1, 1, 1, 5], [1, 1, 1, "up"], [1, 1, 1, True], [1, 1, 1, [1]], 1])
def test_actions_that_cannot_be_executed_are_refused_before_anything_is_stepped(actions):
    with container() as envs, container("countdown", 1, 1) as texts:
        before, _ = envs.reset()[0], texts.reset()
        for each, asked in ((envs, actions), (texts, [1])):
            with pytest.raises(InputError):
                each.step(asked)
        assert envs.step([None] * 4)[0] == before and texts.step(["1 + 1"])[2] == [True]


def test_environments_say_what_they_offer_and_show():
    with container("bandit", 8, 1) as bandits, container("webshop", 1, 1) as shop, container() as envs:
        shown = [each.reset()[0] for each in (bandits, shop, envs)][2]
        names = {tuple(each.values()) for each in bandits.action_names()}
        assert names == {("phoenix", "dragon"), ("dragon", "phoenix")}
        assert bandits.get_available_actions() == [[1, 2]] * 8
        assert shop.get_available_actions() == [["search[<content>]"]]
        shop.step(["search[shirt]"])
        assert "click[next >]" in shop.get_available_actions()[0]
        assert envs.render() == shown and envs.render("rgb_array")[3].shape == (96, 96, 3)


@pytest.mark.parametrize("policy", ["fallback", "truncate"])
def test_an_environment_that_fails_is_given_up_and_the_others_play_on(policy):
    part = {"env_groups": 2, "group_size": 1, "env_configs": {"tags": ["Walk", "Faulty"]}}
    entries = {"Walk": {"env_type": WALK}, "Faulty": {"env_type": FAULTY, "env_config": RAISES}}
    entries = {tag: {"max_actions_per_traj": 9, **entry} for tag, entry in entries.items()}
    es_manager = {"train": part, "use_multiprocessing": False, "on_env_failure": policy}
    read = read_config({"es_manager": es_manager, "custom_envs": entries}, "train")
    with EnvironmentContainer(read, 3) as envs:
        before = envs.reset()[0]
        for _ in range(2):
            shown, rewards, dones, infos = envs.step(["a", "a"])
        assert dones == [False, True] and rewards[1] == 0.0 and shown[1] == before[1] == envs.render()[1]
        assert infos[1]["env_error"] == infos[1]["error"] and infos[1]["finished"] and "env_error" not in infos[0]
        assert envs.reset()[0][1].startswith("at ")


def test_calls_at_the_wrong_time_say_so():
    envs = container()
    with pytest.raises(StateError):
        envs.step([1] * 4)
    envs.close()
    envs.close()
    with pytest.raises(StateError):
        envs.reset()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("sokobahn", 1, 1, 0), UnknownEnvError),
        (("sokoban", 0, 1, 0), ConfigError),
        (("sokoban", 1, 1, -1), InputError),
        (("sokoban", 1, 1, 0, {"boxes": 1}), ConfigError),
        (("sokoban", 1, 1, 0, {"num_boxes": 0}), ConfigError),
    ],
)
def test_what_cannot_work_is_refused_before_a_process_starts(arguments, error):
    with pytest.raises(error):
        MultiProcessEnvironmentContainer(*arguments)


def test_numbers_become_arrays():
    shapes = [to_numpy(data).shape for data in (True, 1.5, [1, 2], np.ones((2, 3)), np.float32(1))]
    assert shapes == [(), (), (2,), (2, 3), ()]
    with pytest.raises(InputError):
        to_numpy({"a": 1})
