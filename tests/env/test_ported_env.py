"""The environment of ``docs/ragen_users.md``: it works as it was written, and better as it is ported."""

from __future__ import annotations

import copy

import pytest

from ragen.llm_agent.es_manager import EnvStateManager

PATH = "support.ported_env:"
TURNS = [["Lamp 1", "Lamp 3"], ["lamp 2"], ["fly"], ["Lamp 5"]]


def rollouts(name: str, parallel: bool, **top):
    entry = {"env_type": PATH + name, "max_actions_per_traj": 6, "env_config": {"presses": 4}}
    part = {"env_groups": 2, "group_size": 2, "env_configs": {"tags": ["Lights"], "n_groups": [2]}}
    config = {
        "seed": {"train": 3},
        "custom_envs": {"Lights": entry},
        "es_manager": {"train": part, "use_multiprocessing": parallel, "max_workers": 2},
        **top,
    }
    with EnvStateManager(config) as manager:
        active = manager.reset()
        for actions in TURNS:
            reply = {"actions": actions, "llm_response": "", "llm_raw_response": ""}
            active = manager.step([{"env_id": cache["env_id"], **reply} for cache in active])
        return copy.deepcopy(manager.get_rollout_states())


@pytest.mark.processes
@pytest.mark.parametrize("name", ["LightsOutAsWritten", "LightsOut"])
def test_it_plays_in_workers_as_in_the_main_process(name):
    main_process = rollouts(name, parallel=False)
    assert len({state["history"][0]["state"] for state in main_process}) > 1
    assert main_process == rollouts(name, parallel=True)


def test_porting_changes_no_rollout():
    assert rollouts("LightsOut", parallel=False) == rollouts("LightsOutAsWritten", parallel=False)
