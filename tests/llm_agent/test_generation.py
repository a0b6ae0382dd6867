"""``generation``: which RAGEN is meant, in environments, in what is written down of turns, and in RAGEN's own names."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ragen.agent_loop.episode import Episode
from ragen.env import BaseEnvConfig
from ragen.errors import BackendError, ConfigError
from ragen.llm_agent.agent_proxy import ApiCallingWrapperWg, LLMAgentProxy, VllmWrapperWg
from ragen.llm_agent.backends import Backend, wrappers
from ragen.llm_agent.config import generation as generations
from ragen.llm_agent.config.context import ContextSettings
from ragen.llm_agent.config.environments import read_config
from ragen.llm_agent.config.generation import Generation
from ragen.llm_agent.config.loading import load_config
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.prompting.replies import ParsedReply
from ragen.llm_agent.rollout.rollout_file import about_run
from ragen.parallel.episode.turn import TurnResult
from ragen.training.settings import TrainerSettings
from ragen.utils import all_seed, register_resolvers
from support.chat_server import chat_server, fail, say
from support.configurations import composed
from support.later import shipped
from support.rollouts import no_prompts

pytestmark = pytest.mark.models


def configured(*tags, **top):
    """A configuration with one environment of each tag of the package."""
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
    return composed("base", [*overrides, *(f"++{key}={value}" for key, value in top.items())])


def env_configs(*tags, **top):
    entries = read_config(configured(*tags, **top), "train").entries
    return {entry.spec.tag: entry.spec.config for entry in entries}


# Configuration


@pytest.mark.parametrize("value", [2024, "new", True, 26])
def test_a_generation_that_does_not_exist_is_refused(value):
    with pytest.raises(ConfigError, match=r"generation is .*; expected one of 2025, 2026"):
        Generation.read({"generation": value})


def test_the_default_is_2025_without_quirks():
    assert Generation.read({}) == Generation(2025, False)
    assert Generation.read({"generation": "2026", "quirks": True}) == Generation(2026, True)


def test_2026_switches_the_defaults_of_environments():
    tags = ("FrozenLake", "CoordFrozenLake", "FrozenLakeDet", "Bandit", "BanditTest", "WebShop")
    old, new = env_configs(*tags), env_configs(*tags, generation=2026)
    assert (old["FrozenLake"].p, old["FrozenLake"].success_rate) == (0.8, 1 / 3)
    assert (new["FrozenLake"].p, new["FrozenLake"].success_rate) == (0.9, 0.8)
    assert new["FrozenLakeDet"].is_slippery is False and new["FrozenLakeDet"].p == 0.9
    assert (old["Bandit"].split, old["BanditTest"].split) == (None, None)
    assert (new["Bandit"].split, new["BanditTest"].split) == ("train", "test")
    assert (old["WebShop"].compat, new["WebShop"].compat) == ("up25", "up26")


def test_what_a_configuration_says_itself_holds_in_2026_too():
    fields = Generation(2026).env_fields
    assert fields("frozen_lake", {"p": 0.5}) == {"p": 0.5, "success_rate": 0.8}
    assert fields("bandit", {"lo_arm_name": "a", "hi_arm_name": "b"}) == {"lo_arm_name": "a", "hi_arm_name": "b"}
    assert fields("bandit", {"split": "test"}) == {"split": "test"}
    assert fields("sokoban", None) == {}


@pytest.mark.parametrize(("year", "window"), [(2025, 3), (2026, None)])
def test_a_window_limits_whole_trajectories_in_2025_alone(year, window):
    read = ContextSettings.read({"generation": year, "agent_proxy": {"max_context_window": 3}})
    assert read.window == window
    limited = {"max_context_window": 3, "context_window_mode": "limited_multi_turn"}
    assert ContextSettings.read({"generation": year, "agent_proxy": limited}).window == 3


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"training_tokens": "sampled"}, "training_tokens is 'sampled' with quirks"),
        ({"context_window_mode": "single_turn"}, "RAGEN of 2025 has no such mode"),
    ],
)
def test_quirks_are_refused_where_ragen_has_nothing_to_follow(keys, said):
    with pytest.raises(ConfigError, match=said):
        ContextSettings.read({"quirks": True, "agent_proxy": keys})


def test_runs_of_another_generation_are_others_and_older_runs_are_of_2025():
    assert Generation().about == {} and Generation(2026, True).about == {"generation": 2026, "quirks": True}
    told = [about_run(configured("SimpleSokoban", **top), "train") for top in ({}, {"generation": 2026})]
    assert "generation" not in told[0] and told[1]["generation"] == 2026


def test_our_own_trainer_refuses_quirks():
    with pytest.raises(ConfigError, match="quirks is true"):
        TrainerSettings.read(load_config("tiny", ["quirks=true"]))


# Turns and metrics


def play(manager, actions):
    reply = {"llm_response": "", "llm_raw_response": ""}
    return manager.step([{"env_id": 0, "actions": actions, **reply}])


def test_2026_marks_turns_without_a_valid_action_and_tells_returns():
    with EnvStateManager(configured("SimpleSokoban", generation=2026)) as manager:
        manager.reset(seed=7)
        (cache,) = play(manager, ["fly"])
        assert cache["history"][0]["info"] == {"raw_reward": 0.0, "manager_invalid_action": True}
        assert cache["history"][1]["manager_invalid_action"] is True
        (cache,) = play(manager, ["Up"])
        assert "manager_invalid_action" not in cache["history"][2]
        (state,) = manager.get_rollout_states()
    assert state["metrics"]["SimpleSokoban/manager_invalid_action"] == 0.5
    assert state["metrics"]["SimpleSokoban/episodic_return"] == 0.0


def test_2026_sums_the_raw_rewards_of_a_turn_and_knows_the_largest_tile():
    with EnvStateManager(configured("game_2048", generation=2026)) as manager:
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


def test_verls_agent_loop_marks_them_too():
    reply = ParsedReply("<think>", "<think>", [])
    result = TurnResult([], True, 0, False, {"raw_reward": 0.0}, "shown", "shown")
    for marks in (True, False):
        episode = Episode("Tag", 1, 4, -0.1, "first", marks)
        episode.apply(reply, result)
        played, asked = episode.rollout["history"]
        assert (played["info"].get("manager_invalid_action"), asked.get("manager_invalid_action")) == (
            (True, True) if marks else (None, None)
        )
    assert result.info == {"raw_reward": 0.0}


def test_2025_writes_down_what_it_always_did():
    with EnvStateManager(configured("SimpleSokoban")) as manager:
        manager.reset(seed=7)
        (cache,) = play(manager, ["fly"])
        (state,) = manager.get_rollout_states()
    assert cache["history"][0]["info"] == {} and "manager_invalid_action" not in cache["history"][1]
    assert set(state["metrics"]) == {f"SimpleSokoban/{key}" for key in ("success", "num_actions", "pass@1")}


def test_a_prompt_of_2026_says_that_the_last_reply_had_no_valid_action():
    config = configured("SimpleSokoban", generation=2026)
    context = ContextManager(config, shipped())
    with EnvStateManager(config) as manager:
        first = manager.reset(seed=7)
        before = context.get_lm_inputs(first).non_tensor_batch["messages_list"][0][-1]["content"]
        after = context.get_lm_inputs(play(manager, ["fly"])).non_tensor_batch["messages_list"][0][-1]["content"]
    assert context.settings.template.invalid.strip() in after
    assert context.settings.template.invalid.strip() not in before
    assert context.env_config_lookup[0]["env_type"] == "sokoban"
    assert context.reset_memory_managers() is None and context.mode == "train"


def test_a_batch_of_2026_has_its_columns_and_the_trainers():
    batch = played(generation=2026)
    columns = batch.non_tensor_batch
    assert columns["env_ids"].dtype == columns["group_ids"].dtype == columns["episode_ids"].dtype == np.int64
    assert batch.batch["rm_scores"].equal(batch.batch["original_rm_scores"])
    assert "charts/avg_episode_return" in batch.meta_info["metrics"]
    assert "first_turn_prompt_ids" not in columns and "history" not in columns


def test_collapse_columns_are_there_where_they_are_enabled_and_wanted():
    enabled = {"collapse_detection.first_turn_enabled": "true", "collapse_detection.multi_turn_enabled": "true"}
    columns = played(generation=2026, **enabled).non_tensor_batch
    assert columns["turn_counts"].tolist() == columns["turn_counts_total"].tolist() == [2, 1]
    assert [len(each) for each in columns["all_turns_prompt_ids"]] == [2, 1]
    thought = shipped()("x", add_special_tokens=False)["input_ids"]
    assert columns["first_turn_reasoning_ids"].tolist() == [thought, thought]
    shown = shipped().decode(columns["first_turn_prompt_ids"][0])
    assert "Turn 1" in shown and shown.endswith("<think>") and "Turn 2" not in shown
    assert "turn_counts" not in played({"compute_collapse": False}, generation=2026, **enabled).non_tensor_batch
    assert "turn_counts" not in played(**enabled).non_tensor_batch


class Same(Backend):
    """Says the same to everyone."""

    def generate(self, requests, sampling):
        from ragen.llm_agent.backends import Reply

        return [Reply("x</think><answer>Up</answer>") for _ in requests]

    def close(self):
        pass


def played(meta_info=None, **top):
    with LLMAgentProxy(configured("SimpleSokoban", "Countdown", **top), Same(), shipped()) as proxy:
        assert proxy.actor_wg is not None
        return proxy.rollout(no_prompts(**meta_info or {}))


# Named data


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty working directory, and nothing in the hub's folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(generations, "_logged", set())
    return tmp_path


def test_countdown_plays_ragens_data_where_it_is_and_says_so(elsewhere, caplog):
    fields = Generation(2026).env_fields
    assert fields("countdown", None) == {} and "problems included in this package" in caplog.text
    caplog.clear()
    path = elsewhere / generations.COUNTDOWN
    path.parent.mkdir(parents=True)
    path.touch()
    assert fields("countdown", None) == fields("countdown", None) == {"train_path": generations.COUNTDOWN}
    assert len(caplog.records) == 1 and generations.COUNTDOWN in caplog.text
    assert fields("countdown", {"train_path": "mine.jsonl"}) == {"train_path": "mine.jsonl"}
    assert Generation(2025).env_fields("countdown", None) == {}


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("meta-math/MetaMathQA", {"dataset_path": "meta-math/MetaMathQA"}),
        ("data/meta-math___meta_math_qa", {"dataset_path": "meta-math/MetaMathQA", "cache_dir": "./data"}),
        ("hf/datasets/meta-math___meta_math_qa", {"dataset_path": "meta-math/MetaMathQA"}),
        ("hf/hub/datasets--meta-math--MetaMathQA", {"dataset_path": "meta-math/MetaMathQA"}),
    ],
)
def test_metamathqa_plays_the_hubs_data_where_it_is_kept(elsewhere, folder, found):
    assert Generation(2026).env_fields("metamathqa", {}) == {}
    (elsewhere / folder).mkdir(parents=True)
    assert Generation(2026).env_fields("metamathqa", {}) == found


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


def api_config(**changes):
    info = {"provider_name": "openai", "model_name": "tiny", "generation_kwargs": {"temperature": 0, "max_tokens": 9}}
    return {"model_config": {"model_name": "it", "max_concurrency": 2}, "model_info": {"it": info | changes}}


def prompts():
    config = configured("SimpleSokoban", generation=2026)
    with EnvStateManager(config) as manager:
        return ContextManager(config, shipped()).get_lm_inputs(manager.reset(seed=1))


def test_the_api_wrapper_asks_its_provider(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with chat_server(lambda prompt, tries: say("<answer>Up</answer>")) as server:
        monkeypatch.setitem(wrappers.PROVIDERS, "openai", (server.url, "OPENAI_API_KEY"))
        wrapper = ApiCallingWrapperWg(api_config(), shipped())
        batch = prompts()
        answered = wrapper.generate_sequences(batch).non_tensor_batch
        assert list(answered["response_texts"]) == ["<answer>Up</answer>"] and list(answered["env_ids"]) == [0]
        batch.meta_info["skip_generation"] = True
        assert wrapper.generate_sequences(batch) is batch
        wrapper.close()


def test_the_api_wrapper_says_which_prompts_got_no_reply(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with chat_server(lambda prompt, tries: fail(400, "too long")) as server:
        monkeypatch.setitem(wrappers.PROVIDERS, "openai", (server.url, "OPENAI_API_KEY"))
        wrapper = ApiCallingWrapperWg(api_config(), shipped())
        with pytest.raises(BackendError, match="1 of 1 prompts got no reply; the first: HTTP 400: too long"):
            wrapper.generate_sequences(prompts())
        wrapper.close()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (api_config() | {"model_config": {"model_name": "other"}}, "model_info has no such entry; it has it"),
        (api_config(provider_name="me"), "expected one of openai, deepseek, anthropic, together"),
        (api_config(), "OPENAI_API_KEY"),
    ],
)
def test_an_api_wrapper_that_cannot_work_is_refused(config, said, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=said):
        ApiCallingWrapperWg(config, shipped())


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


def test_without_vllm_the_wrapper_says_what_to_install(monkeypatch):
    monkeypatch.setattr("ragen.llm_agent.backends.factory.missing", lambda extra: [extra])
    with pytest.raises(ConfigError, match="vllm"):
        VllmWrapperWg(configured("SimpleSokoban"), shipped())
