"""verl's own worker group, of Ray actors, in the place of the model: batches are those of one process. Slow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch
from verl import DataProto
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

from ragen.config.loading import load_config
from ragen.env.trajectory_collector import TrajectoryCollector
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.prompts.replies import create_projection_function
from ragen.turns.container import MultiProcessEnvironmentContainer
from ragen.turns.managers import SokobanEnvironmentManager
from support.later import shipped
from support.ray_workers import AnsweringWorker
from support.stand_ins import StandInWorkers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

WORKERS = 2
VERL_AGENTS = {"env": {"max_steps": 3, "rollout": {"n": 2}}, "data": {"max_prompt_length": 700, "train_batch_size": 3}}
RAGENS = [
    "agent_proxy.max_turn=2",
    "es_manager.use_multiprocessing=false",
    *(f"es_manager.train.{said}" for said in ("env_groups=3", "group_size=1")),
    *(f"es_manager.train.env_configs.{said}" for said in ("tags=[SimpleSokoban]", "n_groups=[3]")),
]


@pytest.fixture(scope="module")
def group() -> Iterator[Any]:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    path = os.pathsep.join(filter(None, sys.path))
    environment = {"PYTHONPATH": path, "RAY_AUTH_MODE": "disabled"}
    ray.init("local", num_cpus=4, include_dashboard=False, runtime_env={"env_vars": environment}, log_to_driver=False)
    pool = RayResourcePool([WORKERS], use_gpu=False, max_colocate_count=1)
    yield RayWorkerGroup(pool, RayClassWithInitArgs(ray.remote(AnsweringWorker)))
    ray.shutdown()


def collected(workers: Any) -> DataProto:
    """What verl-agent's collector makes of three groups of two."""
    kwargs = {"dim_x": 6, "dim_y": 6, "num_boxes": 1, "max_steps": 3}
    envs = MultiProcessEnvironmentContainer("sokoban", 3, 2, 42, kwargs, settings={"use_lanes": False})
    with SokobanEnvironmentManager(envs, create_projection_function("sokoban"), "sokoban") as manager:
        return TrajectoryCollector(VERL_AGENTS, shipped()).multi_turn_loop(DataProto(), workers, manager)


def rolled_out(workers: Any) -> DataProto:
    """What RAGEN's proxy makes of three environments: an odd number for two workers."""
    with LLMAgentProxy(load_config("base", RAGENS), workers, shipped()) as proxy:
        meta_info = {"eos_token_id": shipped().eos_token_id, "pad_token_id": shipped().pad_token_id, "validate": False}
        return proxy.rollout(DataProto(meta_info=meta_info))


@pytest.mark.parametrize("play", [collected, rolled_out])
def test_batches_of_a_real_worker_group_are_those_of_one_process(group: Any, play: Any) -> None:
    assert group.world_size == WORKERS
    before = group.seen()
    batch, expected = play(group), play(StandInWorkers(shipped(), world_size=1))
    assert set(batch.batch.keys()) == set(expected.batch.keys())
    for name in sorted(expected.batch.keys()):
        assert torch.equal(batch.batch[name], expected.batch[name]), name
    parts = [seen[len(known) :] for seen, known in zip(group.seen(), before, strict=True)]
    assert parts[0] == parts[1] and parts[0]  # every batch went to both, in equal parts
