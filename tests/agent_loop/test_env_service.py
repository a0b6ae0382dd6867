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
from ragen.errors import ConfigError, DivergenceError, EnvError, InputError, SessionLostError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.prompting.replies import ParsedReply
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


class BuiltOnce(Walk):
    """Raises in its first turn, and cannot be built again."""

    built = 0

    def __init__(self, config=None):
        type(self).built += 1
        if self.built > 1:
            raise ValueError("no walls today")
        super().__init__(config)

    def step(self, action):
        raise RuntimeError("a wall fell down")


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
        expected = {key: value for key, value in state["metrics"].items() if "pass@" not in key}
        assert episode.metrics() == expected


async def lane_pids(service):
    return [stats.pid for stats in (await service.stats()).lanes if stats.lane.startswith("worker") and stats.pid]


@pytest.mark.parametrize("where", [True, False])
def test_trajectories_are_the_managers(where):
    configuration = config(use_multiprocessing=where)
    episodes = run(lambda service: by_service(service, configuration), configuration)
    assert_same(episodes, by_manager(configuration))


def test_kills_of_lanes_between_turns_change_no_trajectory():
    configuration = config()
    killed = []

    async def work(service):
        async def kill(turn):
            for pid in (await lane_pids(service))[turn % 2 :: 2]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        episodes = await by_service(service, configuration, before_turn=kill)
        stats = await service.stats()
        return episodes, sum(lane.restarts for lane in stats.lanes)

    episodes, restarts = run(work, configuration)
    assert_same(episodes, by_manager(configuration))
    assert len(killed) >= 3
    assert restarts >= 3


def test_kills_count_up_only_while_no_turn_is_played():
    configuration = config(use_multiprocessing=True, max_restarts=1)
    homes = set()

    async def work(service):
        async def kill(turn):
            homes.update(lane.lane for lane in (await service.stats()).lanes if lane.envs)
            for pid in await lane_pids(service):
                os.kill(pid, signal.SIGKILL)

        return await by_service(service, configuration, before_turn=kill)

    assert_same(run(work, configuration), by_manager(configuration))
    assert homes == {"worker 0", "worker 1"}


def test_what_arrives_together_goes_in_one_call():
    configuration = config(max_workers=1)

    async def work(service):
        opened = await asyncio.gather(*(service.open("Walk", seed) for seed in range(8)))
        await asyncio.gather(*(service.play(each.session, 0, ["a"], 5) for each in opened))
        return await service.stats()

    stats = run(work, configuration)
    assert (stats.opened, stats.turns, stats.batches, stats.largest) == (8, 8, 1, 8)


def test_time_inside_an_environment_is_told_apart_from_time_in_line():
    custom = {"Slow": {"env_type": "test_env_service:Slow", "max_actions_per_traj": 30}}

    async def work(service):
        sessions = [Session(service, tag, 3) for tag in ("Slow", "Walk")]
        for session in sessions:
            await session.open()
        began = time.perf_counter()

        async def one(session):
            await session.play(["a"], 9)
            waited = time.perf_counter() - began
            await session.close()
            return waited, session.busy_s

        played = await asyncio.gather(*map(one, sessions))
        return *played, (await service.stats()).metrics()["env_service/inside_s"]

    (waited, busy), (in_line, quick), inside = run(work, config(custom, max_workers=1))
    assert busy >= 0.2 and waited >= 0.2
    assert 0 < quick < in_line >= 0.2  # one lane, so it waits for the other
    assert inside == pytest.approx(busy + quick)


def test_members_of_a_group_share_a_lane_and_lanes_are_even():
    configuration = config(groups={"Walk": 4}, group_size=4)

    async def work(service):
        for seed in range(4):
            for _ in range(4):
                await service.open("Walk", seed)
        sessions = service._sessions.values()
        homes = {session.group: {id(session.queue)} for session in sessions}
        for session in sessions:
            homes[session.group].add(id(session.queue))
        return homes, Counter(id(session.queue) for session in sessions)

    homes, loads = run(work, configuration)
    assert all(len(shards) == 1 for shards in homes.values())
    assert sorted(loads.values()) == [8, 8]


