"""RAGEN's generations as values, what its manager writes of turns and metrics, and its own names."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ragen.env import BaseEnvConfig
from ragen.errors import ConfigError
from ragen.llm_agent.agent_proxy import LLMAgentProxy, VllmWrapperWg
from ragen.llm_agent.backends import Backend
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.environments import read_config
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.utils import all_seed, register_resolvers
from support.configurations import composed
from support.later import shipped
from support.rollouts import no_prompts

pytestmark = pytest.mark.models


def configured(*words):
    """A configuration with one environment of each tag of the package; words with ``=`` are overrides."""
    tags = [word for word in words if "=" not in word]
    shown = ",".join(tags)
    ones = ",".join("1" for _ in tags)
    overrides = [
        f"es_manager.train.env_configs.tags=[{shown}]",
        f"es_manager.train.env_configs.n_groups=[{ones}]",
        f"es_manager.train.env_groups={len(tags)}",
        "es_manager.train.group_size=1",
        "es_manager.use_multiprocessing=false",
        "agent_proxy.max_turn=2",
    ]
    return composed("base", [*overrides, *(word for word in words if "=" in word)])


def env_configs(*words):
    entries = read_config(configured(*words), "train").entries
    return {entry.spec.tag: entry.spec.config for entry in entries}


# Configuration


def test_each_generation_is_a_file_of_values():
    """2025's are the defaults; what a command line says besides holds with 2026's too."""
    tags = ("FrozenLake", "CoordFrozenLake", "FrozenLakeDet", "Bandit", "BanditTest", "WebShop")
    defaults = env_configs(*tags)
    assert env_configs(*tags, "+generation=ragen_2025") == defaults
    new = env_configs(*tags, "+generation=ragen_2026", "custom_envs.FrozenLake.env_config.p=0.5")
    assert (new["FrozenLake"].p, new["FrozenLake"].success_rate) == (0.5, 0.8)
    assert (new["FrozenLakeDet"].p, new["FrozenLakeDet"].is_slippery) == (0.9, False)
    assert (new["Bandit"].split, new["BanditTest"].split, new["WebShop"].compat) == ("train", "test", "up26")
    assert {type(config) for config in new.values()} == {type(config) for config in defaults.values()}


def test_a_generation_without_a_file_is_refused():
    with pytest.raises(ConfigError, match="2025"):
        configured("Bandit", "+generation=ragen_2024")


# Turns and metrics


def play(manager, actions):
    reply = {"llm_response": "", "llm_raw_response": ""}
    return manager.step([{"env_id": 0, "actions": actions, **reply}])


def test_turns_without_a_valid_action_are_marked_and_returns_are_metrics():
    with EnvStateManager(configured("SimpleSokoban")) as manager:
        manager.reset(seed=7)
        (cache,) = play(manager, ["fly"])
        assert cache["history"][0]["info"] == {"raw_reward": 0.0, "manager_invalid_action": True}
        assert cache["history"][1]["manager_invalid_action"] is True
        (cache,) = play(manager, ["Up"])
        assert "manager_invalid_action" not in cache["history"][2]
        (state,) = manager.get_rollout_states()
    assert state["metrics"]["SimpleSokoban/manager_invalid_action"] == 0.5
    assert state["metrics"]["SimpleSokoban/episodic_return"] == 0.0


def test_the_raw_rewards_of_a_turn_are_summed_and_the_largest_tile_is_a_metric():
    with EnvStateManager(configured("game_2048")) as manager:
        manager.reset(seed=7)
        moves = ["Up", "Left", "Down", "Right"] * 2
        (cache,) = play(manager, moves)
        env = manager.envs[0]["env"]
        grid, score = env.grid, env.score
        (state,) = manager.get_rollout_states()
    info = cache["history"][0]["info"]
    stuck = info["raw_reward"] - score  # -0.1 for each move that moved nothing
    assert score > 0 and stuck == pytest.approx(-0.1 * round(stuck / -0.1))
    metrics = state["metrics"]
    assert metrics["game_2048/episodic_return"] == info["raw_reward"]
    assert metrics["game_2048/max_tile"] == max(map(max, grid)) and metrics["game_2048/final_score"] == score


def test_a_prompt_says_that_the_last_reply_had_no_valid_action():
    config = configured("SimpleSokoban")
    context = ContextManager(config, shipped())
    with EnvStateManager(config) as manager:
        first = manager.reset(seed=7)
        before = context.get_lm_inputs(first).non_tensor_batch["messages_list"][0][-1]["content"]
        after = context.get_lm_inputs(play(manager, ["fly"])).non_tensor_batch["messages_list"][0][-1]["content"]
    assert context.settings.template.invalid.strip() in after
    assert context.settings.template.invalid.strip() not in before
    assert context.env_config_lookup[0]["env_type"] == "sokoban"
    assert context.reset_memory_managers() is None and context.mode == "train"


def test_collapse_columns_are_there_where_they_are_enabled_and_wanted():
    enabled = [f"collapse_detection.{name}_turn_enabled=true" for name in ("first", "multi")]
    columns = played(*enabled).non_tensor_batch
    assert columns["turn_counts"].tolist() == columns["turn_counts_total"].tolist() == [2, 1]
    assert [len(each) for each in columns["all_turns_prompt_ids"]] == [2, 1]
    thought = shipped()("x", add_special_tokens=False)["input_ids"]
    assert columns["first_turn_reasoning_ids"].tolist() == [thought, thought]
    shown = shipped().decode(columns["first_turn_prompt_ids"][0])
    assert "Turn 1" in shown and shown.endswith("<think>") and "Turn 2" not in shown
    assert "turn_counts" not in played(*enabled, meta_info={"compute_collapse": False}).non_tensor_batch
    assert "turn_counts" not in played().non_tensor_batch


class Same(Backend):
    """Says the same to everyone."""

    def generate(self, requests, sampling):
        from ragen.llm_agent.backends import Reply

        return [Reply("x</think><answer>Up</answer>") for _ in requests]

    def close(self):
        pass


def played(*overrides, meta_info=None):
    with LLMAgentProxy(configured("SimpleSokoban", "Countdown", *overrides), Same(), shipped()) as proxy:
        assert proxy.actor_wg is not None
        return proxy.rollout(no_prompts(**meta_info or {}))


# RAGEN's names


def test_all_seed_seeds_both_generators_and_puts_them_back():
    random.seed(5), np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5), np.random.seed(5)
    with pytest.raises(RuntimeError), all_seed(3):
        drawn = random.random(), np.random.random()
        raise RuntimeError
    assert drawn == (random.Random(3).random(), np.random.RandomState(3).random())
    assert (random.random(), np.random.random()) == expected


def test_resolvers_compute_and_may_be_registered_twice():
    from omegaconf import OmegaConf

    register_resolvers()
    register_resolvers()
    config = OmegaConf.create({"a": "${mul:2,3}", "b": "${int_div:7,2}", "c": "${not:${d}}", "d": True})
    assert OmegaConf.to_container(config, resolve=True) == {"a": 6, "b": 3, "c": False, "d": True}


def test_a_configuration_written_for_ragen_derives_from_its_base():
    assert (BaseEnvConfig().invalid_act, BaseEnvConfig().invalid_act_score) == ("", 0)


def prompts():
    config = configured("SimpleSokoban")
    with EnvStateManager(config) as manager:
        return ContextManager(config, shipped()).get_lm_inputs(manager.reset(seed=1))


def test_the_vllm_wrapper_samples_as_at_validation(monkeypatch):
    from ragen.llm_agent.backends import Reply
    from ragen.llm_agent.backends.vllm import VllmBackend

    asked = []

    class Backend:
        llm = "engine"

        def generate(self, requests, sampling):
            asked.append(sampling)
            return [Reply("</think>") for _ in requests]

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__spec__=None))
    monkeypatch.setattr(VllmBackend, "from_config", classmethod(lambda cls, config, tokenizer=None: Backend()))
    wrapper = VllmWrapperWg(configured("SimpleSokoban"), shipped())
    answered = wrapper.generate_sequences(prompts())
    assert list(answered.non_tensor_batch["response_texts"]) == ["</think>"] and wrapper.llm == "engine"
    assert (asked[0].temperature, asked[0].do_sample) == (0.5, True)
