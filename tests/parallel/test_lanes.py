"""Lanes, exchanges and the pool, below the engine; for each kind of workers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from envlanes import EnvSpec
from envlanes.episode.host import ResetOrder
from envlanes.episode.journal import EpisodeJournal
from envlanes.episode.outcome import Raised
from envlanes.episode.turn import Turn, TurnResult
from envlanes.kinds import open_pool
from envlanes.lanes.exchange import Answer, Exchange, Reply, ask, locked
from envlanes.lanes.failure import Cause, LaneFailure
from envlanes.lanes.lane import Lane, Request
from envlanes.lanes.orders import Order, Play, Rebuild, Reset, Unload
from envlanes.lanes.pool import WorkerPool
from envlanes.settings import Settings
from ragen.llm_agent.es_manager import EnvStateManager
from support.episodes import config, play
from support.faulty_envs import FaultConfig, Faulty
from support.leftovers import is_over, until

USER = 10**6  # a number that no engine has
TURN = Turn(("a",), 9)


@pytest.fixture
def pool(backend: str) -> Iterator[WorkerPool]:
    """A pool that no manager uses."""
    pool = open_pool(USER, Settings(backend=backend), [])
    yield pool
    pool.leave(USER)


@pytest.fixture
def lane(pool: WorkerPool) -> Lane:
    """A lane with two environments, the second of which is slow at its turn 1."""
    (lane,) = pool.lanes(1)
    assert outcomes(tell(lane, Rebuild.of(specs("is slow", "turn 1"), []), None)) == [None, None]
    assert len(outcomes(tell(lane, Reset([ResetOrder(0, 7), ResetOrder(1, 7)])))) == 2
    return lane


def specs(fault: str, place: str) -> list[EnvSpec]:
    configs = FaultConfig(), FaultConfig(fault, place)
    return [EnvSpec.of(Faulty, each, env_id, tag=str(env_id)) for env_id, each in enumerate(configs)]


def request(order: Order, generation: int | None, timeout: float = 20.0, startup: float = 20.0) -> Request:
    return Request(USER, order, timeout, startup, generation)


def tell(lane: Lane, order: Order, generation: int | None = 1, timeout: float = 20.0, startup: float = 20.0) -> Reply:
    return ask({lane: request(order, generation, timeout, startup)})[lane]


def outcomes(reply: Reply) -> list[Any]:
    assert isinstance(reply, Answer), reply
    return [outcome.value for outcome in reply.outcomes]


def test_a_lane_that_cannot_be_ended_keeps_no_other_from_it(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, end, ended = pool.lanes(3), Lane.end, []

    def end_badly(lane: Lane) -> Any:
        ended.append(end(lane))
        if len(ended) == 1:
            raise RuntimeError("cannot be ended")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="cannot be ended"), Exchange() as exchange:
        patch.setattr(Lane, "end", end_badly)
        exchange.claim(lanes)
        exchange.send({lane: request(Unload([(0, None)]), None) for lane in lanes})
        raise InterruptedError
    assert [lane.handle for lane in lanes] == [None] * 3


def test_what_interrupts_one_s_own_share_ends_the_lanes_that_have_not_answered(lane: Lane) -> None:
    with pytest.raises(ZeroDivisionError), Exchange() as exchange:
        exchange.claim([lane])
        exchange.send({lane: request(Play([(0, TURN)]), 1)})
        raise ZeroDivisionError
    assert lane.handle is None
    with locked([lane]):  # and nobody holds it
        lane.start()
    assert (lane.current, lane.generation) == (2, 2)


def test_a_request_for_a_worker_that_is_no_more_is_not_sent(lane: Lane) -> None:
    lost = tell(lane, Play([(0, TURN)]), 7)
    assert isinstance(lost, LaneFailure) and lost.cause is Cause.REPLACED
    assert lane.current == 1


def test_what_cannot_be_pickled_is_told_and_costs_no_worker(lane: Lane) -> None:
    order = Play([(0, (threading.Lock(),)), (1, TURN)])
    (raised,) = outcomes(tell(lane, order))
    assert isinstance(raised, Raised) and raised.phase == "send" and "cannot pickle" in raised.text
    assert type(outcomes(tell(lane, Play([(0, TURN)])))[0]) is TurnResult


def test_a_death_between_requests_and_one_within_are_told_apart(lane: Lane) -> None:
    pid = lane.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: is_over(pid))
    lost = tell(lane, Play([(0, TURN), (1, TURN)]))
    assert isinstance(lost, LaneFailure)
    assert (lost.cause, lost.index, lost.ending.status) == (Cause.DIED, None, -signal.SIGKILL)
    assert lost.ending.where == f"pid {pid}"


def test_a_deadline_is_that_of_the_item_though_one_before_had_more_time(pool: WorkerPool) -> None:
    """A class may take its time to be loaded; the replay that comes after it in the same request may not."""
    (lane,) = pool.lanes(1)
    journal = EpisodeJournal(seed=7, has_begun=True)
    order = Rebuild.of(specs("sleeps", "reset"), [(0, journal), (1, journal)])
    lost = tell(lane, order, None, timeout=0.5, startup=3600.0)  # which no test is given
    assert isinstance(lost, LaneFailure)
    assert (lost.cause, lost.index, lost.seconds) == (Cause.TIMEOUT, 3, 0.5)
    assert "in reset" in lost.stacks


def test_environments_of_a_manager_that_left_are_closed_and_a_worker_lost_over_it_is_told(
    caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    tags = {"Faulty": {"env_type": "support.faulty_envs:Faulty", "env_config": {"fault": "exits", "place": "close"}}}
    honest = {"Walk": {"env_type": "support.faulty_envs:Walk"}}
    with EnvStateManager(config(honest, [("Walk", 2)], use_multiprocessing=True)) as stays:
        with EnvStateManager(config(tags, [("Faulty", 1)], use_multiprocessing=True)) as leaves:
            leaves.reset()
        assert "exited with code 3, closing environments of a manager that is gone" in caplog.text
        play(stays, 1)
