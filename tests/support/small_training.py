"""Runs small enough for quick tests: a model of one layer, two games, two groups of two, no workers."""

import json

from support.configurations import composed

SMALL = [
    "tiny_model.hidden_size=16",
    "tiny_model.num_hidden_layers=1",
    "tiny_model.num_attention_heads=2",
    "tiny_model.intermediate_size=32",
    "warm_up.steps=2",
    "warm_up.groups=8",
    "warm_up.batch_size=4",
    "es_manager.use_multiprocessing=false",
    "es_manager.train.env_groups=2",
    "es_manager.train.group_size=2",
    "es_manager.train.env_configs.n_groups=[1,1]",
    "es_manager.val.env_groups=2",
    "es_manager.val.env_configs.n_groups=[1,1]",
    "agent_proxy.enable_think=true",
    "actor_rollout_ref.rollout.response_length=6",
    "actor_rollout_ref.actor.entropy_coeff=0.01",  # a gradient also where no reply is worth more than another
    "trainer.test_freq=2",
    "trainer.save_freq=2",
]


def small_config(folder, *overrides, steps=2):
    return composed("tiny", [*SMALL, f"output_dir={folder}", f"trainer.total_training_steps={steps}", *overrides])


def metrics_of(folder):
    """The lines of metrics.jsonl, without the times that things took."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]
