"""Managers: prompts with histories, what is anchored, how success is told, and verl-agent's arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ragen.llm_agent.prompts.replies import create_projection_function
from ragen.turns.container import MultiProcessEnvironmentContainer
from ragen.turns.managers import (
    MANAGERS,
    EnvironmentManagerBase,
)

SOKOBAN = {"dim_x": 6, "dim_y": 6, "num_boxes": 1}
UP, DOWN = "<action>up</action>", "<action>down</action>"


def manager(env_type: str = "sokoban", count: int = 2, env_name: Any = None, **more: Any) -> EnvironmentManagerBase:
    kwargs = more.pop("env_kwargs", SOKOBAN if env_type == "sokoban" else None)
    envs = MultiProcessEnvironmentContainer(env_type, 1, count, 42, kwargs, settings={"use_lanes": False})
    project = create_projection_function(env_type)
    return MANAGERS.get(env_type, EnvironmentManagerBase)(envs, project, env_name or env_type, **more)


def test_observations_are_prompts_and_anchors_without_a_word_added():
    with manager() as envs:
        obs, infos = envs.reset()
        assert set(obs) == {"text", "image", "anchor"} and obs["image"] is None and infos == [{}, {}]
        assert obs["anchor"] == envs.envs.render() and obs["anchor"][0] in obs["text"][0]
        obs, rewards, dones, infos = envs.step([UP, "nonsense"])
        assert obs["anchor"] == envs.envs.render()
    assert rewards.dtype == float and rewards.shape == (2,) and dones.dtype == bool and dones.shape == (2,)
    assert [info["is_action_valid"].item() for info in infos] == [True, False]
    assert all(info["is_action_valid"].shape == () for info in infos)


def test_histories_show_what_was_seen_before_each_action_and_count_from_the_reset():
    with manager(count=1) as envs:
        first = envs.reset()[0]
        assert "Observation" not in first["text"][0]
        seen = [first["anchor"][0]]
        for action in (UP, DOWN, UP):
            obs = envs.step([action])[0]
            seen.append(obs["anchor"][0])
        prompt = obs["text"][0]
        assert (
            f"[Observation 2: '{seen[1]}', Action 2: 'Down']\n\n[Observation 3: '{seen[2]}', Action 3: 'Up']" in prompt
        )
        assert "Observation 1:" not in prompt and "taken 3 steps" in prompt and "Turn 4:" in prompt
        assert "Observation" not in envs.reset()[0]["text"][0]


def test_templates_of_ones_own_fill_the_same_slots():
    mine = {"turn": "{observation}|{turn}", "window": {"before": "{completed}/{shown}", "turn": "{observation}"}}
    with manager(count=1, templates=mine) as envs:
        assert envs.reset()[0]["text"][0].endswith("|1\nAvailable actions: Up, Down, Left, Right")
        assert "\n\n1/1\n\n" in envs.step([UP])[0]["text"][0]


@pytest.mark.parametrize("kind", [dict, SimpleNamespace])
@pytest.mark.parametrize("history_length", [0, 1])
def test_verl_agents_configuration_is_taken_for_the_name(kind, history_length):
    with manager(env_name=kind(env=kind(env_name="Sokoban", history_length=history_length))) as envs:
        assert (envs.env_name, envs.history_length) == ("Sokoban", history_length)
        first = envs.reset([{"seed": 7}, None])[0]["anchor"]
        assert first[0] != first[1]
        envs.step([UP, UP])
        assert envs.step([UP, UP])[0]["text"][0].count("[Observation ") == history_length


def test_success_is_that_of_the_last_active_step():
    with manager() as envs:
        infos = [[{"success": 1}, {"success": 0}], [{"won": True}], [{"task_success": 1}], [{}], []]
        rows = [[{"active_masks": True}, {"active_masks": False}], *([{"active_masks": True}] for _ in range(3)), []]
        found = envs.success_evaluator(total_infos=infos, total_batch_list=rows)
    assert list(found) == ["success_rate"] and found["success_rate"].tolist() == [1, 1, 1, 0, 0]


def test_prompts_show_what_can_be_done_on_a_page():
    with manager("webshop", 1, env_kwargs=None) as envs:
        obs, _ = envs.reset()
        assert "search[<content>]" in obs["text"][0]
        obs, _, _, infos = envs.step(["<action>search[shirt]</action>"])
        assert "click[next >]" in obs["text"][0] and infos[0]["success"] == 0


def test_pictures_are_given_as_one_array():
    with manager(env_kwargs={**SOKOBAN, "render_mode": "rgb_array"}) as envs:
        obs, _ = envs.reset()
    assert obs["image"].shape == (2, 96, 96, 3) and "<images>" in obs["text"][0]
