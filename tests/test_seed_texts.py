"""Statements of the texts behind this package's systems that have no test elsewhere, as they say them.

``seed_statements.yaml`` lists all statements, each with its tests or the page that says how the package differs. A row
of ``STATEMENTS`` is a text, its statement, and a function that sees it hold.
"""

import logging
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

import ragen.env
from ragen.errors import ConfigError
from support.later import shipped

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [pytest.mark.processes, pytest.mark.models]

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

    from ragen.config.loading import load_config
    from ragen.llm_agent.agent_proxy import LLMAgentProxy
    from ragen.llm_agent.backends import create_backend

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


def debug_logging_tells_what_starts_and_where_environments_play(caplog):
    caplog.set_level(logging.DEBUG)
    with container(settings=IN_WORKERS) as envs:
        envs.reset()
        envs.step([1] * 4)
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert any("starting worker" in line for line in logged)
    assert any(line.startswith("turn: ") and "worker" in line for line in logged)


def nothing_is_logged_by_default(caplog):
    caplog.set_level(logging.INFO)
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


def the_check_of_an_installation_exits_with_0_or_1(monkeypatch):
    import test_parallel_envs as script

    def broken():
        raise AssertionError("on purpose")

    monkeypatch.setitem(script.CHECKS, "broken", broken)
    monkeypatch.setattr(script.logging, "disable", lambda level: None)
    assert [script.main([word]) for word in ("projections", "broken", "no such check")] == [0, 1, 1]


REPLIES = {  # a valid reply, an invalid one, and whether a turn ends the episode
    "sokoban": ("<action>up</action>", "jump", False),
    "frozen_lake": ("<action>down</action>", "jump", False),
    "bandit": ("<action>1</action>", "none of them", True),
    "countdown": ("<action>1 + 1</action>", "no idea", True),
    "metamathqa": ("<action>the answer is 1</action>", "", False),
    "webshop": ("<action>search[red shoes]</action>", "hm", False),
}


def every_type_has_a_manager_that_plays_texts():
    for env_type, (valid, invalid, ends) in REPLIES.items():
        envs = container(env_type, 1, 2, settings={"use_lanes": False})
        project = ragen.env.create_projection_function(env_type)
        name = {"metamathqa": "MetaMathQA", "webshop": "WebShop"}.get(env_type, env_type.title().replace("_", ""))
        with getattr(ragen.env, f"{name}EnvironmentManager")(envs, project, env_type) as manager:
            shown, _ = manager.reset()
            assert shown["anchor"][0] == shown["anchor"][1] and shown["text"][0] == shown["text"][1], env_type
            shown, rewards, dones, infos = manager.step([valid, invalid])
            assert [bool(info["is_action_valid"]) for info in infos] == [True, False], env_type
            assert rewards.shape == (2,) and dones.tolist()[0] is ends and len(shown["text"]) == 2, env_type


def a_type_of_ones_own_is_registered_by_hand(monkeypatch):
    from support.toy_envs import Counter

    monkeypatch.setitem(ragen.env.REGISTERED_ENVS, "counting", Counter)
    monkeypatch.setitem(ragen.env.REGISTERED_ENV_CONFIGS, "counting", Counter.config_class)
    envs = ragen.env.MultiProcessEnvironmentContainer("counting", 2, 2, 0, {"goal": 9}, settings=IN_WORKERS)
    project = ragen.env.create_projection_function("counting")
    with ragen.env.EnvironmentManagerBase(envs, project, "counting") as manager:
        manager.reset()
        infos = manager.step(["<action>one</action>", "<action>Two</action>", "?", "one"])[3]
        assert [bool(info["is_action_valid"]) for info in infos] == [True, True, False, False]
        assert [info.get("count") for info in infos[:2]] == [1, 2]


def a_configuration_trains(name, folder, *overrides):
    from ragen.training.command import main
    from support.small_training import SMALL, metrics_of

    given = {word.partition("=")[0]: word for word in (*SMALL, *overrides, "trainer.total_training_steps=1")}
    assert main(["--config-name", name, *given.values(), f"output_dir={folder}"]) == 0
    assert [line["step"] for line in metrics_of(folder) if line["phase"] == "train"][-1] == 1


def train_py_trains_on_the_container(tmp_path):
    sizes = [f"es_manager.{mode}.env_configs.n_groups=[1,1,1,1]" for mode in ("train", "val")]
    sizes += [f"es_manager.{mode}.env_groups=4" for mode in ("train", "val")]
    a_configuration_trains("parallel_envs", tmp_path, *sizes, "agent_proxy.max_turn=2")


def train_py_trains_on_joblibs_rollouts(tmp_path):
    a_configuration_trains("base-parallel", tmp_path, "agent_proxy.parallel_n_jobs=-1", "agent_proxy.max_turn=2")


