"""RAGEN's parts of a step under verl's V1 trainer: on a transfer queue in memory, with a trainer that does little."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from ragen.errors import CollectError, ConfigError
from support.later import shipped, tensordict, torch, transfer_queue, v1_trainer
from support.transfer_queue import SCORES, Queue


def ragen(folder, **sections):
    part = {"env_groups": 1, "group_size": 2, "env_configs": {"tags": ["Pond"], "n_groups": [1]}}
    return {
        "output_dir": str(folder),
        "custom_envs": {"Pond": {"env_type": "frozen_lake", "env_instruction": "Go.", "max_actions_per_traj": 6}},
        "agent_proxy": {"max_turn": 3, "max_actions_per_turn": 3, **sections.pop("agent_proxy", {})},
        "es_manager": {"train": part, "val": part, "use_multiprocessing": False, "crash_report_dir": None},
        **sections,
    }


class Trainer:
    """As much of verl's trainer as is extended: advantages are 2 at every token, entropies as the rows say."""

    def __init__(self, folder, **sections):
        trainer = {"logger": ["console"], "save_freq": 2}
        algorithm = {"use_kl_in_reward": False}
        config = {"ragen": ragen(folder, **sections), "trainer": trainer, "algorithm": algorithm}
        self.config = OmegaConf.create({**config, "actor_rollout_ref": {"rollout": {"temperature": 1.0}}})
        self.tokenizer, self.replay_buffer = shipped(), SimpleNamespace()
        self.global_steps, self.total_training_steps, self.saved = 1, 100, []

    def on_sample_begin(self):
        pass

    def _balance_batch(self, batch, metrics):
        return batch

    def _compute_old_log_prob(self, batch, metrics):
        for key in batch.keys:
            row = transfer_queue.queue.rows["train"][key][1]
            row["entropy"] = row["uncertain"] * row["response_mask"]
        return batch

    def _compute_advantage(self, batch, metrics):
        where = (batch.keys, batch.partition_id)
        masks = transfer_queue.kv_batch_get(*where, ["response_mask"])["response_mask"]
        transfer_queue.kv_batch_put(*where, tensordict.TensorDict({"advantages": masks * 2.0}, [len(masks)]))
        return batch

    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):
        metrics["verl"] = global_steps

    def _save_checkpoint(self):
        self.saved.append(self.global_steps)


@pytest.fixture
def queue(monkeypatch):
    queue = Queue()
    for name in ("kv_list", "kv_clear", "kv_batch_get", "kv_batch_put"):
        monkeypatch.setattr(f"transfer_queue.{name}", getattr(queue, name))
    monkeypatch.setattr("transfer_queue.queue", queue, raising=False)
    queue.add(SCORES)
    for key, (_, row) in queue.rows["train"].items():
        if row is not None:
            score = row["extra_fields"]["reward_extra_info"]["score"]
            row["rm_scores"] = torch.tensor([0.0] * (len(row["response_mask"]) - 1) + [score])
            row["uncertain"] = {"flat": 0.2, "mixed": 0.1 + score, "low": 0.3}[key.partition("_")[0]]
    return queue


@pytest.fixture
def trainer(tmp_path):
    def make(**sections):
        own = type("Own", (Trainer,), {})
        v1_trainer.extend(own)
        return own(tmp_path, **sections)

    return make


def batch_of(queue, keys=None):
    rows = queue.rows["train"]
    keys = [key for key, (tag, _) in rows.items() if not tag.get("is_prompt")] if keys is None else keys
    return transfer_queue.KVBatchMeta(partition_id="train", keys=keys, tags=[rows[key][0] for key in keys])


def advantages(queue):
    rows = {key: row for key, (_, row) in queue.rows["train"].items() if row is not None and "advantages" in row}
    return {key: row["advantages"][0].item() for key, row in rows.items()}


def test_rows_are_put_in_the_order_of_the_data_set_whoever_was_done_first(queue, trainer):
    batch = batch_of(queue)
    expected = list(batch.keys)
    shuffled = batch_of(queue, [expected[at] for at in (5, 0, 3, 2, 4, 1)])
    assert trainer()._balance_batch(shuffled, {}).keys == expected


@pytest.mark.parametrize(
    ("sections", "scale", "expected"),
    [
        ({}, 1.0, {"flat": 2.0, "mixed": 2.0, "low": 2.0}),
        ({}, 0.5, {"flat": 1.0, "mixed": 1.0, "low": 1.0}),
        ({"algorithm": {"soft_advantage_reweight": True}}, 1.0, {"flat": 0.0, "mixed": 2.0, "low": 0.2}),
        ({"algorithm": {"zero_task_advantage": True}}, 1.0, {"flat": 0.0, "mixed": 0.0, "low": 0.0}),
    ],
)
def test_advantages_are_weighed_and_scaled_where_they_lie(queue, trainer, sections, scale, expected):
    made = trainer(**sections)
    metrics = {"rollout/filter_loss_scale": scale}
    batch = batch_of(queue)
    assert made._compute_advantage(batch, metrics) is batch
    found = advantages(queue)
    for name, value in expected.items():
        assert [found[f"{name}_{place}_0"] for place in (0, 1)] == pytest.approx([value, value], abs=1e-5)
    assert ("train/soft_reweight_max" in metrics) == ("soft_advantage_reweight" in sections.get("algorithm", {}))


