"""The manager's own rules: seeds, turns, penalties, limits, metrics, handles. Each holds in main and in lanes."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psutil
import pytest

from ragen.llm_agent.es_manager import EnvStateManager

MODES = {"main": {"use_multiprocessing": False}, "lanes": {"use_multiprocessing": True, "max_workers": 2}}
COUNTER = {"env_type": "support.toy_envs:Counter", "max_actions_per_traj": 4}
ECHO = {"env_type": "support.toy_envs:Echo", "max_actions_per_traj": 3}

Make = Callable[..., EnvStateManager]


def manager_config(
    tags: Mapping[str, Mapping[str, Any]] | None = None,
    groups: Sequence[int] = (2,),
    group_size: int = 2,
    seed: Mapping[str, int] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    tags = tags or {"Counter": COUNTER}
    part = {
        "env_groups": sum(groups),
        "group_size": group_size,
        "env_configs": {"tags": list(tags), "n_groups": list(groups)},
    }
    seeds = {"train": 100, "val": 500} if seed is None else dict(seed)
    return {"custom_envs": dict(tags), "seed": seeds, "es_manager": {"train": part, "val": part, **settings}}


def counter(**env_config: Any) -> dict[str, dict[str, Any]]:
    return {"Counter": {**COUNTER, "env_config": env_config}}


def reply(env_id: int, *actions: str) -> dict[str, Any]:
    return {"env_id": env_id, "actions": list(actions), "llm_response": "said", "llm_raw_response": "raw"}


def seeds(manager: EnvStateManager) -> list[int]:
    return [entry["status"].seed for entry in manager.envs]


@pytest.fixture(scope="module", autouse=True)
def warm_lanes() -> Iterator[None]:
    """Workers that stay while managers come and go; at the end none is left."""
    before = set(psutil.Process().children(recursive=True))
    with EnvStateManager(manager_config(**MODES["lanes"])):
        yield
    gc.collect()
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.fixture(params=MODES)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes managers, in main or with lanes; they are closed at the end."""
    made = []

    def make(mode: str = "train", **arguments: Any) -> EnvStateManager:
        made.append(EnvStateManager(manager_config(**{**arguments, **MODES[request.param]}), mode=mode))
        return made[-1]

    yield make
    for manager in made:
        manager.close()


# Seeds

SEEDS = {  # mode, configured seeds: (the seed that reset is given, the first group's seed) of each episode
    "train": ("train", {"train": 100}, [(None, 100), (None, 102), (700, 700), (None, 701)]),
    "val": ("val", {"val": 500}, [(None, 500), (None, 500), (9, 9), (None, 500)]),
    "val by default": ("val", {"train": 100}, [(None, 123)]),
}


@pytest.mark.parametrize(("mode", "configured", "resets"), SEEDS.values(), ids=SEEDS)
def test_training_seeds_count_on_and_validation_plays_the_same_levels(
    make: Make, mode: str, configured: dict[str, int], resets: list[tuple[int | None, int]]
) -> None:
    manager = make(mode, seed=configured)
    for given, first in resets:
        states = [cache["history"][0]["state"] for cache in manager.reset(seed=given)]
        assert seeds(manager) == [first, first, first + 1, first + 1]
        assert states == [f"{mode} seed {seed} count 0" for seed in seeds(manager)]


def test_training_without_a_configured_seed_begins_at_a_random_one_each_time(make: Make) -> None:
    manager = make(seed={})
    random.seed(3)
    expected = [random.randint(0, 1_000_000) for _ in range(2)]
    random.seed(3)
    for first in expected:
        manager.reset()
        assert seeds(manager) == [first, first, first + 1, first + 1]
    assert manager.seed_counter == 0


# Turns


