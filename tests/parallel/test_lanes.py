"""Lanes and their pool, below the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ragen.llm_agent.es_manager import EnvStateManager
from ragen.parallel.pool import Lane, Message, WorkerPool, exchange
from support.episodes import config, play


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """A pool that no manager uses."""
    pool = WorkerPool("forkserver", [])
    yield pool
    pool.close()


def test_a_lane_that_cannot_be_ended_keeps_no_other_from_it(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, end, ended = pool.lanes(3), Lane.end, []

    def end_badly(lane: Lane) -> Any:
        ended.append(end(lane))
        if len(ended) == 1:
            raise RuntimeError("cannot be ended")

    def interrupt() -> None:
        raise InterruptedError

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="cannot be ended"):
        patch.setattr(Lane, "end", end_badly)
        exchange({lane: Message(0, "forget", None, 60) for lane in lanes}, interrupt)
    assert not any(lane.has_worker for lane in lanes)


def test_a_worker_lost_over_the_environments_of_a_manager_that_left_is_told(caplog: pytest.LogCaptureFixture) -> None:
    tags = {"Evil": {"env_type": "support.faulty_envs:Faulty", "env_config": {"fault": "exits", "place": "close"}}}
    honest = {"Walk": {"env_type": "support.faulty_envs:Walk"}}
    with EnvStateManager(config(honest, [("Walk", 2)], use_multiprocessing=True)) as stays:
        with EnvStateManager(config(tags, [("Evil", 1)], use_multiprocessing=True)) as leaves:
            leaves.reset()
        assert "exited with code 3, closing environments of a manager that is gone" in caplog.text
        play(stays, 1)
