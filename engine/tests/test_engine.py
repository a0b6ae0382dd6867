"""The engine as a library: environments by id, any subset at any time, results and failures as values."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from envlanes import Engine, EnvFailed, EnvSpec, Settings
from envlanes.errors import EnvError, InputError, StateError
from envlanes.ragen.turn import TEXT, Turn, TurnResult
from support.faulty_envs import FaultConfig, Faulty, GlobalDraws, Walk
from support.leftovers import kill_workers, until

IDS = range(4)
TURN = Turn(("a",), 9)

Make = Callable[..., Engine]


class Board(Walk):
    """Begins with what is given from outside, and has items that it writes into, which may be set too."""

    def __init__(self, config=None):
        super().__init__(config)
        self.given: list[int] = []
        self.items: list[int] = []

    def reset(self, seed=None, mode=None):
        self.items = list(self.given)
        return super().reset(seed, mode)

    def push(self, item):
        self.items.append(item)
        return len(self.items)

    def step(self, action):
        observation, _, done, info = super().step(action)
        self.items.append(self.steps)
        return observation, float(sum(self.items)), done, info


class Takes(Walk):
    """Waits until it is told to go on, as far as others let it."""

    meets: threading.Barrier | None = None

    def step(self, action):
        until(lambda: False, 0.2)
        return super().step(action)


in_lanes = pytest.mark.parametrize("make", ["process", "executor"], indirect=True)


def specs(env_class=Walk, ids=IDS, config=None):
    return [EnvSpec.of(env_class, config, env_id, game=TEXT) for env_id in ids]


def seeds(ids=IDS):
    return {env_id: 100 + env_id for env_id in ids}


def turns(ids=IDS):
    return dict.fromkeys(ids, TURN)


def alone(env_id, count, env_class=Walk):
    """The observations of an environment in so many turns, without any engine."""
    env = env_class()
    shown = [env.reset(seed=100 + env_id)]
    return shown + [env.step("a")[0] for _ in range(count)]


def kill(engine, end=signal.SIGKILL):
    """Kill all workers; nothing where there is none."""
    kill_workers(engine.stats(), end)


def homes(engine):
    return {stats.lane: stats.envs for stats in engine.stats() if stats.envs}


# The public face


@pytest.mark.parametrize("use_lanes", [True, False, "auto"])
def test_the_example_works(use_lanes):
    with Engine(
        [EnvSpec.of(Walk, env_id=i, game=TEXT) for i in IDS], Settings(use_lanes=use_lanes, max_workers=2)
    ) as engine:
        observations = engine.reset({i: 100 + i for i in IDS})
        results = engine.play({i: Turn(("a",), 10) for i in IDS})
        assert [observations[i] for i in IDS] == [alone(i, 0)[0] for i in IDS]
        assert [results[i].observation for i in IDS] == [alone(i, 1)[1] for i in IDS]
    with pytest.raises(StateError, match="closed"):
        engine.reset()


def test_any_subset_may_be_reset_and_played_at_any_time(make):
    engine = make(specs())
    engine.reset(seeds())
    engine.play(turns([0, 2]))
    engine.play(turns([2]))
    assert engine.reset({2: 107}) == {2: alone(7, 0)[0]}
    kill(engine)
    results = engine.play(turns())
    shown = [results[env_id].observation for env_id in IDS]
    assert shown == [alone(0, 2)[2], alone(1, 1)[1], alone(7, 1)[1], alone(3, 1)[1]]
    assert engine.play({}) == {}


def test_an_environment_that_failed_stands_where_its_result_would_until_it_is_reset(make):
    engine = make([*specs(ids=[0, 1]), EnvSpec.of(Faulty, FaultConfig("raises", "turn 0"), 2, game=TEXT)])
    engine.reset(seeds([0, 1, 2]))
    for _ in range(2):
        results = engine.play(turns([0, 1, 2]))
        assert [type(results[env_id]) for env_id in (0, 1, 2)] == [TurnResult, TurnResult, EnvFailed]
        failed = results[2]
        assert (failed.text, failed.phase) == ("ValueError: boom", "play")
        assert isinstance(failed.error, EnvError) and isinstance(failed.error.__cause__, ValueError)
        assert "env 2 (tag 'Faulty'" in str(failed.error) and "at turn 1" in str(failed.error)
    answers = engine.call([1, 2], "render")
    assert answers[1] == alone(1, 2)[2]
    assert answers[2] is failed.error
    assert engine.reset({2: 100}) == {2: alone(0, 0)[0]}
    assert engine.call([2], "render") == {2: alone(0, 0)[0]}


# Environments that come and go


def test_one_that_comes_later_plays_beside_the_others(make):
    engine = make(max_workers=1)
    engine.add(specs(ids=[1])[0], worker=0)
    engine.add(specs(ids=[2])[0])
    assert engine.reset(dict.fromkeys([1, 2], 7)) == dict.fromkeys([1, 2], Walk().reset(seed=7))
    first = engine.play(turns([1]))[1]
    engine.add(specs(ids=[3])[0], worker=0)
    engine.reset({3: 7})
    results = engine.play(turns([3, 2]))
    assert results[3].observation == results[2].observation == first.observation
    assert homes(engine) == {"main": 1, "worker 0": 2}


def test_one_that_goes_is_closed_and_forgotten_and_its_id_is_free_again(make):
    engine = make(max_workers=1)
    (spec,) = specs(ids=[1])
    engine.add(spec, worker=0)
    engine.reset({1: 7})
    with pytest.raises(StateError, match=r"env 1 .* was added twice"):
        engine.add(spec)
    engine.remove([1, 99])
    assert homes(engine) == {}
    with pytest.raises(InputError, match="this engine has no environment 1"):
        engine.play(turns([1]))
    engine.add(spec)
    engine.reset({1: 7})
    assert homes(engine) == {"main": 1}


@in_lanes
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGABRT])
def test_a_worker_that_dies_between_calls_keeps_its_environments(make, end):
    engine = make(max_workers=1, max_restarts=2)
    for env_id in (1, 2):
        engine.add(specs(ids=[env_id])[0], worker=0)
    engine.reset({1: 107, 2: 107})
    for turn in range(1, 5):
        kill(engine, end)
        assert engine.play(turns([1]))[1].observation == alone(7, turn)[turn]
        assert engine.home(1) == "worker 0"
    engine.reset({1: 107})  # one by one
    assert engine.play(turns([1]))[1].observation == alone(7, 1)[1]


# What is changed between turns


def play_board(engine, disturb):
    """An episode and a half in which items are set and pushed; all that was seen."""
    given = [1, 2]
    seen: list[Any] = [engine.set_attr([0, 1], "given", given)]  # before the first reset
    given.append(1000)
    disturb()
    engine.reset(seeds())
    seen.append(engine.play(turns()))
    seen.append(engine.call([1, 2], "push", 10))
    disturb()
    seen.append(engine.play(turns()))
    pushed = [5]
    seen.append(engine.set_attr([3], "items", pushed))
    pushed.append(1000)
    seen.append(engine.play(turns()))
    engine.reset(seeds([0, 3]))
    disturb()
    seen.append(engine.play(turns()))
    seen.append(engine.read(IDS, "items"))
    seen.append({env_id: str(error) for env_id, error in engine.call([2], "push").items()})
    return seen


@in_lanes
def test_changes_are_part_of_the_episode_and_attributes_outlive_resets(make):
    with Engine(specs(Board), Settings(use_lanes=False)) as engine:
        expected = play_board(engine, lambda: None)
    assert [result.reward for result in expected[1].values()] == [1 + 2 + 1, 1 + 2 + 1, 1, 1]
    assert expected[2] == {1: 4, 2: 2}
    assert "raised TypeError" in expected[-1][2]
    undisturbed, killed = make(specs(Board), max_restarts=20), make(specs(Board), max_restarts=20)
    assert play_board(undisturbed, lambda: None) == expected
    assert play_board(killed, lambda: kill(killed)) == expected


# Episodes without a seed


def play_unseeded(engine, disturb):
    seen: list[Any] = [engine.reset(seeds())]
    for _ in range(2):
        seen.append(engine.play(turns()))
        seen.append(engine.reset())
        seen.append(engine.play(turns()))
        disturb()
    seen.append(engine.play(turns()))
    return seen


@in_lanes
def test_episodes_without_a_seed_go_on_with_the_global_generators_and_are_rebuilt(make):
    with Engine(specs(GlobalDraws), Settings(use_lanes=False)) as engine:
        expected = play_unseeded(engine, lambda: None)
    killed = make(specs(GlobalDraws))
    got = play_unseeded(killed, lambda: kill(killed))
    assert got == expected
    assert len({str(seen) for seen in got}) == len(got)


# Threads


def test_threads_play_disjoint_environments_of_one_engine_at_once(make):
    engine = make(specs(ids=range(8)), max_restarts=50)
    engine.reset(seeds(range(8)))
    failures: list[BaseException] = []

    def live(mine):
        try:
            for _ in range(5):
                engine.reset(mine)
                for turn in range(1, 4):
                    results = engine.play(turns(mine))
                    shown = {env_id: result.observation for env_id, result in results.items()}
                    assert shown == {env_id: alone(env_id, turn)[turn] for env_id in mine}
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=live, args=[seeds(ids)]) for ids in ([0, 1, 2], [3, 4], [5, 6, 7])]
    for thread in threads:
        thread.start()
    for _ in range(5):
        until(lambda: False, 0.1)
        kill(engine)
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.parametrize("make", ["process", "main"], indirect=True)
def test_an_environment_that_another_thread_uses_is_told(make):
    engine = make(specs(Takes))
    engine.reset(seeds())
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(engine.play(turns([0, 1]))))
    thread.start()
    assert until(lambda: not engine.records[0].in_sync)
    with pytest.raises(StateError, match=r"env 1 is in use by another thread"):
        engine.play(turns([3, 1]))
    with pytest.raises(StateError, match=r"env 0 is in use by another thread"):
        engine.reset(seeds())
    assert list(engine.play(turns([2, 3]))) == [2, 3]
    thread.join()
    assert [type(result) for result in results[0].values()] == [TurnResult] * 2
    assert list(engine.play(turns())) == list(IDS)


# Misuse


def test_misuse_is_told(make):
    engine = make(specs())
    with pytest.raises(StateError, match="env 0 has not been reset"):
        engine.play(turns())
    engine.reset(seeds())
    with pytest.raises(InputError, match="this engine has no environment 9"):
        engine.play({**turns(), 9: TURN})
    with pytest.raises(InputError, match="this engine has no environment 'x'"):
        engine.reset({"x": 1})  # type: ignore[dict-item]
    with pytest.raises(StateError, match=r"env 0 .* was added twice"):
        Engine([*specs(), *specs()])
    assert [type(result) for result in engine.play(turns()).values()] == [TurnResult] * 4
    engine.close()
    engine.close()
    for call in (engine.reset, lambda: engine.play(turns()), lambda: engine.call([0], "render")):
        with pytest.raises(StateError, match="closed"):
            call()