def test_a_type_that_must_stay_at_home_has_no_lane():
    configuration = config(sequential_env_types=["support.faulty_envs:Walk"])

    async def work(service):
        await service.open("Walk", 1)
        return await service.stats()

    homes = {lane.lane for lane in run(work, configuration).lanes if lane.envs}
    assert homes == {"main"}


def test_an_environment_that_hangs_ends_its_trajectory_and_no_other():
    hangs = {"fault": "sleeps", "place": "turn 1"}
    custom = {"Evil": {"env_type": "support.faulty_envs:Faulty", "env_config": hangs, "max_actions_per_traj": 30}}
    configuration = config(custom, step_timeout=0.5)

    async def one(service, tag, seed):
        session = Session(service, tag, seed)
        await session.open()
        results = [await session.play(["a"], 9 - turn) for turn in range(2)]
        await session.close()
        return results

    async def work(service):
        return await asyncio.gather(one(service, "Evil", 3), *(one(service, "Walk", seed) for seed in range(3)))

    evil, *walks = run(work, configuration)
    assert evil[0].info.get("env_error") is None
    assert "timed out after 0.5 s" in evil[1].info["env_error"]
    assert evil[1].done and evil[1].executed == []
    assert all(result.info["place"] for walk in walks for result in walk)


def test_with_on_env_failure_raise_the_trajectory_gets_the_error():
    raises = {"fault": "raises", "place": "turn 0"}
    custom = {"Evil": {"env_type": "support.faulty_envs:Faulty", "env_config": raises, "max_actions_per_traj": 30}}

    async def work(service):
        opened = await service.open("Evil", 1)
        with pytest.raises(EnvError, match="boom"):
            await service.play(opened.session, 0, ["a"], 9)

    run(work, config(custom, on_env_failure="raise"))


def test_an_environment_that_cannot_be_built_fails_alone():
    custom = {"Bad": {"env_type": "test_env_service:Unbuildable", "max_actions_per_traj": 3}}

    async def work(service):
        asked = [service.open("Bad", 1), service.open("Walk", 1), service.open("Bad", 2)]
        bad, good, worse = await asyncio.gather(*asked, return_exceptions=True)
        return bad, good, worse, (await service.stats()).sessions

    bad, good, worse, sessions = run(work, config(custom, max_workers=1))
    assert isinstance(bad, EnvError) and "no walls today" in str(bad)
    assert isinstance(worse, EnvError)
    assert good.observation.startswith("at ")
    assert sessions == 1


def test_a_turn_of_an_environment_that_cannot_be_rebuilt_ends_its_game():
    custom = {"Once": {"env_type": "test_env_service:BuiltOnce", "max_actions_per_traj": 7}}
    BuiltOnce.built = 0

    async def work(service):
        opened = await service.open("Once", 1)
        return await service.play(opened.session, 0, ["Dragon"], 7)

    result = run(work, config(custom, use_multiprocessing=False))
    assert result.done and result.info == {"env_error": "ValueError: no walls today"}


def test_bad_requests_are_refused_by_name():
    async def work(service):
        opened = await service.open("Walk", 1)
        with pytest.raises(ConfigError, match="'Nowhere' is not a key of custom_envs"):
            await service.open("Nowhere", 1)
        with pytest.raises(InputError, match="asked for turn 3; its next one is 0"):
            await service.play(opened.session, 3, ["a"], 5)
        first = asyncio.create_task(service.play(opened.session, 0, ["a"], 5))
        await asyncio.sleep(0)
        with pytest.raises(InputError, match="while it is at one"):
            await service.play(opened.session, 0, ["a"], 5)
        await first
        await service.close(opened.session)
        await service.close(opened.session)
        with pytest.raises(SessionLostError, match="is not open"):
            await service.play(opened.session, 1, ["a"], 5)

    run(work, config())


def test_after_shutting_down_no_worker_and_no_thread_is_left():
    before = set(threading.enumerate())

    async def work(service):
        await asyncio.gather(*(service.open("Walk", seed) for seed in range(4)))
        return await lane_pids(service)

    pids = run(work, config())
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert set(threading.enumerate()) <= before