def test_groups_are_chosen_by_entropy_once_it_is_known(queue, trainer):
    keys = {
        "rollout_filter_metric": "entropy_variance",
        "rollout_filter_strategy": "top_k",
        "rollout_filter_value": 0.4,
    }
    made, metrics = trainer(agent_proxy=keys), {}
    made.on_sample_begin()
    kept = made._balance_batch(batch_of(queue), metrics)
    assert kept.keys == ["mixed_0_0", "mixed_1_0"]
    assert not [key for key in queue.rows["train"] if key.startswith(("flat_", "low_"))]
    assert metrics["rollout/chosen_in_group_entropy_std"] == pytest.approx(0.5**0.5)
    assert metrics["rollout/filter_kept_ratio"] == pytest.approx(1 / 3)


def test_the_entropies_of_trajectories_are_summed(queue, trainer):
    made, batch, metrics = trainer(), batch_of(queue), {}
    made._compute_advantage(batch, metrics)
    assert "rollout/entropy_sum" not in metrics  # nobody has computed them
    made._compute_advantage(made._compute_old_log_prob(batch, {}), metrics)
    assert metrics["rollout/n_generated_tokens"] == 3.0
    assert metrics["rollout/entropy_sum"] == pytest.approx(3 * (2 * 0.2 + 0.1 + 1.1 + 2 * 0.3) / 6)


def test_a_step_of_which_no_group_is_left_by_entropy_is_an_error(queue, trainer):
    for _, row in queue.rows["train"].values():
        if row is not None:
            row["uncertain"] = 0.0
    keys = {"rollout_filter_metric": "entropy", "rollout_filter_value": 0.5, "rollout_filter_include_zero": False}
    with pytest.raises(CollectError, match="left out every group"):
        trainer(agent_proxy=keys)._balance_batch(batch_of(queue), {})


def test_thoughts_are_measured_with_their_prompts_before_anything_is_left_out(queue, trainer, monkeypatch):
    def ids(text):
        return shipped()(text, add_special_tokens=False)["input_ids"]

    for key, (_, row) in queue.rows["train"].items():
        if row is not None:
            said = [*ids("go Up</think><answer>Up</answer>"), shipped().eos_token_id]
            between = ids("and now<think>")
            row["prompts"] = torch.tensor(ids(f"{key.partition('_')[0]}<think>"))
            row["responses"] = torch.tensor([*said, *between, *said])
            row["response_mask"] = torch.tensor([1] * len(said) + [0] * len(between) + [1] * len(said))
    asked = []

    def scored(trainer, batch, balance, prompts, thoughts):
        asked.append((prompts, thoughts))
        return torch.tensor([[-float(len(prompt)) for prompt in prompts] for _ in thoughts])

    monkeypatch.setattr(v1_trainer, "cross_log_probs", scored, raising=False)
    monkeypatch.setattr("ragen.agent_loop.v1_trainer.cross_log_probs", scored)
    made = trainer(collapse_detection={"first_turn_enabled": True, "multi_turn_enabled": True, "compute_freq": 3})
    for step in (1, 2, 3):
        made.global_steps = step
        metrics = {}
        made.on_sample_begin()
        made._balance_batch(batch_of(queue), metrics)
        assert ("collapse_first_turn_sample/mi_estimate" in metrics) == (step != 2)
    assert metrics["collapse/valid_thinking_rate"] == 1.0
    assert metrics["collapse_first_turn_sample/mi_upper_bound"] == pytest.approx(torch.log(torch.tensor(3.0)).item())
    prompts, thoughts = asked[1]
    assert [shipped().decode(prompt) for prompt in prompts] == [f"{name}<think>" for name in SCORES]
    assert [shipped().decode(thought) for thought in thoughts] == ["go Up"]
    later = {shipped().decode(prompt) for prompt in asked[0][0]}
    assert any(text.endswith("</answer><|im_end|>and now<think>") for text in later)


def test_a_step_tells_of_environments(queue, trainer):
    made, metrics = trainer(), {}
    made.on_sample_begin()
    made._compute_metrics(batch_of(queue), metrics, {}, global_steps=1, epoch=0)
    assert metrics["verl"] == 1 and metrics["envs/Mixed/score"] == 0.5


def test_a_training_whose_success_stays_low_is_ended_after_the_step_and_saved(queue, trainer, capsys):
    made = trainer(trainer={"early_stop": True})
    for step in range(1, 6):
        made.global_steps, metrics = step, {"val-aux/Pond/success/mean@1": 0.0, "val-aux/Pond/reward/mean@1": 1.0}
        made._compute_metrics(batch_of(queue), metrics, {}, global_steps=step, epoch=0)
        assert made.total_training_steps == (100 if step < 5 else 5)
    assert metrics["early_stopped/low_validation_success"] == 1.0 and made.saved == [5]
    assert "stopped after step 5: success was below 1%" in capsys.readouterr().out


def test_a_class_is_extended_once_and_this_verls_trainer_has_what_is_extended():
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    own = type("Own", (PPOTrainer,), {})
    v1_trainer.extend(own)
    extended = own._balance_batch
    v1_trainer.extend(own)
    assert own._balance_batch is extended is not PPOTrainer._balance_batch
    with pytest.raises(ConfigError, match="has no on_sample_begin, _balance_batch"):
        v1_trainer.extend(type("Other", (), {}))
