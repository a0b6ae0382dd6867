"""RAGEN's filters of groups in the sampler that verl's V1 trainer is given, on a transfer queue in memory."""

import pytest
from omegaconf import OmegaConf

from ragen.agent_loop import filters, training
from ragen.errors import CollectError, ConfigError, InputError
from ragen.llm_agent.config.loading import load_config
from support.later import group_sampler, loss_scaling, tensordict, torch, transfer_queue

SCORES = {"flat": [0.5, 0.5], "mixed": [0.0, 1.0], "low": [0.0, 0.1]}
NAMES = ("success", "env_reward", "turns", "num_actions", "env_failed", "env_seconds", "env_busy", "invalid_replies")
ANYWHERE = {"longest_wait": 0.0, **dict.fromkeys(NAMES, 0.0)}


class Queue:
    """As much of the transfer queue as samplers ask."""

    def __init__(self):
        self.rows = {"train": {}, "val": {}}

    def add(self, scores, partition="train", rows=1, tokens=3, extra=None):
        """Groups of trajectories with these scores, finished; the reward is the score without a penalty of 0.1."""
        held = self.rows[partition]
        for seed, (uid, group) in enumerate(scores.items()):
            held[uid] = ({"is_prompt": True, "status": "finished", "global_steps": 1}, None)
            for place, score in enumerate(group):
                numbers = ANYWHERE | {"score": score, "env_reward": score + 0.1}
                told = {"env_tag": uid.title(), "env_seed": seed, "env_error": "", "reward_extra_info": numbers}
                for row in range(rows):
                    mask = torch.tensor([1] * (tokens + row) + [0] * place)
                    value = {"extra_fields": told if extra is None else extra, "response_mask": mask}
                    held[f"{uid}_{place}_{row}"] = ({"status": "success", "seq_len": 9}, value)

    def kv_list(self):
        return {name: {key: tag for key, (tag, _) in held.items()} for name, held in self.rows.items()}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.rows[partition_id].pop(key, None)

    def kv_batch_put(self, keys, partition_id, fields):
        for name, column in fields.items():
            for key, value in zip(keys, column.unbind(), strict=True):
                self.rows[partition_id][key][1][name] = value

    def kv_batch_get(self, keys, partition_id, select_fields):
        (name,) = select_fields
        values = [self.rows[partition_id][key][1][name] for key in keys]
        if torch.is_tensor(values[0]):
            return tensordict.TensorDict(
                {name: torch.nested.as_nested_tensor(values, layout=torch.jagged)}, [len(keys)]
            )
        told = tensordict.NonTensorStack(*map(tensordict.NonTensorData, values))
        return tensordict.TensorDict({name: told}, [len(keys)])


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
    given = training.loosened(overrides, [*training.verl_sections(), "agent_loop"])
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
    with pytest.raises(InputError, match="2 of 8 trajectories tell nothing of an environment"):
        sampler(value=0.9).sample(1, "train", 4)


class Trainer:
    """As much of verl's trainer as computes advantages: 2 at every token."""

    def _compute_advantage(self, batch, metrics):
        masks = transfer_queue.kv_batch_get(batch.keys, batch.partition_id, ["response_mask"])["response_mask"]
        transfer_queue.kv_batch_put(
            batch.keys, batch.partition_id, tensordict.TensorDict({"advantages": masks * 2.0}, [len(masks)])
        )
        return batch


@pytest.mark.parametrize(("scaling", "factor"), [("linear", 0.25), ("sqrt", 0.5), (None, 1.0)])
def test_advantages_are_scaled_once_by_the_share_of_groups_kept(queue, monkeypatch, scaling, factor):
    monkeypatch.setattr("ragen.agent_loop.group_sampler.PPOTrainer", type("Own", (Trainer,), {}))
    queue.add({**SCORES, "same": [0.2, 0.2]})
    made = [sampler(scaling=scaling, strategy="top_k", value=0.25) for _ in range(2)][1]  # a second changes nothing
    batch, metrics = made.sample(1, "train", 4)
    assert metrics.get("rollout/filter_loss_scale", 1.0) == factor
    trainer = group_sampler.PPOTrainer()
    assert trainer._compute_advantage(batch, metrics) is batch
    found = transfer_queue.kv_batch_get(batch.keys, "train", ["advantages"])["advantages"].unbind()
    assert [row.tolist() for row in found] == [[2 * factor] * 3, [2 * factor] * 3 + [0.0]]


def test_a_verl_in_which_nothing_can_be_scaled_is_refused():
    with pytest.raises(ConfigError, match="filter_loss_scaling is set, and this verl's trainer has no _compute_adv"):
        loss_scaling.extend(type("Other", (), {}))
    assert callable(getattr(group_sampler.PPOTrainer, loss_scaling.METHOD))


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
    with pytest.raises(ConfigError, match=r"'agent_proxy\.rollout_filter_metric' is 'entropy'"):
        filters.check_filters({"agent_proxy": {"rollout_filter_metric": "entropy", "rollout_filter_value": 0.5}})