def test_a_turn_executes_its_actions_and_opens_the_next_entry(make: Make) -> None:
    manager = make()
    manager.reset()
    (cache,) = manager.step([reply(1, "One", "Two")])
    assert cache is manager.rollout_cache[1]
    assert cache["history"] == [
        {
            "state": "train seed 100 count 0",
            "actions_left": 4,
            "actions": [1, 2],
            "reward": 0.1 + 0.2,
            "info": {"count": 3, "odd": True, "success": False, "raw_reward": 0.0},
            "llm_response": "said",
            "llm_raw_response": "raw",
        },
        {"state": "train seed 100 count 3", "actions_left": 2},
    ]
    assert cache["penalty"] == 0
    assert manager.envs[1]["status"].rewards == [0.1 + 0.2]
    assert len(manager.rollout_cache[0]["history"]) == 1, "the others did not move"


TURNS = {  # what is said: what is executed, the penalty, and whether the episode is terminated and truncated
    "names of any case": (["oNE", "ONE"], [1, 1], 0, (False, False)),
    "spaces matter": ([" One", "One "], [], -2, (False, False)),
    "unknown actions": (["fly", "One", "swim"], [1], -2, (False, False)),
    "no action": ([], [], -2, (False, False)),
    "too many": (["One"] * 9, [1, 1, 1, 1], 0, (True, True)),
    "success": (["Two", "Two", "Two"], [2, 2, 2], 0, (True, False)),
    "success with the last": (["One", "One", "Two", "Two"], [1, 1, 2, 2], 0, (True, False)),
    "an end without success": (["One", "Stop", "One"], [1, 0], 0, (True, True)),
}


@pytest.mark.parametrize(("said", "executed", "penalty", "ended"), TURNS.values(), ids=TURNS)
def test_a_turn_keeps_the_rules_of_ragen(
    make: Make, said: list[str], executed: list[int], penalty: float, ended: tuple[bool, bool]
) -> None:
    manager = make(tags=counter(goal=6), format_penalty=-2)
    manager.reset()
    going_on = manager.step([reply(0, *said)])
    cache, status = manager.rollout_cache[0], manager.envs[0]["status"]
    assert (cache["history"][0]["actions"], cache["penalty"]) == (executed, penalty)
    assert (status.terminated, status.truncated, status.num_actions) == (*ended, len(executed))
    assert len(going_on) == (not ended[0])


def test_outputs_are_those_going_on_in_the_order_of_the_inputs(make: Make) -> None:
    manager = make(groups=(3,))
    manager.reset()
    outputs = manager.step([reply(5, "One"), reply(0, "Stop"), reply(3, "fly"), reply(1, "One")])
    assert [cache["env_id"] for cache in outputs] == [5, 3, 1]
    assert manager.step([]) == []


# The whole rollout


def test_metrics_are_sums_over_all_turns_divided_by_their_number(make: Make) -> None:
    manager = make()
    manager.reset()
    for actions in (["One"], [], ["Two"], ["Two"]):
        manager.step([reply(0, *actions)])
    cache = manager.get_rollout_states()[0]
    assert cache["metrics"] == {
        "Counter/success": 1.0,
        "Counter/num_actions": 3,
        "Counter/count": (1 + 3 + 5) / 4,
        "Counter/odd": 3 / 4,
        "Counter/raw_reward": 0.0,
        "Counter/episodic_return": 0.0,
        "Counter/manager_invalid_action": 1 / 4,
        "Counter/pass@2": 1.0,
    }
    assert cache["history"][-1]["metrics"].items() >= {"count": [1.0, 3.0, 5.0], "odd": [1.0, 1.0, 1.0]}.items()


def test_pass_at_k_of_a_whole_group_is_whether_any_member_succeeded(make: Make) -> None:
    manager = make(groups=(2,), group_size=3, tags=counter(goal=2))
    manager.reset()
    manager.step([reply(1, "Two"), reply(3, "Stop"), reply(5, "One")])
    rollouts = manager.get_rollout_states()
    assert [cache["metrics"]["Counter/pass@3"] for cache in rollouts] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert [cache["metrics"]["Counter/success"] for cache in rollouts] == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


# Images


