"""What a training step says of its environments, and how it gets among the metrics of verl's trainer."""

import pytest

from ragen.agent_loop import training
from ragen.agent_loop.step_metrics import EpisodeSummary, episodes_of, failing_tags, metrics_by_tag, summary_of
from ragen.errors import ConfigError
from support import configurations
from support.agent_loop import StandInClient, play, tokenizer, trainer_config
from support.later import tensordict


def numbers(**given):
    names = ("success", "env_reward", "score", "turns", "num_actions", "env_failed", "env_seconds", "env_busy")
    return dict.fromkeys((*names, "invalid_replies", "longest_wait"), 0.0) | given


def episode(tag, group, error="", **given):
    return EpisodeSummary(tag, group, numbers(env_failed=float(bool(error)), **given), error)


def test_metrics_are_means_of_each_tag_and_shares_of_its_groups():
    played = [
        episode("Pond", "a", success=1.0, turns=2.0, invalid_replies=1.0, env_seconds=0.5, env_busy=0.4, score=0.9),
        episode("Pond", "a", turns=4.0, env_reward=1.0, num_actions=6.0, env_seconds=1.5, longest_wait=0.4),
        episode("Pond", "b", turns=2.0),
        episode("Pond", "b", turns=2.0, invalid_replies=1.0),
        episode("Shop", "c", turns=1.0, success=1.0),
    ]
    found = metrics_by_tag(played)
    pond = {key.removeprefix("envs/Pond/"): value for key, value in found.items() if key.startswith("envs/Pond/")}
    assert pond == {
        "episodes": 4.0,
        "success": 0.25,
        "reward": 0.25,
        "score": 0.225,
        "turns": 2.5,
        "num_actions": 1.5,
        "env_error": 0.0,
        "seconds": 0.5,
        "busy_seconds": 0.1,
        "solved_in_group": 0.5,
        "invalid_replies": 0.2,
        "longest_wait": 0.4,
    }
    assert found["envs/Shop/solved_in_group"] == 1.0 and found["envs/Shop/episodes"] == 1.0


def test_a_step_of_no_episodes_and_an_episode_of_no_turns_have_metrics_too():
    assert metrics_by_tag([]) == {}
    assert metrics_by_tag([episode("Pond", "a")])["envs/Pond/invalid_replies"] == 0.0


def test_a_tag_is_told_of_where_more_than_a_tenth_of_its_episodes_failed():
    well = [episode("Pond", str(number)) for number in range(9)]
    failed = episode("Pond", "z", error="ValueError: no fish\nmore")
    assert failing_tags([*well, failed]) == []
    (sentence,) = failing_tags([*well[1:], failed, episode("Shop", "y")])
    assert "tag 'Pond' failed in 1 of 9 episodes" in sentence and "ValueError: no fish." in sentence


class Batch:
    partition_id = "train"

    def __init__(self, keys, padding=()):
        self.keys = keys
        self.tags = [{"is_padding": key in padding} for key in keys]


@pytest.fixture
def queue(monkeypatch):
    """A transfer queue with these extra fields by key."""
    held = {}

    def kv_batch_get(keys, partition_id, select_fields):
        assert (partition_id, select_fields) == ("train", ["extra_fields"])
        stacked = tensordict.NonTensorStack(*[tensordict.NonTensorData(held[key]) for key in keys])
        return tensordict.TensorDict({"extra_fields": stacked}, batch_size=[len(keys)])

    monkeypatch.setattr("transfer_queue.kv_batch_get", kv_batch_get)
    return held


def extra(**given):
    return {"env_tag": "Pond", "env_error": "", "reward_extra_info": numbers(**given)}


def test_rows_of_one_trajectory_count_once_and_padding_not_at_all(queue):
    queue.update({"u_1_0_0": extra(success=0.0), "u_1_0_1": extra(success=1.0), "u_1_1_0": extra(), "v_0_0": extra()})
    found = episodes_of(Batch([*queue], padding=("v_0_0",)))
    assert [(each.group, each.numbers["success"]) for each in found] == [("u_1", 1.0), ("u_1", 0.0)]
    assert episodes_of(Batch(["v_0_0"], padding=("v_0_0",))) == []


def test_trajectories_of_other_agent_loops_are_left_out():
    assert summary_of("u_0", {"reward_extra_info": {}}) is None
    assert summary_of("u_0", None) is None


def composed(*overrides):
    return configurations.composed("_2_sokoban", training.allow_verl_keys(overrides, ["agent_loop"]))


def test_verl_is_given_the_manager_where_its_trainer_takes_one(tmp_path):
    def named(*overrides):
        made = training.trainer_config(composed(f"output_dir={tmp_path}", *overrides))
        return made.actor_rollout_ref.rollout.agent.agent_loop_manager_class

    from ragen.agent_loop.manager import RagenLoopManager as found

    assert named() == training.MANAGER == f"{found.__module__}.{found.__name__}"
    assert named("trainer.use_v1=false") is None
    assert named("actor_rollout_ref.rollout.agent.agent_loop_manager_class=my.Own") == "my.Own"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("agent_proxy.use_turn_scores=true", "agent_proxy.use_turn_scores is True"),
        ("++enable_response_mask=false", "'enable_response_mask' is False"),
    ],
)
def test_what_verls_trainer_cannot_do_is_refused(override, told):
    with pytest.raises(ConfigError, match=told):
        training.trainer_config(composed(override))


def ragen_config(env):
    entry = {"env_type": env, "env_instruction": "Go.", "max_actions_per_traj": 6, "env_config": {}}
    part = {"env_groups": 1, "group_size": 2, "env_configs": {"tags": ["Pond"], "n_groups": [1]}}
    return {
        "custom_envs": {"Pond": entry},
        "agent_loop": {"service": "local"},
        "agent_proxy": {"max_turn": 3, "max_actions_per_turn": 3},
        "es_manager": {"train": part, "val": part, "use_multiprocessing": False, "crash_report_dir": None},
    }


def test_trajectories_tell_their_tag_invalid_replies_and_waits():
    client = StandInClient(tokenizer(), policy=lambda prompt, draws: "</think><answer>Fly</answer>")
    outputs = play(trainer_config(ragen_config("frozen_lake")), client, [("Pond", 3), ("Pond", 4)])
    for output in outputs:
        summary = summary_of("u_0", output.extra_fields)
        assert summary is not None and (summary.tag, summary.group) == ("Pond", "u")
        assert summary.numbers["invalid_replies"] == summary.numbers["turns"] == 3
        assert 0 < summary.numbers["longest_wait"] <= summary.numbers["env_seconds"]
        assert 0 < summary.numbers["env_busy"] < summary.numbers["env_seconds"]
        assert metrics_by_tag([summary])["envs/Pond/invalid_replies"] == 1.0
