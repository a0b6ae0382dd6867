"""The service under Ray: found anew when it is gone, owned by nobody, ended when nobody is left."""

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from ragen.agent_loop.ray_service import ALIVE, LINGER, RemoteService, actor_name, namespace
from ragen.agent_loop.service import EnvService
from ragen.agent_loop.service_metrics import ServiceMeter, all_stats
from ragen.agent_loop.session import Session, connect
from ragen.errors import ConfigError, InputError, ServiceFullError, SessionLostError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TESTS = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS, Path(__file__).parent))),
    "RAY_AUTH_MODE": "disabled",
}
SMALL = {"include_dashboard": False, "object_store_memory": 80 * 1024**2}
TURNS = 6


@pytest.fixture(scope="module")
def cluster():
    """Two nodes: the head, where this process is, and another one."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # with Ray's 15, actors start late on a busy machine
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, **SMALL})
    ray.init(address=nodes.address, runtime_env={"env_vars": ENVIRONMENT}, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


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


def play(service, seeds, before_turn=None):
    """Trajectories, all at once; ``before_turn`` is for the first."""

    async def played():
        others = [trajectory(service, seed) for seed in seeds[1:]]
        try:
            return await asyncio.gather(trajectory(service, seeds[0], before_turn), *others), await service.stats()
        finally:
            await service.shut_down()

    return asyncio.run(played())


async def process_of(service):
    """Process id of a service: main's, of its homes."""
    return next(lane.pid for lane in (await service.stats()).lanes if lane.lane == "main")


def is_running(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_for(condition, limit=300.0):
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.2)


def is_there(configuration):
    with suppress(ValueError):
        ray.get_actor(actor_name(configuration, ray.get_runtime_context().get_node_id()), namespace())
        return True
    return False


def test_a_service_that_is_killed_is_looked_up_anew_and_no_trajectory_notices(cluster):
    service, killed, lanes = connect(config("killed")), [], []

    async def kill(turn):
        if turn in (2, 4):
            process = await process_of(service)
            lanes.extend(lane.pid for lane in (await service.stats()).lanes if lane.lane != "main" and lane.pid)
            os.kill(process, signal.SIGKILL)
            killed.append(process)

    played, stats = play(service, range(12), before_turn=kill)
    assert len(set(killed)) == len(set(lanes)) == 2
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in lanes))
    assert played == undisturbed(range(12))
    assert stats.rebuilt >= 1
    assert stats.failed == 0


def test_a_service_that_was_stopped_is_ended_and_another_takes_its_place(cluster):
    service, stopped = connect(config("stopped", {"service_timeout": 2})), []

    async def stop(turn):
        if turn == 3:
            stopped.append(await process_of(service))
            os.kill(stopped[0], signal.SIGSTOP)

    played, stats = play(service, range(4), before_turn=stop)
    assert played == undisturbed(range(4))
    assert stats.rebuilt >= 1
    wait_for(lambda: not is_running(stopped[0]))


@ray.remote(num_cpus=0)
class Player:
    """A process that plays, as an agent loop's worker does."""

    def __init__(self, configuration):
        self.service = connect(configuration)
        self.session = None

    async def open(self, seed):
        self.session = Session(self.service, "Walk", seed)
        await self.session.open()
        return os.getpid()

    async def play(self, turn):
        return (await self.session.play([f"x {turn}"], 99)).observation

    async def service_process(self):
        return await process_of(self.service)


def test_the_service_outlives_whoever_asked_first_and_ends_when_nobody_is_left(cluster):
    configuration = config("owned by nobody")
    first, second = Player.remote(configuration), Player.remote(configuration)
    ray.get(first.open.remote(1))
    second_pid = ray.get(second.open.remote(2))
    shown = ray.get(second.play.remote(0))
    process = ray.get(second.service_process.remote())
    assert process == ray.get(first.service_process.remote())
    ray.kill(first)

    def sessions():
        return [stats.sessions for stats in all_stats(configuration)]

    wait_for(lambda: sessions() == [1], limit=ALIVE + 240)
    assert ray.get(second.play.remote(1)) != shown
    assert ray.get(second.service_process.remote()) == process
    assert second_pid != process
    ray.kill(second)
    wait_for(lambda: sessions() in ([0], []), limit=ALIVE + 240)
    wait_for(lambda: not is_running(process), limit=LINGER + 240)
    assert not is_there(configuration)


def test_a_node_that_goes_takes_no_trajectory_with_it(cluster):
    node = cluster.add_node(num_cpus=1, object_store_memory=80 * 1024**2)
    cluster.wait_for_nodes()
    service = RemoteService(config("two nodes"), node=node.node_id)
    used = []

    async def remove(turn):
        if turn == 3:
            used.append(await process_of(service))
            await asyncio.to_thread(cluster.remove_node, node, False)
            await asyncio.to_thread(wait_for, lambda: not is_running(used[0]))

    played, stats = play(service, range(6), before_turn=remove)
    assert played == undisturbed(range(6))
    assert stats.rebuilt >= 1
    assert is_there(config("two nodes"))


def test_what_a_service_refuses_arrives_as_what_it_is(cluster):
    async def work():
        service = connect(config("refuses", {"max_sessions": 1}))
        session, other = Session(service, "Walk", 1), Session(service, "Walk", 2)
        try:
            opened = await session.open()
            with pytest.raises(ServiceFullError, match=r"agent_loop\.max_sessions is 1"):
                await other.open()
            with pytest.raises(InputError, match="asked for turn 3; its next one is 0"):
                await service.play(opened.session, 3, ["a"], 9)
            with pytest.raises(ConfigError, match="'Nowhere' is not a key of custom_envs"):
                await service.open("Nowhere", 1)
            await session.close()
            with pytest.raises(SessionLostError, match="is not open"):
                await service.play(opened.session, 0, ["a"], 9)
            return await other.open()
        finally:
            await service.shut_down()

    assert asyncio.run(work()).observation


def test_a_trainer_reads_what_was_done_since_it_last_looked(cluster):
    configuration = config("metered")
    meter = ServiceMeter(configuration)
    assert meter.read()["env_service/services"] == 0

    async def rounds():
        service = connect(configuration)
        try:
            read = []
            for seeds in (range(3), range(5)):
                await asyncio.gather(*(trajectory(service, seed) for seed in seeds))
                read.append(await asyncio.to_thread(meter.read))
            return read
        finally:
            await service.shut_down()

    first, second = asyncio.run(rounds())
    assert (first["env_service/turns"], second["env_service/turns"]) == (3 * TURNS, 5 * TURNS)
    assert second["env_service/services"] == 1 and second["env_service/failed"] == 0
    assert second["env_service/worked_s/p99"] >= second["env_service/worked_s/p50"] > 0


def test_a_configuration_that_cannot_work_is_refused_before_an_actor_is_made(cluster):
    wrong = config("wrong", step_timeout=-1)
    with pytest.raises(ConfigError, match="step_timeout"):
        connect(wrong)
    assert not is_there(wrong)
