"""Bad configurations and bad inputs: a clear error that names key, value and what was expected; nothing was built."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from ragen.errors import ConfigError, InputError, StateError
from ragen.llm_agent.es_manager import EnvStateManager
from support.episodes import config, freeze, inputs, sequential
from support.leftovers import processes

pytestmark = pytest.mark.usefixtures("leaves_nothing")

TAGS = {
    "Walk": {"env_type": "support.faulty_envs:Walk"},
    "Faulty": {"env_type": "support.faulty_envs:Faulty", "env_config": {"fault": "nothing"}},
}


def good() -> dict[str, Any]:
    return config(TAGS, [("Walk", 2), ("Faulty", 1)], group_size=2, use_multiprocessing=True)


REMOVED = "(removed)"

# the key, the bad value, the key that the message names: itself, or the one that was meant
BAD_CONFIG: list[tuple[str, Any, str]] = [
    ("es_manager", REMOVED, "es_manager"),
    ("es_manager", [], "es_manager"),
    ("custom_envs", [1], "custom_envs"),
    ("seed", 42, "seed"),
    ("custom_envs", REMOVED, "custom_envs"),
    ("es_manager.train", REMOVED, "es_manager.train"),
    ("es_manager.train.env_groups", REMOVED, "es_manager.train.env_groups"),
    ("es_manager.train.env_groups", 4, "es_manager.train.env_configs.n_groups"),
    ("es_manager.train.env_groups", 0, "es_manager.train.env_groups"),
    ("es_manager.train.env_groups", True, "es_manager.train.env_groups"),
    ("es_manager.train.group_size", REMOVED, "es_manager.train.group_size"),
    ("es_manager.train.env_configs.tags", ["Walk"], "es_manager.train.env_configs.n_groups"),
    ("es_manager.train.env_configs.tags", ["Walk", "Runs"], "es_manager.train.env_configs.tags"),
    ("es_manager.train.env_configs.tags", "Walk", "es_manager.train.env_configs.tags"),
    ("es_manager.train.env_configs.n_groups", [3], "es_manager.train.env_configs.n_groups"),
    ("es_manager.train.env_configs.tags", ["all", "Bandit"], "es_manager.train.env_configs.tags"),
    ("es_manager.train.env_configs.n_groups", [3, 0], "es_manager.train.env_configs.n_groups"),
    ("es_manager.use_multiprocessing", "yes", "es_manager.use_multiprocessing"),
    ("es_manager.use_multiprocessing", 1, "es_manager.use_multiprocessing"),
    ("es_manager.max_workers", 0, "es_manager.max_workers"),
    ("es_manager.sequential_env_types", "webshop", "es_manager.sequential_env_types"),
    ("es_manager.sequential_env_types", ["wobshop"], "es_manager.sequential_env_types"),
    ("es_manager.step_timeout", 0, "es_manager.step_timeout"),
    ("es_manager.reset_timeout", float("nan"), "es_manager.reset_timeout"),
    ("es_manager.startup_timeout", float("inf"), "es_manager.startup_timeout"),
    ("es_manager.on_env_failure", "ignore", "es_manager.on_env_failure"),
    ("es_manager.max_restarts", -1, "es_manager.max_restarts"),
    ("es_manager.failed_trajectories", "keep", "es_manager.failed_trajectories"),
    ("es_manager.bakend", "process", "es_manager.backend"),
    ("custom_envs.Faulty.env_type", REMOVED, "custom_envs.Faulty.env_type"),
    ("custom_envs.Faulty.env_type", "chess", "custom_envs.Faulty.env_type"),
    ("custom_envs.Faulty.env_type", "no_such_module:Env", "custom_envs.Faulty.env_type"),
    ("custom_envs.Faulty.env_type", "support.faulty_envs:Missing", "custom_envs.Faulty.env_type"),
    ("custom_envs.Faulty.max_actions_per_traj", REMOVED, "custom_envs.Faulty.max_actions_per_traj"),
    ("custom_envs.Faulty.env_config", [1], "custom_envs.Faulty.env_config"),
    ("custom_envs.Faulty.env_config.mischief", 1, "custom_envs.Faulty.env_config.mischief"),
    ("es_manager.max_worker", 4, "es_manager.max_workers"),
    ("es_manager.trian", {}, "es_manager.train"),
    ("es_manager.train.step_timeout", 4, "es_manager.step_timeout"),
    ("es_manager.train.env_configs.n_group", [2, 1], "es_manager.train.env_configs.n_groups"),
    ("custom_envs.Faulty.env_configs", {}, "custom_envs.Faulty.env_config"),
    ("seed.train", -1, "seed.train"),
    ("seed.trian", 1, "seed.train"),
    ("es_manager.train.env_groups", "3", "es_manager.train.env_groups"),
    ("es_manager.env_groups", 1, "es_manager.train.env_groups"),
    ("es_manager.ray", {"num_cpu": 1}, "es_manager.ray.num_cpus"),
    ("custom_envs.Walk", [], "custom_envs.Walk"),
]


def changed(key: str, value: Any) -> dict[str, Any]:
    configuration = copy.deepcopy(good())
    *path, last = key.split(".")
    section = configuration
    for part in path:
        section = section[part]
    if value is REMOVED:
        del section[last]
    else:
        section[last] = value
    return configuration


def from_code(configuration: dict[str, Any], _: Path) -> Any:
    return configuration


def from_file(configuration: dict[str, Any], folder: Path) -> Any:
    path = folder / "config.yaml"
    OmegaConf.save(OmegaConf.create(configuration), path)
    return OmegaConf.load(path)


SOURCES = pytest.mark.parametrize("source", [from_code, from_file])


@pytest.mark.parametrize(
    ("source", "key", "value", "names"),
    [*((from_code, *bad) for bad in BAD_CONFIG), *((from_file, *bad) for bad in BAD_CONFIG[::6])],
    ids=lambda value: getattr(value, "__name__", str(value)[:40]),
)
def test_a_bad_configuration_is_told_before_anything_is_built(
    source: Callable[[Any, Path], Any], key: str, value: Any, names: str, tmp_path: Path
) -> None:
    before = processes()
    with pytest.raises(ConfigError) as caught:
        EnvStateManager(source(changed(key, value), tmp_path))
    message = str(caught.value)
    assert names in message or names.replace(".env_config.", ".env_config: ") in message or "tag " in message
    assert processes() == before


def test_a_key_of_someone_elses_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        EnvStateManager(changed("es_manager.seed_pool", 1)).close()
    assert [record.message.partition(" ")[0] for record in caplog.records] == ["es_manager.seed_pool"]


@pytest.mark.parametrize("key", ["parallel_friendly", "max_workers"])
def test_what_ragens_own_files_say_is_no_cause_for_a_word(key: str, caplog: pytest.LogCaptureFixture) -> None:
    EnvStateManager(changed(f"custom_envs.Walk.{key}", 4)).close()
    assert not caplog.records


@SOURCES
def test_a_good_configuration_gives_the_same_from_code_and_from_a_file(
    source: Callable[[Any, Path], Any], tmp_path: Path
) -> None:
    with EnvStateManager(source(good(), tmp_path)) as manager:
        active = manager.reset()
        for turn in range(2):
            active = manager.step(inputs([cache["env_id"] for cache in active], turn))
        assert freeze(manager.get_rollout_states()) == sequential(good(), 2)[0]


@pytest.mark.parametrize("mode", ["test", "", None, 1])
def test_an_unknown_mode_is_told(mode: Any) -> None:
    with pytest.raises(ConfigError, match=r"mode = .*expected 'train' or 'val'"):
        EnvStateManager(good(), mode)


# Inputs of step and reset


def given(**changes: Any) -> dict[str, Any]:
    return {**inputs([1], 0)[0], **changes}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in given().items() if name != key}


BAD_INPUTS: list[tuple[Any, list[str]]] = [
    (given(env_id=6), ["env_id = 6", "0 to 5"]),
    (given(env_id=-1), ["env_id = -1", "0 to 5"]),
    (given(env_id="1"), ["env_id = '1'", "0 to 5"]),
    (given(env_id=True), ["env_id = True", "0 to 5"]),
    (given(env_id=0), ["env_id = 0", "twice"]),
    (given(actions="left"), ["actions = 'left'", "list"]),
    (given(actions=[1]), ["actions = [1]", "strings"]),
    (without("env_id"), ["env_id", "dict"]),
    (without("actions"), ["actions", "dict"]),
    (defaultdict(list, without("actions")), ["actions", "dict"]),
    (None, ["is None", "dict"]),
    ([], ["is []", "dict"]),
]


@pytest.mark.parametrize("parallel", [True, False])
def test_a_bad_input_is_told_and_no_environment_is_stepped(parallel: bool) -> None:
    with EnvStateManager(good()) as manager:
        manager.use_multiprocessing = parallel
        manager.reset()
        before = freeze(manager.rollout_cache)
        for bad, says in BAD_INPUTS:
            with pytest.raises(InputError) as caught:
                manager.step([*inputs([0], 0), bad, *inputs([2, 3], 0)])
            assert "step input 1" in str(caught.value)
            for text in says:
                assert text in str(caught.value)
            assert freeze(manager.rollout_cache) == before
            assert [entry["status"].num_actions for entry in manager.envs] == [0] * 6


def test_only_the_environment_and_its_actions_are_needed() -> None:
    with EnvStateManager(good()) as manager:
        manager.use_multiprocessing = False
        manager.reset()
        (cache,) = manager.step([{"env_id": 4, "actions": ["a"]}])
        assert [cache["history"][0][name] for name in ("llm_response", "llm_raw_response")] == ["", ""]


@pytest.mark.parametrize("bad", [None, 3, "left", b"left", {"env_id": 0}])
def test_what_is_no_list_of_inputs_is_told(bad: Any) -> None:
    with EnvStateManager(good()) as manager:
        manager.use_multiprocessing = False
        manager.reset()
        with pytest.raises(InputError, match=r"step got .*; expected a list of dicts"):
            manager.step(bad)


def test_stepping_an_environment_whose_episode_is_over_is_told() -> None:
    with EnvStateManager(changed("custom_envs.Walk.max_actions_per_traj", 1)) as manager:
        manager.reset()
        active = manager.step(inputs(range(6), 0))
        assert [cache["env_id"] for cache in active] == [4, 5]
        with pytest.raises(InputError, match="env_id = 0 is over"):
            manager.step(inputs([4, 0], 1))
        assert len(manager.step(inputs([4, 5], 1))) == 2


def test_a_bad_seed_is_told_and_nothing_is_reset() -> None:
    with EnvStateManager(good()) as manager:
        rollouts = freeze(manager.reset())
        for seed in (-1, 2**32, 2**32 - 2, "1", 1.5, True, np.float32(1)):
            with pytest.raises(InputError, match="seed"):
                manager.reset(seed)  # type: ignore[arg-type]
            assert freeze(manager.rollout_cache) == rollouts


@pytest.mark.parametrize(
    "call",
    [lambda m: m.step([]), lambda m: m.render(), lambda m: m.get_rollout_states()],
    ids=["step", "render", "states"],
)
def test_a_call_before_the_first_reset_is_told(call: Callable[[EnvStateManager], Any]) -> None:
    with EnvStateManager(good()) as manager, pytest.raises(StateError, match=r"reset\(\) first"):
        call(manager)


@pytest.mark.parametrize(
    "call", [lambda m: m.reset(), lambda m: m.step([]), lambda m: m.render()], ids=["reset", "step", "render"]
)
def test_a_call_after_close_is_told(call: Callable[[EnvStateManager], Any]) -> None:
    manager = EnvStateManager(good())
    manager.close()
    with pytest.raises(StateError, match="closed"):
        call(manager)


@pytest.mark.parametrize("value", ["yes", 2, None])
def test_a_bad_switch_is_told_and_changes_nothing(value: Any) -> None:
    with EnvStateManager(good()) as manager:
        with pytest.raises(InputError, match="use_multiprocessing"):
            manager.use_multiprocessing = value
        assert manager.use_multiprocessing is True
