"""A configuration's environments, and the proxy's switch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import ragen.env
from ragen.config.loading import load_config
from ragen.env.environment_factory import (
    create_environments,
    create_single_environment_for_testing,
    get_environment_requirements,
    get_supported_environment_types,
    make_environments,
    validate_environment_config,
)
from ragen.env.environment_manager import SokobanEnvironmentManager
from ragen.errors import ConfigError
from ragen.llm_agent.rollout.proxy import LLMAgentProxy
from support.configurations import composed
from support.later import shipped
from support.stand_ins import StandInActor

# A configuration's environments


def mixed(*overrides: str) -> Any:
    sizes = ["es_manager.train.group_size=2", "es_manager.val.group_size=1", "es_manager.use_multiprocessing=false"]
    tags = ["SimpleSokoban", "Countdown", "Bandit"]
    for mode in ("train", "val"):
        sizes += [f"es_manager.{mode}.env_groups=3", f"es_manager.{mode}.env_configs.tags=[{','.join(tags)}]"]
        sizes.append(f"es_manager.{mode}.env_configs.n_groups=[1,1,1]")
    return composed("base", [*sizes, "agent_proxy.max_turn=3", *overrides])


def test_tags_of_a_configuration_may_be_of_several_types():
    train, val = make_environments(mixed())
    with train, val:
        assert train.tags == ["SimpleSokoban"] * 2 + ["Countdown"] * 2 + ["Bandit"] * 2 and len(val) == 3
        obs, _ = train.reset()
        assert obs["anchor"][0] == obs["anchor"][1] and "Target" in obs["text"][2] and "Dragon" in obs["text"][4]
        texts = ["<action>up</action>"] * 2 + ["<answer>1</answer>"] * 2 + ["<answer>Dragon</answer>"] * 2
        _, _, dones, infos = train.step(texts)
        assert list(dones) == [False] * 2 + [True] * 4 and all(info["is_action_valid"] for info in infos)
        assert train.envs.seed == 10000 and val.envs.seed == 123 and not val.envs.is_train


def test_one_type_has_its_own_manager_and_the_tags_limit_ends_its_episodes():
    config = load_config("base", ["custom_envs.SimpleSokoban.max_actions_per_traj=2", "+env.style=verl-agent"])
    train, val = create_environments(config)
    with train, val:
        assert isinstance(train, SokobanEnvironmentManager) and len(train) == 128
        train.reset()
        reply = "<think>so</think><action>up</action>"
        train.step([reply, *[None] * 127])
        _, _, dones, infos = train.step([reply, *[None] * 127])
        assert list(dones) == [True] + [False] * 127 and infos[0]["truncated"]


@pytest.mark.parametrize(
    "wrong",
    [
        "env.style=verl",
        "env.history_length=two",
        "es_manager.train.group_size=0",
        "custom_envs.Bandit.env_config.arms=3",
        "algorithm.filter_groups.enable=perhaps",
    ],
)
def test_a_configuration_that_cannot_work_is_refused_by_name(wrong):
    assert validate_environment_config(mixed()) is True
    with pytest.raises(ConfigError, match=wrong.partition("=")[0].rpartition(".")[2]):
        validate_environment_config(mixed(f"++{wrong}"))


def test_types_say_what_they_take():
    assert set(get_supported_environment_types()) == set(ragen.env.REGISTERED_ENVS)
    told = get_environment_requirements("sokoban")
    assert told["actions"] == "discrete" and told["env_kwargs"]["num_boxes"] == 3
    assert get_environment_requirements("webshop")["actions"] == "text"
    with create_single_environment_for_testing("frozen_lake", 1, {"size": 5}) as envs:
        assert len(envs.reset()[0]["text"]) == 1


def test_importing_games_imports_nothing_of_this():
    code = (
        "import sys, ragen.env; assert not {'ragen.llm_agent', 'ragen.turns'} & {*sys.modules}; "
        "from ragen.env import make_environments, to_numpy; assert not {'torch', 'verl'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "make_environments" in dir(ragen.env)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ragen.env.no_such_name


# The proxy's switch


def rollout(proxy: LLMAgentProxy, val: bool = False) -> Any:
    from verl import DataProto

    return proxy.rollout(DataProto(meta_info={"validate": val}), val=val)


def reply(prompt: str) -> str:
    return "<think>so</think><answer>Up</answer>"


class EchoActor(StandInActor):
    """Answers RAGEN's prompts, which have a system message, as well."""

    def generate_sequences(self, prompts: Any) -> Any:
        output = super().generate_sequences(prompts)
        output.non_tensor_batch |= {name: prompts.non_tensor_batch[name] for name in ("env_ids", "group_ids")}
        return output


def test_rollouts_by_turn_have_the_columns_of_training_batches():
    with LLMAgentProxy(mixed("use_parallel_envs=true"), EchoActor(reply), shipped()) as proxy:
        assert not proxy.parallel_envs and proxy.train_parallel_envs is None
        batch = rollout(proxy)
        assert proxy.parallel_envs and len(proxy.train_parallel_envs) == 6 and len(proxy.val_parallel_envs) == 3
        assert proxy.traj_collector is not None and len(rollout(proxy, val=True)) == 5
    with LLMAgentProxy(mixed(), EchoActor(reply), shipped()) as plain:
        ours = rollout(plain)
    assert set(batch.batch.keys()) >= set(ours.batch.keys())
    assert set(batch.non_tensor_batch) >= set(ours.non_tensor_batch)
    width = batch.batch["responses"].shape[1]
    assert all(batch.batch[name].shape == (10, width) for name in ("loss_mask", "rm_scores", "response_mask"))
    first = batch.batch["responses"][0][batch.batch["response_mask"][0].bool()]
    assert shipped().decode(first) == reply("") + "<|im_end|>"
    scores = batch.batch["original_rm_scores"].sum(-1)
    assert scores.tolist() == pytest.approx(list(batch.non_tensor_batch["episode_rewards"]))
    assert (batch.batch["rm_scores"].sum(-1) <= scores).all()  # an answer "Up" is no expression and no arm
    assert list(batch.non_tensor_batch["episode_ids"]) == [0, 0, 0, 1, 1, 1, 2, 3, 4, 5]
    assert {"SimpleSokoban/success", "Bandit/reward"} <= set(batch.meta_info["metrics"])


def test_what_cannot_be_made_falls_back_and_says_so_in_two_lines(capsys, monkeypatch):
    def fail(config: Any) -> Any:
        raise ConfigError("there is no room")

    monkeypatch.setattr("ragen.turns.factory.make_environments", fail)
    config = mixed("use_parallel_envs=true")
    with LLMAgentProxy(config, EchoActor(reply), shipped()) as proxy:
        batch = rollout(proxy)
        rollout(proxy)
        assert not proxy.parallel_envs and proxy.traj_collector is proxy.train_parallel_envs is None
    lines = capsys.readouterr().out.splitlines()
    assert len(batch) == 6 and len(lines) == 2 and lines[1] == "Falling back to original environment system"
    assert lines[0] == "Failed to initialize parallel environments: there is no room"
