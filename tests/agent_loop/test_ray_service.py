"""The service under Ray: agent loops of a node share it, and one that is lost is replaced. Slow."""

import asyncio
import os
from pathlib import Path

import pytest
import ray

from ragen.agent_loop.ray_service import node_actor
from ragen.agent_loop.service import EnvService
from ragen.agent_loop.session import Session, connect
from ragen.errors import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TESTS = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS, Path(__file__).parent))),
    "RAY_AUTH_MODE": "disabled",
}
TURNS = 6


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init("local", num_cpus=4, include_dashboard=False, runtime_env={"env_vars": ENVIRONMENT}, log_to_driver=False)
    yield
    ray.shutdown()


def config(name, agent_loop=None, **es_manager):
    """A configuration; its name makes it a service of its own."""
    part = {"env_groups": 1, "group_size": 8, "env_configs": {"tags": ["Walk"], "n_groups": [1]}}
    walk = {"env_type": "support.faulty_envs:Walk", "max_actions_per_traj": 99}
    settings = {"max_workers": 1, "crash_report_dir": None, "train": part, "val": part, **es_manager}
    return {"es_manager": settings, "custom_envs": {"Walk": walk}, "agent_loop": agent_loop or {}, "name": name}


async def trajectory(service, seed, before_turn=None):
    session = Session(service, "Walk", seed)
    shown = [(await session.open()).observation]
    for turn in range(TURNS):
        if before_turn is not None:
            await before_turn(turn)
        result = await session.play([f"{seed} {turn}"], 99 - turn)
        shown.append((result.observation, result.reward, result.done, result.info))
    await session.close()
    return shown


def undisturbed(seeds):
    async def play():
        service = EnvService(config("here", use_multiprocessing=False))
        try:
            return await asyncio.gather(*(trajectory(service, seed) for seed in seeds))
        finally:
            await service.shut_down()

    return asyncio.run(play())


def test_a_service_that_is_killed_is_replaced_and_no_trajectory_notices(cluster):
    configuration = config("killed")

    async def kill(turn):
        if turn in (2, 4):
            ray.kill(node_actor(configuration))

    async def played():
        services = [connect(configuration), connect(configuration)]  # of two agent loop workers
        others = [trajectory(services[seed % 2], seed) for seed in range(1, 12)]
        return await asyncio.gather(trajectory(services[0], 0, kill), *others)

    assert asyncio.run(played()) == undisturbed(range(12))


def test_what_a_service_refuses_arrives_as_what_it_is(cluster):
    with pytest.raises(ConfigError, match="step_timeout"):
        connect(config("wrong", step_timeout=-1))
    with pytest.raises(ConfigError, match="'Nowhere' is not a key of custom_envs"):
        asyncio.run(connect(config("refuses")).open("one", "Nowhere", 1))
