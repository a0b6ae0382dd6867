"""The environment service: what it plays is what the manager plays, whatever happens to its lanes."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter

import psutil
import pytest

from ragen.agent_loop.episode import Episode
from ragen.agent_loop.service import EnvService
from ragen.agent_loop.session import Session
from ragen.errors import ConfigError, DivergenceError, EnvError, ServiceTimeoutError, SessionLostError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.prompts.replies import ParsedReply
from support.faulty_envs import Walk

GROUPS = {"Walk": 3, "Bandit": 2}
TURNS = 4


class Slow(Walk):
    """Takes its time for a step."""

    def step(self, action):
        time.sleep(0.2)
        return super().step(action)


class Unbuildable(Walk):
    """Cannot be built."""

    def __init__(self, config=None):
        raise ValueError("no walls today")


def config(custom=None, groups=GROUPS, group_size=2, **es_manager):
    custom_envs = {
        "Walk": {"env_type": "support.faulty_envs:Walk", "max_actions_per_traj": 7},
        "Bandit": {"env_type": "bandit", "max_actions_per_traj": 1},
        "Lake": {"env_type": "frozen_lake", "max_actions_per_traj": 10},
        **(custom or {}),
    }
    part = {
        "env_groups": sum(groups.values()),
        "group_size": group_size,
        "env_configs": {"tags": list(groups), "n_groups": list(groups.values())},
    }
    settings = {"max_workers": 2, "crash_report_dir": None, "format_penalty": -0.25, **es_manager}
    return {"es_manager": {**settings, "train": part, "val": part}, "custom_envs": custom_envs, "seed": {"train": 50}}


def actions(env_id, turn):
    """What a model might answer: sometimes too much, sometimes nothing that can be read."""
    if (env_id + turn) % 5 == 4:
        return []
    return ["Phoenix" if (env_id + turn) % 2 else "Dragon"] * (1 + (env_id + turn) % 3)


def by_manager(configuration):
    """The reference: the same trajectories, played by the manager in this process."""
    with EnvStateManager(configuration) as manager:
        manager.use_multiprocessing = False
        active = manager.reset()
        for turn in range(TURNS):
            inputs = [
                {
                    "env_id": i,
                    "actions": actions(i, turn),
                    "llm_response": f"text {turn}",
                    "llm_raw_response": f"raw {turn}",
                }
                for i in (cache["env_id"] for cache in active)
            ]
            active = manager.step(inputs) if inputs else []
        states = manager.get_rollout_states()
        return states, [entry["status"] for entry in manager.envs]


async def by_service(service, configuration, before_turn=None, sessions=None):
    """The same, one coroutine a trajectory; episodes in order."""
    group_size = configuration["es_manager"]["train"]["group_size"]
    tags = [tag for tag, count in GROUPS.items() for _ in range(count * group_size)]
    barrier = asyncio.Barrier(len(tags))

    async def one(env_id, tag):
        session = Session(service, tag, 50 + env_id // group_size)
        opened = await session.open()
        episode = Episode(tag, 50 + env_id // group_size, opened.max_actions, -0.25, opened.observation)
        for turn in range(TURNS):
            await barrier.wait()
            if before_turn is not None and env_id == 0:
                await before_turn(turn)
            await barrier.wait()
            if not episode.is_over:
                result = await session.play(actions(env_id, turn), episode.actions_left)
                episode.apply(ParsedReply(f"raw {turn}", f"text {turn}", []), result)
        await session.close()
        return episode

    return await asyncio.gather(*(one(env_id, tag) for env_id, tag in enumerate(tags)))


def run(work, configuration):
    """Run a coroutine function with a service, and shut that down."""

    async def with_service():
        service = EnvService(configuration)
        try:
            return await asyncio.wait_for(work(service), 60)
        finally:
            await service.shut_down()

    return asyncio.run(with_service())


def assert_same(episodes, reference):
    states, statuses = reference
    for episode, state, status in zip(episodes, states, statuses, strict=True):
        assert len(episode.rollout["history"]) == len(state["history"])
        for mine, theirs in zip(episode.rollout["history"], state["history"], strict=True):
            assert mine == {key: value for key, value in theirs.items() if key != "metrics"}
        assert episode.rollout["penalty"] == state["penalty"]
        assert episode.status == status
        assert episode.success == state["metrics"][f"{episode.tag}/success"]


def lane_pids(service):
    return [stats.pid for stats in service._envs.stats() if stats.lane.startswith("worker") and stats.pid]


@pytest.mark.parametrize("where", [True, False])
def test_trajectories_are_the_managers(where):
    configuration = config(use_multiprocessing=where)
    episodes = run(lambda service: by_service(service, configuration), configuration)
    assert_same(episodes, by_manager(configuration))


@pytest.mark.parametrize(("max_restarts", "every"), [(3, 2), (1, 1)])
def test_kills_of_workers_between_turns_change_no_trajectory(max_restarts, every):
    """Kills count up only while no turn is played."""
    configuration = config(use_multiprocessing=True, max_restarts=max_restarts)
    killed = []

    async def work(service):
        async def kill(turn):
            for pid in lane_pids(service)[turn % every :: every]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        return await by_service(service, configuration, before_turn=kill)

    assert_same(run(work, configuration), by_manager(configuration))
    assert len(killed) >= 3


@pytest.mark.parametrize("policy", ["fallback", "truncate", "raise"])
@pytest.mark.parametrize("fault", ["sleeps", "raises"])
def test_an_environment_that_fails_ends_its_trajectory_and_no_other(fault, policy):
    evil = {"fault": fault, "place": "turn 1"}
    custom = {"Evil": {"env_type": "support.faulty_envs:Faulty", "env_config": evil, "max_actions_per_traj": 30}}
    configuration = config(custom, step_timeout=0.5, on_env_failure=policy)

    async def one(service, tag, seed):
        session = Session(service, tag, seed)
        await session.open()
        results = [await session.play(["a"], 9 - turn) for turn in range(2)]
        await session.close()
        return results

    async def work(service):
        return await asyncio.gather(one(service, "Evil", 3), *(one(service, "Walk", seed) for seed in range(3)))

    evil, *walks = run(work, configuration)
    assert evil[0].info.get("env_error") is None and evil[1].info["env_error"]
    assert evil[1].done and evil[1].executed == []
    assert all(result.info["place"] for walk in walks for result in walk)


def test_an_environment_that_cannot_be_built_fails_alone():
    custom = {"Bad": {"env_type": "test_env_service:Unbuildable", "max_actions_per_traj": 3}}

    async def work(service):
        opening = [Session(service, tag, seed).open() for tag, seed in (("Bad", 1), ("Walk", 1), ("Bad", 2))]
        return [*await asyncio.gather(*opening, return_exceptions=True), len(service._open)]

    bad, good, worse, still_open = run(work, config(custom, max_workers=1))
    assert type(bad) is type(worse) is EnvError and "no walls today" in str(bad)
    assert good.observation.startswith("at ") and still_open == 1


def test_a_turn_that_is_not_answered_in_time_is_an_error_and_the_next_one_plays_on():
    custom = {"Slow": {"env_type": "test_env_service:Slow", "max_actions_per_traj": 30}}
    configuration = config(custom, max_workers=1) | {"agent_loop": {"queue_timeout": 0.01}}

    async def work(service):
        session = Session(service, "Slow", 1)
        await session.open()
        await session.play(["a"], 9)
        limits, service.limits = service.limits, service.limits._replace(play_s=0.02)
        with pytest.raises(ServiceTimeoutError):
            await session.play(["b"], 8)
        service.limits = limits
        played = [await session.play(["b"], 8), await session.play(["c"], 7)]
        await session.close()
        return played, len(service._open)

    async def undisturbed(service):
        session = Session(service, "Slow", 1)
        await session.open()
        return [await session.play([action], 9 - turn) for turn, action in enumerate("abc")]

    played, still_open = run(work, configuration)
    assert still_open == 0
    assert [one.observation for one in played] == [one.observation for one in run(undisturbed, configuration)[1:]]


def test_bad_requests_are_refused():
    async def work(service):
        await service.open("one", "Walk", 1)
        with pytest.raises(ConfigError, match="Nowhere"):
            await service.open("two", "Nowhere", 1)
        for _ in range(2):
            await service.close("one")
        with pytest.raises(SessionLostError):
            await service.play("one", ["a"], 5)

    run(work, config())


def test_after_shutting_down_no_worker_and_no_thread_is_left():
    before = set(threading.enumerate())

    async def work(service):
        await asyncio.gather(*(service.open(str(seed), "Walk", seed) for seed in range(4)))
        return lane_pids(service)

    pids = run(work, config())
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert set(threading.enumerate()) <= before


def test_a_cancelled_trajectory_leaves_no_environment():
    async def work(service):
        session = Session(service, "Walk", 1)
        opening = asyncio.create_task(session.open())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await session.close()
        return len(service._open), sum(lane.envs for lane in service._envs.stats())

    assert run(work, config()) == (0, 0)


class Forgetful:
    """A service that loses environments now and then, as one whose process is started again."""

    def __init__(self, service, tag=None):
        self.service, self.limits, self.tag, self.turns, self.lost = service, service.limits, tag, Counter(), set()

    async def open(self, name, tag, seed, mode="train"):
        return await self.service.open(name, tag, seed if self.tag is None else seed + len(self.lost), mode)

    async def play(self, name, actions, left):
        self.turns[name] += 1
        if self.turns[name] == 3 and len(self.lost) < 3:
            self.lost.add(name)
            await self.service.close(name)
        return await self.service.play(name, actions, left)

    async def close(self, name):
        await self.service.close(name)


def test_a_session_whose_service_was_lost_plays_on_as_if_nothing_had_been():
    configuration = config()
    episodes = run(lambda service: by_service(Forgetful(service), configuration), configuration)
    assert_same(episodes, by_manager(configuration))


def test_a_session_that_comes_back_otherwise_says_so():
    async def work(service):
        session = Session(Forgetful(service, tag="other"), "Walk", 1)
        await session.open()
        for left in (9, 8):
            await session.play(["a"], left)
        with pytest.raises(DivergenceError):
            await session.play(["a"], 7)

    run(work, config())
