"""What verl computes from a step with failed trajectories is what it computes from one in which they do not exist."""

import numpy as np
import pytest

from ragen.agent_loop.sampler import sampler
from ragen.errors import EnvsFailedError
from support.later import torch
from support.transfer_queue import Queue

WON = [1.0, 0.0, 0.5, -0.25]
JAM = "ConnectionError: sandbox lost"
ESTIMATORS = (
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
)


@pytest.fixture
def queue(monkeypatch):
    queue = Queue()
    for name in ("kv_list", "kv_clear", "kv_batch_get"):
        monkeypatch.setattr(f"transfer_queue.{name}", getattr(queue, name))
    return queue


def made(mode="sync", refill=None, **settings):
    """The sampler with these arguments, and with what verl gives it."""
    return sampler(
        trainer_mode=mode,
        trainer_config={},
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs={"n": 4, "train_batch_size": 2, **settings},
        refill_fn=refill,
        poll_interval=0.01,
    )


def advantages(queue, batch, estimator):
    """verl's advantages of a batch, by key of the row."""
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    rows = [queue.rows[batch.partition_id][key][1] for key in batch.keys]
    rewards, masks = (torch.stack([row[name] for row in rows]) for name in ("rm_scores", "response_mask"))
    data = DataProto.from_dict(
        {"token_level_rewards": rewards, "response_mask": masks},
        {"uid": np.array([key.split("_")[0] for key in batch.keys], dtype=object)},
    )
    config = {"norm_adv_by_std_in_grpo": True}
    found = compute_advantage_for_multi_trajectories(data, batch.keys, estimator, num_repeat=4, config=config)
    return dict(zip(batch.keys, found.batch["advantages"], strict=True))


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_siblings_of_a_failed_member_have_the_advantages_of_a_group_without_it(queue, estimator, mode):
    queue.add({"a": [*WON[:3], 100.0], "b": WON}, {("a", 3): JAM})
    batch, metrics = made(mode).sample(1, "train", 2)
    mixed = advantages(queue, batch, estimator)
    assert metrics["envs/Maze/env_error"] == 1 / 8
    assert metrics["envs/Maze/env_error/ConnectionError"] == 1
    queue.rows["train"].clear()
    queue.add({"a": WON[:3], "b": WON})
    batch, metrics = made(mode, n=3).sample(1, "train", 2)
    alone = advantages(queue, batch, estimator)
    assert mixed.keys() == alone.keys() and not any("env_error" in name for name in metrics)
    assert all(torch.equal(mixed[key], alone[key]) for key in alone)


@pytest.mark.parametrize(
    ("failed", "settings", "left"),
    [
        ([0], {}, [1, 2, 3]),
        ([0, 1, 2], {}, []),  # one member alone is compared with nothing
        ([0, 1, 2, 3], {}, []),
        ([0], {"failed_trajectories": "drop_group"}, []),
    ],
)
@pytest.mark.parametrize("rows", [1, 3])
def test_members_without_a_signal_are_left_out_with_all_of_their_rows(queue, failed, settings, left, rows):
    queue.add({"a": WON, "b": WON, "c": WON}, {("a", member): JAM for member in failed}, rows=rows)
    batch, _ = made(**settings).sample(1, "train", 3)
    expected = [f"a_{member}_{row}" for member in left for row in range(rows)]
    assert [key for key in batch.keys if key.startswith("a_")] == expected
    assert len(batch.keys) == len(batch.tags) == len(expected) + 8 * rows


def test_the_last_member_of_a_group_whose_others_raised_is_left_out(queue):
    queue.add({"a": [1.0]}, status="failure")
    queue.add({"b": WON})
    batch, _ = made().sample(1, "train", 2)
    assert {key.split("_")[0] for key in batch.keys} == {"b"}


@pytest.mark.parametrize(("siblings", "is_filtered"), [([0.5] * 3, True), ([0.5, 0.5, 1.0], False)])
@pytest.mark.parametrize("metric", ["reward", "success"])
def test_a_failed_member_has_no_vote_in_verls_filter_of_groups(queue, siblings, is_filtered, metric):
    siblings = siblings if metric == "reward" else [score - 0.5 for score in siblings]
    queue.add({"a": [*siblings, 9.0 if metric == "reward" else -9.0], "b": WON, "c": WON}, {("a", 3): JAM})
    queue.add({"lost": WON}, {("lost", member): JAM for member in range(4)})
    buffer = made(refill=lambda _: None, filter_groups={"enable": True, "metric": metric})
    batch, _ = buffer.sample(1, "train", 3 if is_filtered else 4)  # all that the filter leaves
    assert ("a" in {key.split("_")[0] for key in batch.keys}) is not is_filtered


def test_validation_is_of_valid_trajectories_alone_even_if_one_is_left_of_its_group(queue):
    errors = {("a", 0): JAM, ("b", 0): JAM, ("b", 1): JAM, ("b", 2): "timed out after 2 s"}
    queue.add({"a": WON, "b": WON}, errors, partition="val")
    batch, _ = made().sample(1, "val", 2)
    assert batch.keys == ["a_1_0", "a_2_0", "a_3_0", "b_3_0"]


@pytest.mark.parametrize("partition", ["train", "val"])
@pytest.mark.parametrize("mode", ["sync", "separate_async"])
def test_a_run_most_of_whose_trajectories_failed_ends_with_an_error(queue, partition, mode):
    errors = {(uid, member): JAM for uid in "ab" for member in range(4)}
    queue.add({"a": WON, "b": WON}, errors, partition=partition)
    with pytest.raises(EnvsFailedError):
        made(mode, refill=lambda _: None).sample(1, partition, 2)


def test_failures_are_weighed_against_the_whole_run_and_not_against_the_first_group(queue):
    queue.add({"a": WON}, {("a", member): JAM for member in range(4)})
    buffer = made()
    buffer._sync_metadata_from_transfer_queue()
    queue.add({"b": WON, "c": WON})
    batch, metrics = buffer.sample(1, "train", 3)
    assert len(batch.keys) == 8 and metrics["envs/Maze/env_error"] == 4 / 12


def test_rows_are_in_the_order_of_the_data_set_whichever_was_done_first(queue):
    queue.add({"first": WON, "second": WON}, rows=2)
    expected = [key for key, (tag, _) in queue.rows["train"].items() if "is_prompt" not in tag]
    queue.rows["train"] = dict(reversed(queue.rows["train"].items()))
    assert made().sample(1, "train", 2)[0].keys == expected
