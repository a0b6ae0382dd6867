"""A value of ``env_config`` that cannot work is refused by key and value as the configuration is made."""

from __future__ import annotations

from typing import Any

import pytest

from ragen.env import resolve_env
from ragen.env.checks import declared_rules
from support import env_contract

TILES = dict(enumerate("#_O√XPS"))
ICE = dict(enumerate("P_OGX√"))
MOVES = {1: "Up", 2: "Down", 3: "Left"}
REFUSED: dict[str, dict[str, list[Any]]] = {
    "alfworld": {
        "data": ["/nowhere"],
        "eval_dataset": ["valid_seen"],
        "task_types": [[], [7]],
        "num_train_games": [0],
    },
    "bandit": {
        "lo_arm_name": [""],
        "hi_arm_name": [3, "Phoenix"],
        "hi_arm_hiscore_prob": [1.5, float("nan")],
        "action_space_start": [1.0],
        "internal_seed": [-1],
    },
    "code": {
        "dataset": ["no/such.jsonl"],
        "levels": [[], [4]],
        "families": [["nothing"], [["digit_sum"]]],
        "tests": [0],
        "cpu_seconds": [0],
        "memory_mb": [1],
    },
    "countdown": {
        "train_path": ["no/such/file.parquet", "", 3],
        "max_instances": [0],
    },
    "frozen_lake": {
        "size": [1, 101, 4.0, "4"],
        "p": [-0.1, float("nan")],
        "success_rate": [1.5, None],
        "map_seed": [-1, 1.5],
        "grid_lookup": [{0: "P"}, dict(enumerate("P_OGX√?")), {**ICE, "0": "Q"}],
        "grid_vocab": [3],
        "action_lookup": [{1: "Left"}, {**MOVES, 4: 4}],
        "action_map": [{1: 0, 2: 1, 3: 2}, {1: 0, 2: 1, 3: 2, 4: 4}, [0, 1, 2, 3]],
    },
    "game_2048": {
        "size": [1, True, 1000],
        "two_prob": [-0.1],
        "use_log_reward": [1],
        "action_lookup": [{1: "Up"}],
    },
    "metamathqa": {"dataset_path": ["no/such/file.jsonl"], "cache_dir": [3], "split": ["", "test"]},
    "miniwob": {"tasks": [[], ["nothing"], [["click-test"]], "click-test"], "max_steps": [0], "browser_path": [3]},
    "openenv": {"url": [None, "localhost:8000"]},
    "rubikscube": {"scramble_depth": [-1, 10**9], "max_steps": [0], "legacy_b_move": [1], "action_lookup": [{}]},
    "search": {
        "corpus": ["/nowhere.jsonl"],
        "backend": ["elastic"],
        "max_searches": [-1],
        "f1_threshold": [2],
        "hops": [[], [9]],
        "entities": [3],
        "retrieval_timeout": [0],
        "search_delay": [-1, "0.1"],
        "questions": ["/nowhere.jsonl", __file__],
    },
    "sokoban": {
        "dim_room": [(2, 6), (6, 101), (6,), 6, (6.0, 6)],
        "dim_x": [2],
        "num_boxes": [0, 15, True],
        "search_depth": [2, 3.5],
        "grid_lookup": [{0: "#"}, {**TILES, 7: "?"}, {**TILES, 3: ""}, {**TILES, 3: "a\nb"}, ["#", "_"]],
        "grid_vocab": ["wall", {"#": 1}],
        "action_lookup": [MOVES, {**MOVES, 4: "up"}, None],
    },
    "sudoku": {
        "grid_size": [6, 9.0],
    },
    "terminal": {
        "tasks": ["no/such/folder"],
        "families": [[], ["nothing"]],
        "files": [1],
        "max_output": [1],
        "cpu_seconds": [0],
        "memory_mb": [1],
        "disk_mb": [0],
    },
    "textworld": {
        "families": [["chess"]],
        "levels": [[], [4], [True]],
    },
    "webshop": {
        "limit_goals": [0],
        "human_goals": [True],
        "price_seed": ["x"],
        "file_path": ["/nowhere", 7],
    },
}
CASES = [(env, key, value) for env, keys in REFUSED.items() for key, values in keys.items() for value in values]
CASES += [
    (env, key, value)
    for env in REFUSED
    if env != "openenv"  # it has no default url
    for key in declared_rules(resolve_env(env)[1])
    for value in ({}, *(["human"] if key == "render_mode" else []))
    if key not in ("train_path", "max_search_results")  # other names of keys of search
]


@pytest.mark.parametrize(
    ("env", "key", "value"), CASES, ids=[f"{env}.{key}={value!r:.20}" for env, key, value in CASES]
)
def test_a_bad_value_is_refused_by_key_and_value(env: str, key: str, value: Any) -> None:
    env_contract.assert_refused(resolve_env(env)[1], key, value)
