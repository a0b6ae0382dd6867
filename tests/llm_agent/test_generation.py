"""What ``generation: 2026`` adds to infos, histories and metrics, in the main process as in workers."""

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.testing.equivalence import describe


def config(generation=None, **settings):
    part = {"env_groups": 2, "group_size": 1, "env_configs": {"tags": ["Tiles", "Boxes"], "n_groups": [1, 1]}}
    envs = {"Tiles": "game_2048", "Boxes": "sokoban"}
    return {
        "generation": generation,
        "seed": {"train": 1},
        "es_manager": {"train": part, "capsule_dir": None, **settings},
        "custom_envs": {tag: {"env_type": env_type, "max_actions_per_traj": 9} for tag, env_type in envs.items()},
    }


def played(generation, *turns, **settings):
    with EnvStateManager(config(generation, **settings)) as manager:
        active = manager.reset()
        for actions in turns:
            said = {"actions": actions, "llm_response": "", "llm_raw_response": ""}
            active = manager.step([{"env_id": cache["env_id"], **said} for cache in active])
        return manager.get_rollout_states()


def test_a_turn_without_a_known_action_is_marked_in_its_info_and_in_what_follows():
    for cache in played(2026, ["Up", "Left"], ["fly"]):
        first, second, last = cache["history"]
        assert isinstance(first["info"]["raw_reward"], float) and "manager_invalid_action" not in first["info"]
        assert second["info"] == {"raw_reward": 0.0, "manager_invalid_action": True}
        assert last["manager_invalid_action"] is True and "manager_invalid_action" not in second


def test_metrics_are_those_of_2026():
    tiles, boxes = (cache["metrics"] for cache in played(2026, ["Up", "Left"], ["Down"]))
    assert tiles["Tiles/max_tile"] >= 2 and tiles["Tiles/final_score"] >= 0
    assert "Boxes/episodic_return" in boxes and "Boxes/max_tile" not in boxes


def test_the_default_is_2025():
    for cache in played(None, ["Up"], ["fly"]):
        assert cache["history"][1]["info"] == {} and "manager_invalid_action" not in cache["history"][-1]
        assert not [key for key in cache["metrics"] if key.endswith(("episodic_return", "max_tile"))]


@pytest.mark.processes
def test_workers_show_the_same():
    turns = (["Up", "Left"], ["fly"], ["Down", "Right"])
    here = played(2026, *turns, use_multiprocessing=False)
    there = played(2026, *turns, use_multiprocessing=True, max_workers=2)
    assert list(describe(here)) == list(describe(there))


@pytest.mark.parametrize("value", [2024, True, "newest"])
def test_another_generation_is_refused(value):
    with pytest.raises(ConfigError, match=r"generation = .* expected one of 2025, 2026"):
        EnvStateManager(config(value))