def test_a_cancelled_trajectory_leaves_no_environment():
    async def work(service):
        opening = asyncio.create_task(service.open("Walk", 1))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        stats = await service.stats()
        return stats.sessions, sum(lane.envs for lane in stats.lanes)

    assert run(work, config()) == (0, 0)


class Forgetful:
    """A service that loses all its environments now and then, as one whose process is started again."""

    def __init__(self, service, tag=None):
        self.service, self.tag, self.lost = service, tag, set()

    async def open(self, tag, seed, mode="train", **again):
        return await self.service.open(tag, seed if self.tag is None else seed + len(self.lost), mode, **again)

    async def play(self, session, turn, actions, left):
        if turn == 2 and session not in self.lost and len(self.lost) < 3:
            self.lost.add(session)
            await self.service.close(session)
        return await self.service.play(session, turn, actions, left)

    async def close(self, session):
        return await self.service.close(session)


def test_a_session_whose_service_was_lost_plays_on_as_if_nothing_had_been():
    configuration = config()
    episodes = run(lambda service: by_service(Forgetful(service), configuration), configuration)
    assert_same(episodes, by_manager(configuration))


class Restarted:
    """A service whose process is started again before a trajectory's given turn, empty and counting anew."""

    def __init__(self, configuration, turn):
        self.service, self.configuration, self.turn, self.ended = EnvService(configuration), configuration, turn, []

    async def open(self, *order, **again):
        return await self.service.open(*order, **again)

    async def play(self, session, turn, *asked):
        if turn == self.turn and not self.ended:
            self.ended.append(self.service)
            self.service = EnvService(self.configuration)
        return await self.service.play(session, turn, *asked)

    async def close(self, session):
        return await self.service.close(session)

    async def shut_down(self):
        for service in [self.service, *self.ended]:
            await service.shut_down()


def test_environments_of_a_service_that_was_started_again_are_never_taken_for_those_it_had_before():
    configuration = config(use_multiprocessing=False)

    async def work():
        service = Restarted(configuration, turn=1)
        first, second, third = (Session(service, "Walk", seed) for seed in (1, 2, 3))
        try:
            shown = [(await session.open()).observation for session in (first, second, third)]
            await third.play(["a"], 9)
            await third.play(["a"], 8)  # it is the first in the service that was started again
            await second.play(["b"], 9)
            results = [await first.play(["a"], 9), await second.play(["a"], 8)]
            await first.close()
            return shown, results, (await service.service.stats()).sessions
        finally:
            await service.shut_down()

    async def undisturbed(service):
        first, second = Session(service, "Walk", 1), Session(service, "Walk", 2)
        await asyncio.gather(first.open(), second.open())
        await second.play(["b"], 9)
        return [await first.play(["a"], 9), await second.play(["a"], 8)]

    shown, results, left = asyncio.run(work())
    assert len(set(shown)) == 3
    expected = run(undisturbed, configuration)
    assert [(one.observation, one.info) for one in results] == [(one.observation, one.info) for one in expected]
    assert left == 2


def test_a_session_of_an_earlier_service_closes_nothing_in_a_later_one():
    async def work(service):
        earlier = EnvService(config(use_multiprocessing=False))
        old, new = await earlier.open("Walk", 1), await service.open("Walk", 2)
        await earlier.shut_down()
        assert old.session.number == new.session.number
        await service.close(old.session)
        with pytest.raises(SessionLostError):
            await service.play(old.session, 0, ["a"], 5)
        return await service.play(new.session, 0, ["a"], 5)

    assert run(work, config(use_multiprocessing=False)).info["place"]


def test_a_session_that_comes_back_otherwise_says_so():
    async def work(service):
        session = Session(Forgetful(service, tag="other"), "Walk", 1)
        await session.open()
        for left in (9, 8):
            await session.play(["a"], left)
        with pytest.raises(DivergenceError, match=r"'Walk' and seed 1, played again .* at its reset"):
            await session.play(["a"], 7)

    run(work, config())
