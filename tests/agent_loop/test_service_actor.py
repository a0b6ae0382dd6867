"""The service's actor without Ray: many requests a call, callers that go, deadlines, the cap, and what is counted."""

import asyncio
import pickle
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ragen.agent_loop import ray_service
from ragen.agent_loop.queues import LaneQueue
from ragen.agent_loop.ray_service import ServiceActor
from ragen.agent_loop.service import EnvService
from ragen.agent_loop.service_stats import ServiceStats, Times, together
from ragen.agent_loop.session import Session
from ragen.errors import ConfigError, EnvError, ServiceFullError, ServiceTimeoutError, SessionLostError
from support.faulty_envs import Walk


class Slow(Walk):
    """Takes a while for each step."""

    def step(self, action):
        time.sleep(0.4)
        return super().step(action)


class Unsendable(EnvError):
    """Cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Raising(Walk):
    """Raises what does not travel."""

    def step(self, action):
        raise Unsendable("a lock", "a key")


def config(agent_loop=None, **es_manager):
    part = {"env_groups": 1, "group_size": 8, "env_configs": {"tags": ["Walk"], "n_groups": [1]}}
    names = {"Walk": "support.faulty_envs:Walk", "Slow": "test_service_actor:Slow", "Raising": f"{__name__}:Raising"}
    return {
        "es_manager": {
            "use_multiprocessing": False,
            "crash_report_dir": None,
            "train": part,
            "val": part,
            **es_manager,
        },
        "custom_envs": {tag: {"env_type": name, "max_actions_per_traj": 9} for tag, name in names.items()},
        "agent_loop": agent_loop or {},
    }


def with_actor(work, configuration=None, **options):
    """Run a coroutine function with an actor, and shut that down; what it gives, and how often the actor ended."""
    ends = []

    async def run():
        actor = ServiceActor(configuration or config(), end=lambda: ends.append(1), **options)
        try:
            return await asyncio.wait_for(work(actor), 30)
        finally:
            await actor.shut_down()

    return asyncio.run(run()), len(ends)


def with_service(work, configuration):
    async def run():
        service = EnvService(configuration)
        try:
            return await asyncio.wait_for(work(service), 30)
        finally:
            await service.shut_down()

    return asyncio.run(run())


async def exchange(actor, *requests, name="me", patience=20.0):
    packed = pickle.dumps([(number, verb, arguments, {}) for number, verb, *arguments in requests])
    return pickle.loads(await actor.exchange(name, packed, patience))


async def until(condition, limit=10.0):
    deadline = time.monotonic() + limit
    while not await condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.02)


def test_many_requests_travel_in_one_call_and_their_answers_too():
    async def work(actor):
        opened = await exchange(actor, *((number, "open", "Walk", number) for number in range(20)))
        keys = {number: answer.session for number, _, answer in opened}
        played = await exchange(actor, *((100 + number, "play", keys[number], 0, ["a"], 9) for number in keys))
        return opened, played, await actor.stats()

    (opened, played, stats), _ = with_actor(work)
    assert [number for number, _, _ in opened] == list(range(20))
    assert all(is_result and result.info["place"] for _, is_result, result in played)
    assert (stats.turns, stats.batches, stats.largest, stats.queued.count) == (20, 1, 20, 40)


def test_a_slow_environment_holds_up_nobody_elses_answers():
    configuration = config(use_multiprocessing=True, max_workers=2)

    async def work(actor):
        opened = await exchange(actor, (0, "open", "Slow", 1))
        opened += await exchange(actor, (1, "open", "Walk", 1))
        slow, quick = (answer.session for _, _, answer in opened)
        first = await exchange(actor, (2, "play", slow, 0, ["a"], 9), (3, "play", quick, 0, ["a"], 9))
        return first, await exchange(actor)

    (first, second), _ = with_actor(work, configuration)
    assert [number for number, _, _ in first] == [3]
    assert [number for number, _, _ in second] == [2]


def test_a_later_call_sends_the_earlier_one_home_and_no_answer_is_lost():
    async def work(actor):
        waiting = [asyncio.create_task(exchange(actor)) for _ in range(3)]
        await asyncio.sleep(0)
        last = await exchange(actor, (7, "open", "Walk", 1))
        await asyncio.sleep(0)
        return [task.result() for task in waiting], last

    (empty, last), _ = with_actor(work)
    assert empty == [[], [], []]
    assert [number for number, _, _ in last] == [7]


def test_of_many_resets_some_go_in_a_call_and_a_group_is_not_torn_apart():
    queue = LaneQueue(None, 0)

    async def taken():
        for place in range(80):
            spec = SimpleNamespace(group_id=7)
            queue.post("open", (spec, 100 if place % 2 else place, "train"))
        queue.post("play", (1, None))
        sizes = []
        while len(queue):
            sizes.append([(job.verb, *job.item[1:2]) for job in queue._take()])
        queue._server.cancel()
        return sizes

    batches = asyncio.run(taken())
    resets = [[what[1] for what in batch if what[0] == "open"] for batch in batches]
    assert len(resets[0]) == 16 + 40 and resets[0].count(100) == 40
    assert all(len(batch) <= 32 for batch in resets[1:])
    assert sorted(seed for batch in resets for seed in batch if seed != 100) == list(range(0, 80, 2))
    assert ("play", None) in batches[0]


def test_an_error_that_does_not_travel_arrives_as_its_nearest_kind():
    async def work(actor):
        ((_, _, opened),) = await exchange(actor, (0, "open", "Raising", 1))
        return await exchange(actor, (1, "play", opened.session, 0, ["a"], 9))

    (((_, is_result, error),), _) = with_actor(work, config(on_env_failure="raise"))
    assert not is_result
    assert type(error) is EnvError and "a lock and a key" in str(error)


def test_environments_of_a_caller_that_calls_no_more_are_closed_and_then_the_service_ends(monkeypatch):
    monkeypatch.setattr(ray_service, "WATCH", 0.05)
    monkeypatch.setattr(ray_service, "ALIVE", 0.6)

    async def work(actor):
        await exchange(actor, *((number, "open", "Walk", number) for number in range(5)))
        for _ in range(10):
            await exchange(actor, patience=0.1)
        before = await actor.stats()

        async def are_closed():
            return not (await actor.stats()).sessions

        await until(are_closed)
        stats = await actor.stats()

        async def is_ending():
            return actor._is_ending

        await until(is_ending)
        with pytest.raises(SessionLostError, match="is about to end"):
            await exchange(actor)
        await asyncio.sleep(0.2)
        return before, stats

    (before, stats), ends = with_actor(work, linger=0.4)
    assert before.sessions == 5
    assert (stats.callers_lost, stats.abandoned) == (1, 5)
    assert ends == 1


def test_who_leaves_closes_what_is_open_and_counts_as_nobody_lost():
    async def work(actor):
        await exchange(actor, (0, "open", "Walk", 1))
        await actor.leave("me")
        await actor.leave("me")
        return await actor.stats()

    stats, ends = with_actor(work)
    assert (stats.sessions, stats.callers_lost, ends) == (0, 0, 0)


def test_more_sessions_than_allowed_are_refused_and_change_nothing():
    async def work(service):
        opened = [await service.open("Walk", seed) for seed in range(2)]
        with pytest.raises(
            ServiceFullError, match=r"'Walk' and seed 2 .* has 2 open, and agent_loop.max_sessions is 2"
        ):
            await service.open("Walk", 2)
        result = await service.play(opened[0].session, 0, ["a"], 9)
        await service.close(opened[1].session)
        await service.open("Walk", 2)
        return result, await service.stats()

    result, stats = with_service(work, config({"max_sessions": 2}))
    assert result.info["place"]
    assert (stats.sessions, stats.opened, stats.refused) == (2, 3, 1)


def test_a_request_that_waited_too_long_is_told_from_one_that_was_at_work():
    async def work(service):
        sessions = [Session(service, tag, 1) for tag in ("Slow", "Walk")]
        for session in sessions:
            await session.open()
        slow, quick = sessions
        service.limits = replace(service.limits, step_timeout=0.1, queue_timeout=0.1)
        first = asyncio.create_task(slow.play(["a"], 9))
        await asyncio.sleep(0.05)
        with pytest.raises(ServiceTimeoutError, match=r"waited 0.2 s in the queue of main, .* nothing has happened"):
            await quick.play(["a"], 9)
        with pytest.raises(ServiceTimeoutError, match=r"was then at work for 0.2 s, with 0 others"):
            await first
        service.limits = replace(service.limits, queue_timeout=20)
        results = await quick.play(["a"], 9), await slow.play(["a"], 9)
        return results, await service.stats()

    results, stats = with_service(work, config())
    assert all(result.info["place"] for result in results)
    assert (stats.late_in_queue, stats.late_at_work, stats.rebuilt) == (1, 1, 2)
    assert stats.sessions == 2


def test_a_turn_that_was_cancelled_is_played_once_for_whoever_goes_on():
    async def work(service):
        session, other = Session(service, "Slow", 1), Session(service, "Slow", 1)
        await session.open()
        await other.open()
        turn = asyncio.create_task(session.play(["a"], 9))
        await asyncio.sleep(0.1)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        return [await session.play(["a"], 9) for session in (session, other)], session.rebuilt

    (mine, undisturbed), rebuilt = with_service(work, config())
    assert mine == undisturbed
    assert rebuilt == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"max_sessions": 0}, "'agent_loop.max_sessions' is 0; expected at least 1"),
        ({"queue_timeout": 0}, "'agent_loop.queue_timeout' is 0; expected a number of seconds greater than 0"),
        ({"service_timeout": -1.5}, "'agent_loop.service_timeout' is -1.5"),
        ({"service_cpus": -1}, "'agent_loop.service_cpus' is -1.0; expected at least 0"),
        ({"max_sessions": "many"}, "'agent_loop.max_sessions' is 'many'"),
    ],
)
def test_limits_that_cannot_work_are_refused_by_name(keys, message):
    with pytest.raises(ConfigError, match=message):
        EnvService(config(keys))


def test_times_tell_their_quantiles_and_differences():
    early = Times()
    for _ in range(98):
        early.add(0.001)
    late = early.plus(Times())
    late.add(1.0, times=2)
    assert late.count == 100 and late.mean == pytest.approx((0.098 + 2) / 100)
    assert 0.001 <= late.quantile(0.5) <= 0.00142
    assert 1.0 <= late.quantile(0.99) <= 1.42
    between = late.plus(early, -1)
    assert (between.count, between.total) == (2, pytest.approx(2.0))
    assert Times().quantile(0.5) == Times().mean == 0.0
    longest = Times()
    longest.add(1e9)
    assert longest.quantile(1.0) > 3600


def test_a_trainer_logs_what_was_done_in_a_step_over_all_services():
    before, after = ServiceStats(turns=10, batches=5), ServiceStats(sessions=3, turns=30, batches=10, failed=1)
    for seconds in (0.1, 0.2):
        after.queued.add(seconds)
    step = after.since(before)
    logged = together([step, step])
    assert logged["env_service/turns"] == 40 and logged["env_service/batches"] == 10
    assert logged["env_service/turns_per_batch"] == 4
    assert logged["env_service/services"] == 2 and logged["env_service/sessions"] == 6
    assert logged["env_service/failed"] == 2
    assert logged["env_service/queued_s/mean"] == pytest.approx(0.15)
    assert 0.2 <= logged["env_service/queued_s/p99"] <= 0.29
    assert step.metrics()["env_service/turns"] == 20
