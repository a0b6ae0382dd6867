"""RAGEN's filters of groups in the sampler that verl's V1 trainer is given, on a transfer queue in memory."""

import pytest
from omegaconf import OmegaConf

from ragen.agent_loop import filters, training
from ragen.errors import CollectError, ConfigError, InputError
from ragen.llm_agent.config.loading import load_config
from support.later import group_sampler
from support.transfer_queue import SCORES, Queue


@pytest.fixture
def queue(monkeypatch):
    queue = Queue()
    for name in ("kv_list", "kv_clear", "kv_batch_get", "kv_batch_put"):
        monkeypatch.setattr(f"transfer_queue.{name}", getattr(queue, name))
    return queue


def sampler(refill=None, scaling=None, **settings):
    """One with these filters, with what else verl gives it."""
    scaled = {} if scaling is None else {"filter_loss_scaling": scaling}
    return group_sampler.GroupSampler(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs={f"rollout_filter_{name}": value for name, value in settings.items()} | scaled,
        refill_fn=refill,
        poll_interval=0.01,
    )


def composed(*overrides):
    given = training.allow_verl_keys(overrides, ["agent_loop"])
    return training.trainer_config(load_config("_2_sokoban", given))


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"value": 0.9}, {"mixed"}),  # 0.9 of 0.707 + 0.071, less 0.01
        ({"value": 0.99}, {"mixed", "low"}),
        ({"strategy": "top_k", "value": 0.7, "type": "smallest"}, {"flat", "low"}),
        ({"strategy": "min_p", "value": 0.9, "metric": "reward"}, {"flat", "mixed"}),
        ({"strategy": "top_p", "value": 0.4, "top_p_prob_mode": "softmax"}, {"mixed"}),
        ({"include_zero": False, "value": 1.0}, {"mixed", "low"}),
        ({"ratio": 0.4}, {"mixed"}),
        ({"ratio": 0.4, "type": "mean_rev"}, {"low"}),
    ],
)
def test_a_step_gets_the_groups_chosen_and_the_others_leave_the_queue(queue, settings, kept):
    queue.add(SCORES)
    batch, metrics = sampler(**settings).sample(1, "train", 3)
    expected = [f"{uid}_{place}_0" for uid in SCORES if uid in kept for place in range(2)]
    assert batch.keys == expected and len(batch.tags) == len(expected)
    assert list(queue.rows["train"]) == expected
    assert metrics["rollout/filter_kept_count"] == len(kept) and metrics[group_sampler.BATCHES] == 1
    assert metrics["rollout/chosen_in_group_reward_std"] >= 0


def test_of_groups_that_measure_the_same_the_first_by_seed_is_kept_whichever_was_done_first(queue):
    queue.add({"first": [0.0, 1.0], "second": [0.0, 1.0]})
    held = queue.rows["train"]
    queue.rows["train"] = dict(reversed(held.items()))
    batch, _ = sampler(strategy="top_k_abs", value=1).sample(1, "train", 2)
    assert {key.partition("_")[0] for key in batch.keys} == {"first"}


def test_what_environments_did_is_told_of_all_groups_of_the_step(queue):
    queue.add(SCORES)
    _, metrics = sampler(value=0.9).sample(1, "train", 3)
    assert [metrics[f"envs/{uid.title()}/episodes"] for uid in SCORES] == [2.0, 2.0, 2.0]
    assert metrics["envs/Low/reward"] == pytest.approx(0.15)


def test_the_length_of_a_trajectory_is_what_was_said_in_all_of_its_rows(queue):
    queue.add({"long": [0.0, 0.0]}, rows=3, tokens=2)
    queue.add({"short": [0.0, 0.0]}, tokens=8)
    settings = {"metric": "length", "strategy": "top_k_abs", "value": 1}
    batch, metrics = sampler(**settings).sample(1, "train", 2)
    assert {key.partition("_")[0] for key in batch.keys} == {"long"} and len(batch.keys) == 6
    assert metrics["rollout/chosen_in_group_length_mean"] == 2 + 3 + 4
    assert metrics["rollout/in_group_length_mean"] == (9 + 8) / 2


def test_validation_loses_no_group(queue):
    queue.add(SCORES, "val")
    batch, metrics = sampler(value=0.9).sample(1, "val", 3)
    assert len(batch.keys) == 6 and metrics == {}