def one_caller_at_a_time_reaches_the_shared_actor():
    from ragen.llm_agent.rollout.shards import SharedLLMInferenceManager

    alone = threading.Lock()

    class Actor:
        def generate_sequences(self, prompts):
            assert alone.acquire(blocking=False)
            threading.Event().wait(0.01)  # others come in the meantime, if they can
            alone.release()
            return prompts

    shared, answers = SharedLLMInferenceManager(Actor()), []
    callers = [threading.Thread(target=lambda n=n: answers.append(shared.generate_sequences(n))) for n in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(answers) == list(range(8))


def joblib_logs_who_plays_what_and_how_long(caplog):
    from verl import DataProto

    from ragen.llm_agent.backends import create_backend
    from ragen.llm_agent.rollout.shards import ParallelRolloutManager

    caplog.set_level(logging.INFO)
    config = two_types("agent_proxy.max_turn=2", "agent_proxy.parallel_backend=threading")
    with ParallelRolloutManager(config, create_backend(config), shipped(), n_jobs=2) as manager:
        manager.parallel_rollout(DataProto(meta_info={}))
        assert manager.fallback_reason is None
    logged = caplog.text
    assert all(logged.count(words) == 2 for words in ("environments of", "waiting for replies"))


def keys_of_joblib_are_checked():
    from ragen.llm_agent.agent_proxy import LLMAgentProxy
    from ragen.llm_agent.backends import create_backend

    for key, value in (("parallel_n_jobs", 0), ("parallel_backend", "dask")):
        with pytest.raises(ConfigError, match=key):
            config = two_types("agent_proxy.use_parallel_rollout=true", f"agent_proxy.{key}={value}")
            LLMAgentProxy(config, create_backend(config), shipped())


def a_trainer_that_does_not_read_a_switch_refuses_it():
    from ragen.agent_loop import train
    from ragen.config.loading import load_config

    for switch in ("use_parallel_envs=true", "agent_proxy.use_parallel_rollout=true"):
        with pytest.raises(ConfigError, match=switch.partition("=")[0].rpartition(".")[2]):
            train(load_config("base", [switch]))


def stepped(manager):
    """An episode of two turns; the caches of the environments that go on."""
    active = manager.reset(seed=3)
    for _ in range(2):
        replies = [{"env_id": cache["env_id"], "actions": ["Up", "search[shirt]"]} for cache in active]
        active = manager.step([{**reply, "llm_response": "", "llm_raw_response": ""} for reply in replies])
    return active


def two_types(*overrides):
    from ragen.config.loading import load_config

    sizes = [
        f"es_manager.{mode}.{key}"
        for mode in ("train", "val")
        for key in ("env_configs.tags=[SimpleSokoban,WebShop]", "env_configs.n_groups=[2,1]", "env_groups=3")
    ]
    return load_config("base", [*sizes, *(f"es_manager.{mode}.group_size=2" for mode in ("train", "val")), *overrides])


def listed_types_stay_in_the_main_process(tmp_path):
    from ragen.llm_agent.es_manager import EnvStateManager

    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    given = OmegaConf.create(block.replace("auto ", "true ", 1)).es_manager
    assert given.use_multiprocessing is True
    overrides = [f"es_manager.{key}={value}" for key, value in given.items()]
    with EnvStateManager(two_types(*overrides)) as manager, EnvStateManager(two_types()) as plain:
        assert stepped(manager) == stepped(plain)
        homes = {entry["tag"]: manager.home(entry["env_id"]) for entry in manager.envs}
        assert homes["WebShop"] == "main" and homes["SimpleSokoban"].startswith("worker")


def executors_live_on_between_steps_resets_and_managers(monkeypatch):
    from envlanes.kinds import executor
    from ragen.llm_agent.es_manager import EnvStateManager

    made = []

    class Counted(executor.ProcessPoolExecutor):
        def __init__(self, *args, **kwargs):
            made.append(self)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(executor, "ProcessPoolExecutor", Counted)
    config = two_types("es_manager.use_multiprocessing=true", "es_manager.backend=executor", "es_manager.max_workers=2")
    with EnvStateManager(config, "train") as train, EnvStateManager(config, "val") as val:
        for _ in range(2):
            assert stepped(train) and stepped(val)
    assert len(made) == 2


STATEMENTS = [
    ("000", "the configuration works as pasted", the_configuration_as_pasted),
    ("000", "and with each switch", the_configuration_as_pasted_trains_without_containers_too),
    ("000", "groups share a seed; a step gives four lists", groups_begin_alike_and_steps_return_four_lists),
    ("000", "debug logging", debug_logging_tells_what_starts_and_where_environments_play),
    ("000", "no logging by default", nothing_is_logged_by_default),
    ("000", "MetaMathQA's projection extracts numerical answers", answers_with_words_around_them_earn_their_reward),
    ("000", "Bandit's projection extracts arm numbers", arms_are_pulled_by_number),
    ("000", "to_numpy", to_numpy_takes_booleans_and_tensors),
    ("000", "test_parallel_envs.py exits with 0 or 1", the_check_of_an_installation_exits_with_0_or_1),
    ("000", "six managers", every_type_has_a_manager_that_plays_texts),
    ("000", "contributing: types are registered by hand", a_type_of_ones_own_is_registered_by_hand),
    ("000", "train.py trains on the container", train_py_trains_on_the_container),
    ("001", "train.py trains on rollouts of joblib", train_py_trains_on_joblibs_rollouts),
    ("001", "one caller at a time", one_caller_at_a_time_reaches_the_shared_actor),
    ("001", "logs of assignment and timing", joblib_logs_who_plays_what_and_how_long),
    ("001", "keys", keys_of_joblib_are_checked),
    ("003", "listed types stay in main", listed_types_stay_in_the_main_process),
    ("003", "the pool is long-lived", executors_live_on_between_steps_resets_and_managers),
    ("000, 001", "switches that a trainer does not read", a_trainer_that_does_not_read_a_switch_refuses_it),
]


@pytest.mark.parametrize(("text", "statement", "holds"), STATEMENTS, ids=[row[1] for row in STATEMENTS])
def test_statements(text, statement, holds, request):
    names = holds.__code__.co_varnames[: holds.__code__.co_argcount]
    holds(*(request.getfixturevalue(name) for name in names))
