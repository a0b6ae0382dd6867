"""A kind of lane written outside the package, whose workers tell no position."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.parallel import EnvSpec, kinds
from ragen.parallel.episode.host import ResetOrder
from ragen.parallel.episode.turn import Turn, TurnResult
from ragen.parallel.lanes.exchange import Answer, Reply, ask
from ragen.parallel.lanes.failure import Cause, LaneFailure
from ragen.parallel.lanes.lane import Lane, Request
from ragen.parallel.lanes.orders import Order, Play, Rebuild, Reset
from support.episodes import config, errors, freeze, play, sequential
from support.faulty_envs import FaultConfig, Faulty
from support.own_lane_kind import SubprocessKind

ENVS = 4
TURN = Turn(("a",), 9)


@pytest.fixture
def lane() -> Iterator[Lane]:
    kind = SubprocessKind()
    made = Lane("worker 0", kind)
    yield made
    made.end()
    kind.close()


def answer(lane: Lane, order: Order, **limits: float) -> Reply:
    """What comes of an order."""
    given = {"timeout": 20.0, **limits}
    generation = None if isinstance(order, Rebuild) else lane.current
    return ask({lane: Request(1, order, given["timeout"], generation=generation)})[lane]


def values(reply: Reply) -> list[Any]:
    assert isinstance(reply, Answer), reply
    return [outcome.value for outcome in reply.outcomes]


def load(lane: Lane) -> None:
    """Environments, loaded and reset."""
    specs = [EnvSpec.of(Faulty, FaultConfig("nothing", "never"), env_id) for env_id in range(ENVS)]
    assert values(answer(lane, Rebuild.of(specs, []))) == [None] * ENVS
    assert len(values(answer(lane, Reset([ResetOrder(env_id, 7) for env_id in range(ENVS)])))) == ENVS


def test_turns_come_back_as_one_reply(lane: Lane) -> None:
    load(lane)
    results = values(answer(lane, Play([(env_id, TURN) for env_id in range(ENVS)])))
    assert [type(result) for result in results] == [TurnResult] * ENVS
    assert len({result.observation for result in results}) == 1  # all have the same seed


def test_of_several_items_in_one_message_none_is_blamed_and_each_has_its_time(lane: Lane) -> None:
    specs = [EnvSpec.of(Faulty, FaultConfig("is slow", "reset"), env_id) for env_id in range(ENVS)]
    assert values(answer(lane, Rebuild.of(specs, []))) == [None] * ENVS
    orders = Reset([ResetOrder(env_id, env_id) for env_id in range(ENVS)])  # 0.3 s each
    assert len(values(answer(lane, orders, timeout=0.8))) == ENVS
    lost = answer(lane, orders, timeout=0.1)
    assert isinstance(lost, LaneFailure)
    assert (lost.cause, lost.index, lost.seconds) == (Cause.TIMEOUT, None, pytest.approx(0.4))


# Under an engine

WALK = {"env_type": "support.faulty_envs:Walk"}


@pytest.fixture
def own_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_new_kind", lambda *_: SubprocessKind())


def faulty(fault: str, place: str, **settings: Any) -> dict[str, Any]:
    fields = {"fault": fault, "place": place}
    tags = {"Walk": WALK, "Faulty": {"env_type": "support.faulty_envs:Faulty", "env_config": fields}}
    groups = [("Walk", 1), ("Faulty", 1), ("Walk", 2)]
    return config(tags, groups, use_multiprocessing=True, max_workers=1, **settings)


@pytest.mark.usefixtures("own_kind")
def test_rollouts_are_equal_though_workers_are_killed(kill_lanes: Callable[[EnvStateManager], None]) -> None:
    settings = faulty("nothing", "never")
    with EnvStateManager(settings) as manager:
        rollouts = play(manager, 4, lambda turn: kill_lanes(manager) if turn % 2 else None)
        assert manager.lane_stats()[0].envs == 0
    assert freeze(rollouts) == sequential(settings)[0]


@pytest.mark.usefixtures("own_kind")
@pytest.mark.parametrize(
    ("fault", "place", "told"),
    [
        ("exits", "turn 1", [None, "its process exited with code 3"]),
        ("exits", "load", ["its process exited with code 3"]),
        ("sleeps", "turn 1", [None, "timed out after 0.5 s"]),
    ],
)
def test_a_fault_costs_its_own_environment_at_most(
    fault: str, place: str, told: list[str | None], caplog: pytest.LogCaptureFixture
) -> None:
    patience = {"step_timeout": 0.5, "reset_timeout": 0.5} if fault == "sleeps" else {}
    with (
        caplog.at_level(logging.CRITICAL),
        EnvStateManager(faulty(fault, place, max_restarts=0, **patience)) as manager,
    ):
        rollouts = freeze(play(manager, 3))
    honest = sequential(faulty("nothing", "never"), 3)[0]
    assert errors(rollouts[1]) == told
    assert [rollouts[i] for i in (0, 2, 3)] == [honest[i] for i in (0, 2, 3)]


@pytest.mark.usefixtures("own_kind")
def test_a_worker_that_is_killed_in_mid_turn_is_replaced() -> None:
    settings = faulty("is slow", "turn 1")
    with EnvStateManager(settings) as manager:

        def kill(turn: int) -> None:
            if turn == 1:
                pid = manager.lane_stats()[1].pid
                assert pid is not None
                os.kill(pid, signal.SIGSTOP)  # and so it is in the middle of the turn when it is killed
                os.kill(pid, signal.SIGKILL)

        assert freeze(play(manager, 3, kill)) == sequential(settings, 3)[0]


OWN = "support.own_lane_kind:SubprocessKind"


def test_a_manager_takes_a_kind_by_its_path() -> None:
    tags = {"Walk": {"env_type": "support.faulty_envs:Walk"}}
    settings = {"use_multiprocessing": True, "max_workers": 2}
    reference = sequential(config(tags, [("Walk", 4)], **settings), 3)
    with EnvStateManager(config(tags, [("Walk", 4)], **settings, backend=OWN)) as manager:
        assert freeze(play(manager, 3)) == reference[0]
        assert {manager.home(env_id) for env_id in range(4)} == {"worker 0", "worker 1"}


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        ("no.such.module:Kind", "cannot be imported: ModuleNotFoundError"),
        ("support.own_lane_kind:SubprocessHandle", "cannot be loaded: TypeError"),
        ("support.faulty_envs:FaultConfig", "is not a ragen.parallel.lanes.handle.LaneKind"),
        ("thread", "expected one of 'process', 'executor', 'ray'"),
    ],
)
def test_what_is_no_kind_is_told(backend: str, told: str) -> None:
    tags = {"Walk": {"env_type": "support.faulty_envs:Walk"}}
    with pytest.raises(ConfigError, match=told):
        EnvStateManager(config(tags, [("Walk", 4)], use_multiprocessing=True, backend=backend)).close()
