"""Environments that come and go one by one while an engine plays, as in an environment service."""

from __future__ import annotations

import os
import signal

import pytest

from ragen.errors import StateError
from ragen.parallel.engine import Engine, EngineSettings
from ragen.parallel.host import ResetOrder
from ragen.parallel.residents import GivenUp
from ragen.parallel.sharded import ShardedEngine
from ragen.parallel.turn import EnvSpec, TurnRequest
from support.faulty_envs import FaultConfig, Faulty, Walk
from support.leftovers import until

SETTINGS = EngineSettings(step_timeout=20, max_workers=1, max_restarts=2)


def spec(env_id, env_class=Walk, config=None):
    return EnvSpec(env_id, 0, env_class.__name__, f"support.faulty_envs:{env_class.__name__}", env_class, config)


@pytest.fixture
def engine():
    engine = Engine([], SETTINGS)
    yield engine
    engine.close()


def begin(engine, env_id, home=None, **kind):
    engine.add(spec(env_id, **kind), home)
    return engine.reset([ResetOrder(env_id, 7, None)])[0]


def step(engine, env_id, turn):
    request = TurnRequest(env_id, turn, ("a",), 9)
    (result,) = engine.play([request])
    if not isinstance(result, GivenUp):
        engine.commit(request, result)
    return result


def homes(engine):
    return {stats.lane: stats.envs for stats in engine.stats() if stats.envs}


def kill(lane):
    pid = lane.pid
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: "\nState:\tZ" in _status(pid) or not _status(pid))


def _status(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            return file.read()
    except OSError:
        return ""


def test_one_that_comes_later_plays_beside_the_others(engine):
    (lane,) = engine.lanes(1)
    assert begin(engine, 1, lane) == begin(engine, 2)
    first = step(engine, 1, 0)
    begin(engine, 3, lane)
    assert step(engine, 3, 0).observation == step(engine, 2, 0).observation == first.observation
    assert homes(engine) == {"main": 1, "lane 0": 2}


def test_one_that_goes_is_closed_and_forgotten_and_its_id_is_free_again(engine):
    (lane,) = engine.lanes(1)
    begin(engine, 1, lane)
    with pytest.raises(StateError, match=r"env 1 .* was added twice"):
        engine.add(spec(1))
    engine.remove([1, 99])
    assert homes(engine) == {}
    begin(engine, 1)
    assert homes(engine) == {"main": 1}


def test_the_others_play_on_after_a_death_and_an_episode_that_came_through_pays_a_restart_back(engine):
    (lane,) = engine.lanes(1)
    begin(engine, 1, lane)
    for number in range(2, 7):
        begin(engine, number, lane)
        kill(lane)
        assert step(engine, number, 0).info
        engine.remove([number])
    assert homes(engine) == {"lane 0": 1}
    assert step(engine, 1, 0).info


def test_a_lane_of_which_nothing_comes_through_is_given_up_for_those_that_are_there(engine):
    (lane,) = engine.lanes(1)
    begin(engine, 1, lane)
    for turn in range(3):
        kill(lane)
        assert step(engine, 1, turn).info
    assert homes(engine) == {"main": 1}


def test_a_suspect_that_goes_takes_its_quarantine_lane_with_it(engine):
    (lane,) = engine.lanes(1)
    begin(engine, 1, lane, env_class=Faulty, config=FaultConfig("is killed", "turn 0"))
    assert isinstance(step(engine, 1, 0), GivenUp)
    begin(engine, 2, lane)
    engine.remove([1])
    assert not engine._quarantine
    assert step(engine, 2, 0).info


def test_environments_come_to_the_shard_of_their_group_and_go():
    specs = [EnvSpec(env_id, env_id // 2, "Walk", "support.faulty_envs:Walk", Walk, None) for env_id in range(8)]
    engine = ShardedEngine(specs[:4], SETTINGS, shards=2)
    try:
        lanes = engine.lanes(1)
        engine.add(specs[4], lanes[0])
        engine.add(specs[5], lanes[0])
        assert [{env_id // 2 for env_id in shard} for shard in engine.shards] == [{0, 2}, {1}]
        with pytest.raises(StateError, match="added twice"):
            engine.add(specs[5])
        shown = engine.reset([ResetOrder(env_id, 7, None) for env_id in range(6)])
        assert len(set(shown)) == 1
        assert not isinstance(step(engine, 4, 0), GivenUp)
        engine.remove([0, 4, 5, 99])
        assert [spec.env_id for spec in engine.specs()] == [1, 2, 3]
        assert homes(engine) == {"main": 3}
        assert engine.shards == [[1], [2, 3]]
    finally:
        engine.close()