def test_image_states_hold_pictures_and_a_placeholder_for_each(make: Make) -> None:
    manager = make(tags=counter(images=2))
    manager.reset()
    (cache,) = manager.step([reply(0, "Two")])
    for entry, count in zip(cache["history"], (0, 2), strict=True):
        assert entry["state"] == "<images><images>"
        assert [(image.mode, image.size) for image in entry["images"]] == [("RGB", (6, 4))] * 2
        assert [np.unique(image).tolist() for image in entry["images"]] == [[count], [count + 1]]


def test_render_shows_what_each_environment_shows_now(make: Make) -> None:
    manager = make(tags={**counter(images=1), "Echo": ECHO}, groups=(1, 1), group_size=1)
    manager.reset()
    manager.step([reply(0, "One"), reply(1, "hello")])
    (image,), text = manager.render()
    assert (image.shape, image.dtype, image.max()) == ((4, 6, 3), np.uint8, 1)
    assert text == "['hello']"


# Environments by their handles


def test_envs_lists_every_environment_with_its_place_and_configuration(make: Make) -> None:
    manager = make(tags={**counter(goal=3), "Echo": ECHO}, groups=(1, 1))
    manager.reset()
    keys = {"tag", "group_id", "env_id", "env", "config", "status", "max_actions_per_traj"}
    assert all(set(entry) == keys for entry in manager.envs)
    assert [entry["max_actions_per_traj"] for entry in manager.envs] == [4, 4, 3, 3]
    assert manager.envs[1]["config"].goal == 3
    assert manager.envs[0]["config"] is not manager.envs[1]["config"]


def test_a_handle_reads_attributes_and_calls_methods_wherever_the_environment_lives(make: Make) -> None:
    manager = make()
    manager.reset()
    manager.step([reply(2, "Two")])
    env = manager.envs[2]["env"]
    assert env.config.goal == 5
    assert env.plus(10) == 12
    assert env.render() == "train seed 101 count 2"
    assert not hasattr(env, "grid")
    (cache,) = manager.step([reply(2, "Two")])
    assert cache["history"][-1]["state"] == "train seed 101 count 4"


# Configuration


def test_a_configuration_without_any_of_our_keys_works() -> None:
    config = manager_config(seed={})
    assert set(config["es_manager"]) == {"train", "val"}
    with EnvStateManager(config) as manager:
        manager.reset()
        assert len(manager.step([reply(0, "One")])) == 1
        assert (manager.use_multiprocessing, manager.sequential_env_types) == ("auto", [])
        assert 1 <= manager.max_workers <= 8


# Homes


def test_listed_types_stay_in_main_while_all_others_live_in_lanes() -> None:
    tags = {"Counter": COUNTER, "Echo": ECHO}
    settings = {**MODES["lanes"], "sequential_env_types": [ECHO["env_type"]]}
    with EnvStateManager(manager_config(tags, groups=(2, 1), **settings)) as manager:
        manager.reset()
        manager.step([reply(env_id, "One") for env_id in range(6)])
        main, *lanes = manager.lane_stats()
    assert (main.lane, main.env_types, main.envs, main.turns) == ("main", (ECHO["env_type"],), 2, 2)
    assert [(lane.lane, lane.env_types, lane.envs, lane.turns) for lane in lanes] == [
        (f"worker {index}", (COUNTER["env_type"],), 2, 2) for index in range(2)
    ]


def test_environments_move_when_use_multiprocessing_is_switched_and_play_on() -> None:
    with EnvStateManager(manager_config(tags=counter(goal=50), **MODES["main"])) as manager:
        manager.reset()
        for turn, in_lanes in enumerate((False, True, True, False)):
            manager.use_multiprocessing = in_lanes
            outputs = manager.step([reply(env_id, "One") for env_id in range(4)])
            homes = {stats.lane for stats in manager.lane_stats() if stats.envs}
            assert homes == ({"worker 0", "worker 1"} if in_lanes else {"main"})
            if turn < 3:
                assert [cache["history"][-1]["state"][-1] for cache in outputs] == [str(turn + 1)] * 4
