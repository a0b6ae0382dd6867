"""What the texts behind this package's systems say, line by line, as they say it.

A row of ``STATEMENTS`` is a text, its statement, and a function that sees it hold. Statements that have tests of their
own are not repeated: names in ``test_names.py``, projections in ``container/test_projections.py``, joblib in
``llm_agent/test_parallel_rollout_manager.py``, meta-RL's keys in ``meta/test_seed_configuration.py``, CAGE 2's loop in
``cage2/test_order_ppo.py``.
"""

import logging

import numpy as np
import pytest
from omegaconf import OmegaConf

import ragen.env
from ragen.errors import ConfigError
from support.later import shipped

pytestmark = [pytest.mark.contract, pytest.mark.processes, pytest.mark.models]

YAML = """
es_manager:
  train:
    env_groups: 4        # Number of environment groups
    group_size: 3        # Environments per group
    env_configs:
      tags: ["SokobanEnv"]
      n_groups: [1]
  val:
    env_groups: 2
    group_size: 1
    env_configs:
      tags: ["SokobanEnv"]
      n_groups: [1]

custom_envs:
  SokobanEnv:
    env_type: sokoban
    max_actions_per_traj: 50
    env_config:
      dim_room: [6, 6]
      num_boxes: 1
      max_steps: 100
      search_depth: 30
"""
SOKOBAN = {"dim_x": 6, "dim_y": 6, "num_boxes": 1, "max_steps": 10}
IN_WORKERS = {"use_lanes": True, "max_workers": 2}


def container(env_type="sokoban", env_num=2, group_n=2, **more):
    kwargs = SOKOBAN if env_type == "sokoban" else None
    return ragen.env.MultiProcessEnvironmentContainer(env_type, env_num, group_n, 42, kwargs, **more)


def the_configuration_as_pasted():
    config = OmegaConf.create(YAML)
    assert ragen.env.validate_environment_config(config) is True
    train, val = ragen.env.make_environments(config)
    with train, val:
        assert (len(train.reset()[0]["text"]), len(val.reset()[0]["text"])) == (12, 2)


def the_configuration_as_pasted_trains_without_containers_too(tmp_path):
    from verl import DataProto

    from ragen.llm_agent.agent_proxy import LLMAgentProxy
    from ragen.llm_agent.backends import create_backend
    from ragen.llm_agent.config.loading import load_config

    for switch in ("", "use_parallel_envs: false\n", "use_parallel_envs: true\n"):
        path = tmp_path / "pasted.yaml"
        path.write_text(f"defaults: [base]\n{switch}{YAML}")
        config = load_config(str(path), ["agent_proxy.max_turn=2"])
        with LLMAgentProxy(config, create_backend(config), shipped()) as proxy:
            rows = proxy.rollout(DataProto(meta_info={"validate": True}), val=True)
            assert proxy.parallel_envs is ("true" in switch) and len(rows) >= 2


def groups_begin_alike_and_steps_return_four_lists():
    with container(settings=IN_WORKERS) as envs:
        shown, infos = envs.reset()
        assert shown[0] == shown[1] != shown[2] == shown[3] and infos == [{}] * 4
        shown, rewards, dones, infos = envs.step([1, 2, 3, 4])
        assert [len(each) for each in (shown, rewards, dones, infos)] == [4] * 4


def debug_logging_tells_what_starts_where_environments_go_and_what_it_cost(caplog):
    caplog.set_level(logging.DEBUG, "ragen")
    with container(settings=IN_WORKERS) as envs:
        envs.reset()
        envs.step([1] * 4)
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert any("starting worker" in line for line in logged)
    assert any(line.startswith("turn: ") and "worker" in line and " ms" in line for line in logged)


def nothing_is_logged_by_default(caplog):
    caplog.set_level(logging.INFO, "ragen")
    with container(settings=IN_WORKERS) as envs:
        envs.reset()
    assert not caplog.records


def answers_with_words_around_them_earn_their_reward():
    envs = container("metamathqa", 1, 2)
    project = ragen.env.create_projection_function("metamathqa")
    with ragen.env.MetaMathQAEnvironmentManager(envs, project, "metamathqa") as manager:
        manager.reset()
        right = envs._engine.read([0], "correct_answer")[0]
        _, rewards, dones, infos = manager.step([f"<action>{right}</action>", f"The answer is {right}."])
        assert rewards.tolist() == [1.0, 1.0] and dones.all()
        assert all(bool(info["is_action_valid"]) for info in infos)


def arms_are_pulled_by_number():
    envs = container("bandit", 1, 2)
    with ragen.env.BanditEnvironmentManager(envs, ragen.env.create_projection_function("bandit"), "bandit") as manager:
        manager.reset()
        _, _, dones, infos = manager.step(["<action>1</action>", "I pull arm 2"])
        assert dones.all() and [bool(info["is_action_valid"]) for info in infos] == [True, True]
        assert sorted(bool(info["success"]) for info in infos) == [False, True]


def to_numpy_takes_booleans_and_tensors():
    assert isinstance(ragen.env.to_numpy([True, False]), np.ndarray)


def a_trainer_that_does_not_read_a_switch_refuses_it():
    from ragen.agent_loop import train
    from ragen.llm_agent.config.loading import load_config

    for switch in ("use_parallel_envs=true", "agent_proxy.use_parallel_rollout=true"):
        with pytest.raises(ConfigError, match=switch.partition("=")[0].rpartition(".")[2]):
            train(load_config("base", [switch]))


STATEMENTS = [
    ("000", "the configuration works as pasted", the_configuration_as_pasted),
    ("000", "and with each switch", the_configuration_as_pasted_trains_without_containers_too),
    ("000", "groups share a seed; a step gives four lists", groups_begin_alike_and_steps_return_four_lists),
    ("000", "debug logging", debug_logging_tells_what_starts_where_environments_go_and_what_it_cost),
    ("000", "no logging by default", nothing_is_logged_by_default),
    ("000", "MetaMathQA's projection extracts numerical answers", answers_with_words_around_them_earn_their_reward),
    ("000", "Bandit's projection extracts arm numbers", arms_are_pulled_by_number),
    ("000", "to_numpy", to_numpy_takes_booleans_and_tensors),
    ("000, 001", "switches that a trainer does not read", a_trainer_that_does_not_read_a_switch_refuses_it),
]


@pytest.mark.parametrize(("text", "statement", "holds"), STATEMENTS, ids=[row[1] for row in STATEMENTS])
def test_statements(text, statement, holds, request):
    names = holds.__code__.co_varnames[: holds.__code__.co_argcount]
    holds(*(request.getfixturevalue(name) for name in names))