def test_where_no_group_is_left_another_batch_is_played_for_the_step(queue):
    asked = []

    def refill(groups):
        asked.append(groups)
        queue.add(SCORES if len(asked) == 2 else {"again": [0.2, 0.2], "more": [0.3, 0.3], "still": [0.0, 0.0]})

    queue.add({"flat": [0.5, 0.5], "same": [0.1, 0.1], "nil": [0.0, 0.0]})
    batch, metrics = sampler(refill, value=0.9, include_zero=False).sample(1, "train", 3)
    assert asked == [3, 3] and batch.keys == ["mixed_0_0", "mixed_1_0"]
    assert metrics[group_sampler.BATCHES] == 3
    assert metrics["envs/Flat/episodes"] == 4.0 and metrics["envs/Still/episodes"] == 2.0


def test_a_training_without_a_group_to_train_on_ends_after_the_allowed_batches(queue):
    def refill(groups):
        queue.add({"flat": [0.5, 0.5]})

    refill(1)
    one = sampler(refill, value=0.9, include_zero=False, empty_stop_steps=2)
    with pytest.raises(CollectError, match="every group of 2 batches in a row"):
        one.sample(1, "train", 1)


def test_trajectories_of_other_agent_loops_cannot_be_measured(queue):
    queue.add(SCORES)
    queue.add({"other": [0.0, 0.0]}, extra={"reward_extra_info": {}})
    with pytest.raises(InputError, match="2 of 8 trajectories have no information about an environment"):
        sampler(value=0.9).sample(1, "train", 4)


def test_verl_is_given_the_sampler_with_its_settings():
    place = composed("actor_rollout_ref.rollout.rollout_filter_value=0.5").trainer.v1.sampler
    assert dict(place.sampler_kwargs) == {"rollout_filter_value": 0.5}
    from verl.utils import import_utils

    found = import_utils.load_extern_object(place.custom_sampler.path, place.custom_sampler.name)
    assert found is group_sampler.GroupSampler
    scaled = ["actor_rollout_ref.rollout.rollout_filter_ratio=0.5", "actor_rollout_ref.actor.filter_loss_scaling=sqrt"]
    given = composed(*scaled).trainer.v1.sampler.sampler_kwargs
    assert given.filter_loss_scaling == "sqrt" and given.rollout_filter_ratio == 0.5
    with pytest.raises(ConfigError, match=r"filter_loss_scaling' is 'cubic'; expected one of none, linear, sqrt"):
        composed("actor_rollout_ref.actor.filter_loss_scaling=cubic")
    with pytest.raises(ConfigError, match="filter_loss_scaling' is 'cubic'"):
        sampler(scaling="cubic")  # of a file that was written by hand
    with pytest.raises(ConfigError, match="rollout_filter_valu' is 1, which verl does not take"):
        composed("actor_rollout_ref.rollout.rollout_filter_valu=1")


def verls(**changed):
    """As much of verl's configuration as filters look at."""
    sampler = {"custom_sampler": {"path": changed.pop("path", None), "name": None}, "sampler_kwargs": {}}
    v1 = {"trainer_mode": changed.pop("mode", "sync"), "sampler": sampler}
    groups = {"filter_groups": {"enable": changed.pop("enable", False)}}
    return OmegaConf.create({"trainer": {"use_v1": changed.pop("use_v1", True), "v1": v1}, "algorithm": groups})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"use_v1": False}, "expected trainer.use_v1=true"),
        ({"mode": "colocate_async"}, "trainer_mode is 'colocate_async'"),
        ({"enable": True}, "beside algorithm.filter_groups.enable"),
        ({"path": "own.py"}, "beside trainer.v1.sampler.custom_sampler"),
    ],
)
def test_what_stands_against_filters_is_refused_where_they_can_leave_groups_out(changed, told):
    some, none = ({"agent_proxy": {"rollout_filter_value": value}} for value in (0.5, 1.0))
    before = verls(**changed)
    (sentence,) = filters.put_filters(some, before)
    assert told in sentence and before == verls(**changed)
    assert filters.put_filters(none, before) == [] and before == verls(**changed)


def test_a_filter_that_cannot_work_is_named():
    with pytest.raises(ConfigError, match=r"'agent_proxy\.rollout_filter_metric' is 'surprise'"):
        filters.check_filters({"agent_proxy": {"rollout_filter_metric": "surprise", "rollout_filter_value": 0.5}})


def test_a_choice_by_entropy_is_not_the_samplers():
    """The probabilities come later; see ``test_v1_trainer.py``."""
    before = verls()
    assert (
        filters.put_filters({"agent_proxy": {"rollout_filter_metric": "entropy", "rollout_filter_value": 0.5}}, before)
        == []
    )
    assert before == verls()
