"""What it takes to run verl's stock trainer without a GPU: its environment, and overrides for a tiny model."""

from __future__ import annotations

import os
import re
import sys

ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    "HF_HUB_OFFLINE": "1",
    "RAY_AUTH_MODE": "disabled",
}
ON_CPU = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "support.verl_cpu_platform"}
GROUPS = [
    "es_manager.max_workers=2",
    "es_manager.crash_report_dir=null",
    "es_manager.train.env_groups=4",
    "es_manager.train.group_size=4",
    "es_manager.train.env_configs.tags=[SimpleSokoban,Bandit]",
    "es_manager.train.env_configs.n_groups=[2,2]",
    "es_manager.val.env_groups=4",
    "es_manager.val.env_configs.tags=[SimpleSokoban,Bandit]",
    "es_manager.val.env_configs.n_groups=[2,2]",
]
TRAINING = [
    "agent_proxy.max_turn=2",
    "agent_proxy.enable_think=false",
    "agent_loop.prompt_length=800",
    "actor_rollout_ref.rollout.max_model_len=1600",
    "actor_rollout_ref.rollout.response_length=24",
    "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.load_format=auto",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "actor_rollout_ref.model.use_remove_padding=false",
    "actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.dtype=float32",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "trainer.device=cpu",
    "trainer.total_training_steps=2",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.resume_mode=disable",
]
OWN_RAY = [
    "ray_kwargs.ray_init.address=local",  # though somebody else's cluster runs on this machine
    "ray_kwargs.ray_init.num_cpus=16",
    "ray_kwargs.ray_init.num_gpus=1",
    "ray_kwargs.ray_init.include_dashboard=false",
]


def values(log: str, name: str) -> list[float]:
    """What verl's console logger has written for a metric, step by step."""
    return [float(text) for text in re.findall(rf"[ -]{re.escape(name)}:(?:np\.\w+\()?(-?[\d.e-]+)", log)]
