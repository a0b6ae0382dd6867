"""The table of misdeeds and places: what the user gets, and that every other environment gets what it always gets."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen.errors import EnvError, LaneDiedError, LaneError, LaneTimeoutError, RagenError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.parallel import system
from support.episodes import config, errors, freeze, play, sequential
from support.leftovers import processes, until

EVIL = 2  # env_id of the evil one, between good ones of the same lanes
TURNS = 4
EQUAL = "equal"
IMPATIENT = {"step_timeout": 0.6, "reset_timeout": 0.6}

TIMED_OUT = r"timed out after (0\.6|2) s"
EXITED = r"its process exited with code 3"
KILLED = r"its process was killed by SIGKILL"
BOOM = r"ValueError: boom"

# what happens always, at this place: the turn whose info tells (0: the first after the reset), and what it says
TABLE: dict[tuple[str, str], tuple[int, str] | str] = {
    ("sleeps", "load"): (0, TIMED_OUT),
    ("sleeps", "init"): (0, TIMED_OUT),
    ("sleeps", "reset"): (0, TIMED_OUT),
    ("sleeps", "turn 0"): (0, TIMED_OUT),
    ("sleeps", "turn 2"): (2, TIMED_OUT),
    ("sleeps", "render"): (0, TIMED_OUT),
    ("loops", "turn 1"): (1, TIMED_OUT),
    ("deadlocks", "turn 1"): (1, TIMED_OUT),
    ("stops", "turn 1"): (1, TIMED_OUT),
    ("exits", "load"): (0, EXITED),
    ("exits", "init"): (0, EXITED),
    ("exits", "reset"): (0, EXITED),
    ("exits", "turn 0"): (0, EXITED),
    ("exits", "turn 2"): (2, EXITED),
    ("exits", "render"): (0, EXITED),
    ("exits", "close"): EQUAL,
    ("is killed", "load"): (0, KILLED),
    ("is killed", "init"): (0, KILLED),
    ("is killed", "reset"): (0, KILLED),
    ("is killed", "turn 0"): (0, KILLED),
    ("is killed", "turn 2"): (2, KILLED),
    ("is killed", "render"): (0, KILLED),
    ("is killed", "close"): EQUAL,
    ("crashes", "turn 1"): (1, "its process was killed by SIGSEGV"),
    ("is terminated", "turn 1"): (1, "its process was killed by SIGTERM"),
    ("interrupts", "turn 1"): (1, "Interrupt: nobody catches this"),
    ("interrupts", "reset"): (0, "Interrupt: nobody catches this"),
    ("interrupts", "load"): EQUAL,
    ("interrupts", "close"): EQUAL,
    ("raises ctrl-c", "turn 1"): (1, "KeyboardInterrupt: of my own"),
    ("cancels", "turn 2"): (2, "CancelledError: cancelled"),
    ("leaves generator", "turn 2"): (2, "GeneratorExit: "),
    ("eats memory", "turn 1"): (1, "MemoryError|ReachedMain"),
    ("closes files", "turn 1"): (1, f"its process exited|{KILLED}"),  # whichever comes first, its end or ours
    ("raises", "load"): EQUAL,  # it only cannot work in a worker
    ("raises", "reset"): (0, BOOM),
    ("raises", "turn 0"): (0, BOOM),
    ("raises", "turn 2"): (2, BOOM),
    ("raises", "render"): (0, BOOM),
    ("raises", "close"): EQUAL,
    ("leaves", "reset"): (0, "SystemExit: 4"),
    ("leaves", "turn 2"): (2, "SystemExit: 4"),
    ("leaves", "close"): EQUAL,
    ("raises oddly", "turn 1"): (1, "OddError"),
    ("returns unpicklable", "turn 1"): EQUAL,
    ("returns unloadable", "turn 1"): EQUAL,
    ("returns much", "turn 1"): EQUAL,
    ("is slow", "init"): EQUAL,
    ("is slow", "turn 1"): EQUAL,
    ("leaves threads", "turn 1"): EQUAL,
    ("leaves children", "init"): EQUAL,
    ("leaves children", "turn 1"): EQUAL,
    ("returns twice", "turn 1"): EQUAL,
    ("returns twice", "init"): EQUAL,
    ("prints much", "turn 1"): EQUAL,
    ("changes process", "turn 1"): EQUAL,
    ("closes standard files", "turn 1"): EQUAL,
}
HANGS = {"sleeps", "loops", "deadlocks", "stops"}


def evil(misdeed: str, place: str, once: str = "", lives: str = "", **es_manager: Any) -> dict[str, Any]:
    """Five environments, the one in the middle evil, on two lanes."""
    fields = {"fault": misdeed, "place": place, "once": once, "lives": lives}
    tags = {
        "Good": {"env_type": "support.faulty_envs:Walk"},
        "Evil": {"env_type": "support.faulty_envs:Faulty", "env_config": fields},
    }
    patience: dict[str, float] = IMPATIENT if misdeed in HANGS else {}
    if misdeed in HANGS and place == "load":
        patience = {"startup_timeout": 2.0}
    groups = [("Good", 2), ("Evil", 1), ("Good", 2)]
    return config(tags, groups, use_multiprocessing=True, **{**patience, **es_manager})


@pytest.fixture(scope="module")
def honest() -> list[dict[str, Any]]:
    """What all environments give where nothing is done wrong."""
    return sequential(evil("nothing", "never"), TURNS)[0]


def check(rollouts: list[dict[str, Any]], honest: list[dict[str, Any]], turn: int, says: str) -> None:
    """The evil environment is truncated at that turn, saying so; all else is as if it were not there."""
    for mine, theirs in zip(rollouts, honest, strict=True):
        if mine["env_id"] != EVIL:
            assert mine == theirs
    told = errors(rollouts[EVIL])
    assert told[:-1] == [None] * turn
    assert re.search(says, told[-1]), told
    if turn:
        assert rollouts[EVIL]["history"][: turn - 1] == honest[EVIL]["history"][: turn - 1]
    assert rollouts[EVIL]["metrics"]["Evil/success"] == 0.0


def without_handles(rollouts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rollouts without what the misdeeds added to an info."""
    for turn in rollouts[EVIL]["history"]:
        for key in ("handle", "frame"):
            turn.get("info", {}).pop(key, None)
    return rollouts


@pytest.mark.parametrize(("misdeed", "place"), TABLE)
def test_a_misdeed_that_is_always_done_costs_its_own_environment_at_most(
    misdeed: str, place: str, honest: list[dict[str, Any]]
) -> None:
    with EnvStateManager(evil(misdeed, place)) as manager:
        rollouts = freeze(play(manager, TURNS))
        after = freeze(play(manager, 1, seed=1)) if place.startswith("turn") and misdeed not in HANGS else None
    expected = TABLE[misdeed, place]
    if expected == EQUAL:
        assert without_handles(rollouts) == honest
    else:
        check(rollouts, honest, *expected)  # type: ignore[misc]
    assert after is None or all(errors(after[env_id]) == [None] for env_id in (0, 1, 3, 4))


ONCE = [
    (misdeed, place)
    for misdeed, place in TABLE
    if TABLE[misdeed, place] != EQUAL and (misdeed not in HANGS or place in ("turn 2", "load"))
]


@pytest.mark.parametrize(("misdeed", "place"), ONCE)
def test_a_misdeed_that_is_done_once_changes_nothing(
    misdeed: str, place: str, honest: list[dict[str, Any]], tmp_path: Path
) -> None:
    with EnvStateManager(evil(misdeed, place, once=str(tmp_path / "once"))) as manager:
        assert freeze(play(manager, TURNS)) == honest
    assert (tmp_path / "once").exists()


REPLAYS = {"sleeps": TIMED_OUT, "exits": EXITED, "is killed": KILLED, "raises": BOOM, "is slow": EQUAL}


@pytest.mark.parametrize("misdeed", REPLAYS)
def test_a_misdeed_in_the_replay_costs_its_own_environment_at_most(
    misdeed: str, honest: list[dict[str, Any]], tmp_path: Path, kill_lanes: Callable[[EnvStateManager], None]
) -> None:
    with EnvStateManager(evil(misdeed, "replay", lives=str(tmp_path / "lives"))) as manager:
        rollouts = freeze(play(manager, TURNS, lambda turn: kill_lanes(manager) if turn == 2 else None))
    if REPLAYS[misdeed] == EQUAL:
        assert rollouts == honest
    else:
        check(rollouts, honest, 2, REPLAYS[misdeed])


@pytest.mark.parametrize("misdeed", ["exits", "raises", "sleeps"])
def test_a_misdeed_in_one_replay_changes_nothing(
    misdeed: str, honest: list[dict[str, Any]], tmp_path: Path, kill_lanes: Callable[[EnvStateManager], None]
) -> None:
    fields = {"lives": str(tmp_path / "lives"), "once": str(tmp_path / "once")}
    with EnvStateManager(evil(misdeed, "replay", **fields)) as manager:
        assert freeze(play(manager, TURNS, lambda turn: kill_lanes(manager) if turn == 2 else None)) == honest
    assert (tmp_path / "once").exists()


@pytest.mark.parametrize("misdeed", ["raises", "leaves", "raises oddly"])
def test_an_environment_that_cannot_be_built_is_an_error_at_reset(misdeed: str) -> None:
    with EnvStateManager(evil(misdeed, "init")) as manager:
        with pytest.raises(EnvError, match=r"env 2 \(tag 'Evil', type 'support.faulty_envs:Faulty'\)"):
            manager.reset()
        assert manager.rollout_cache is None


WITHOUT_SECOND_CHANCE = [
    ("sleeps", "turn 1"),
    ("exits", "turn 1"),
    ("raises", "turn 1"),
    ("raises", "render"),
    ("exits", "reset"),
]


@pytest.mark.parametrize(("misdeed", "place"), WITHOUT_SECOND_CHANCE)
def test_with_truncate_there_is_no_second_chance(
    misdeed: str, place: str, honest: list[dict[str, Any]], tmp_path: Path
) -> None:
    patience = {"step_timeout": 2.0} if misdeed in HANGS else {}
    settings = {"on_env_failure": "truncate", **patience}
    with EnvStateManager(evil(misdeed, place, once=str(tmp_path / "once"), **settings)) as manager:
        rollouts = freeze(play(manager, TURNS))
    check(rollouts, honest, 1 if place == "turn 1" else 0, f"timed out after 2 s|{EXITED}|{BOOM}")


RAISED: dict[tuple[str, str], tuple[type[RagenError], str]] = {
    ("sleeps", "turn 2"): (LaneTimeoutError, r"turn 2.*timed out after 2 s.*lane \d.*pid \d+"),
    ("exits", "turn 2"): (LaneDiedError, r"turn 2.*exited with code 3.*lane \d.*pid \d+"),
    ("is killed", "turn 0"): (LaneDiedError, r"turn 0.*killed by SIGKILL.*pid \d+"),
    ("crashes", "turn 2"): (LaneDiedError, r"turn 2.*killed by SIGSEGV.*lane \d.*pid \d+"),
    ("exits", "reset"): (LaneDiedError, r"reset.*exited with code 3"),
    ("raises", "turn 2"): (EnvError, r"turn 2.*ValueError: boom"),
    ("raises", "reset"): (EnvError, r"reset.*ValueError: boom"),
    ("leaves", "turn 2"): (EnvError, r"turn 2.*SystemExit: 4"),
}


@pytest.mark.parametrize(("misdeed", "place"), RAISED)
def test_with_raise_the_error_names_environment_type_turn_and_cause(
    misdeed: str, place: str, honest: list[dict[str, Any]]
) -> None:
    patience = {"step_timeout": 2.0} if misdeed in HANGS else {}
    error, says = RAISED[misdeed, place]
    with EnvStateManager(evil(misdeed, place, on_env_failure="raise", **patience)) as manager:
        with pytest.raises(error, match=rf"env 2 \(tag 'Evil', type 'support.faulty_envs:Faulty'\).*{says}") as caught:
            play(manager, TURNS)
        if place.startswith("turn"):
            rollouts = freeze(manager.get_rollout_states())
            turn = int(place[-1]) + 1
            for env_id in (0, 1, 3, 4):
                assert rollouts[env_id]["history"][:turn] == honest[env_id]["history"][:turn]
    if error is EnvError:
        assert isinstance(caught.value.__cause__, ValueError | SystemExit)
        assert "faulty_envs.py" in str(caught.value.__cause__.__cause__)  # the traceback of the worker
    else:
        assert isinstance(caught.value, LaneError)


def test_with_raise_the_manager_can_be_reset_afterwards(honest: list[dict[str, Any]], tmp_path: Path) -> None:
    settings = {"once": str(tmp_path / "once"), "on_env_failure": "raise"}
    with EnvStateManager(evil("exits", "turn 1", **settings)) as manager:
        with pytest.raises(LaneDiedError):
            play(manager, TURNS)
        assert freeze(play(manager, TURNS, seed=1000)) == honest


def test_a_worker_that_dies_between_turns_again_and_again_harms_no_other_environment(
    honest: list[dict[str, Any]],
) -> None:
    with EnvStateManager(evil("exits", "thread")) as manager:
        rollouts = freeze(play(manager, TURNS, lambda turn: turn and until(lambda: False, 0.05)))
    assert [rollouts[i] for i in (0, 1, 3, 4)] == [honest[i] for i in (0, 1, 3, 4)]


def test_who_ends_its_worker_at_nobodys_turn_is_found_by_elimination_and_never_comes_to_main() -> None:
    homes: list[list[str]] = []
    settings = evil("exits", "thread", max_restarts=0, max_workers=1)
    settings["es_manager"]["train"]["env_configs"] = {"tags": ["Good", "Evil", "Good"], "n_groups": [1, 1, 3]}
    with EnvStateManager(settings) as manager:

        def wait(turn: int) -> None:
            homes.append([manager.home(env_id).partition(" ")[0] for env_id in range(5)])
            if turn > 1:
                until(lambda: False, 0.2)

        rollouts = freeze(play(manager, 6, wait))
    expected = sequential(settings, 6)[0]
    assert [rollouts[i] for i in (0, 2, 3, 4)] == [expected[i] for i in (0, 2, 3, 4)]
    suspected = [[env_id for env_id in range(5) if home[env_id] != "lane"] for home in homes]
    assert suspected[:5] == [[], [], [], [0], [1]]
    assert {home for homes_then in homes for home in homes_then} == {"lane", "quarantine"}


def test_what_a_killed_worker_left_running_is_ended_with_it() -> None:
    with EnvStateManager(evil("leaves children", "init")) as manager:
        manager.reset()
        pid = next(lane.pid for lane in manager.lane_stats() if "support.faulty_envs:Faulty" in lane.env_types)
        assert until(lambda: len(left_behind(manager)) == 5)
        os.kill(pid, signal.SIGKILL)  # from outside, so that nobody could look at its family before
        assert until(lambda: len(left_behind(manager)) <= 1)  # one hides: a session and an environment of its own


def left_behind(manager: EnvStateManager) -> list[int]:
    """Processes that are neither the warden nor workers."""
    known = {lane.pid for lane in manager.lane_stats()}
    return [pid for pid, title in processes().items() if pid not in known and not title.startswith("ragen warden")]


def test_a_missed_deadline_leaves_nothing_of_its_worker_running(tmp_path: Path) -> None:
    fields = {"fault": "leaves children and sleeps", "place": "turn 1", "once": str(tmp_path / "once")}
    tags = {"Evil": {"env_type": "support.faulty_envs:Faulty", "env_config": fields}}
    settings = config(tags, [("Evil", 2)], use_multiprocessing=True, step_timeout=1.0)
    with EnvStateManager(settings) as manager:
        assert errors(play(manager, 3)[0]) == [None] * 3
        assert until(lambda: not left_behind(manager))
    assert (tmp_path / "once").exists()


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
@pytest.mark.parametrize(
    ("misdeed", "place"), [("sleeps", "turn 2"), ("exits", "turn 2"), ("is killed", "reset"), ("raises", "turn 0")]
)
def test_other_start_methods_survive_the_same(
    misdeed: str, place: str, start_method: str, honest: list[dict[str, Any]]
) -> None:
    patience = {"step_timeout": 1.5} if misdeed in HANGS else {}
    settings = {"start_method": start_method, "startup_timeout": 60, "reset_timeout": 60, **patience}
    with EnvStateManager(evil(misdeed, place, **settings)) as manager:
        rollouts = freeze(play(manager, TURNS))
    turn, says = TABLE[misdeed, place]
    check(rollouts, honest, turn, "timed out after 1.5 s" if misdeed in HANGS else str(says))


@pytest.mark.parametrize("start_method", ["forkserver", "spawn", "fork"])
def test_the_end_of_a_worker_is_seen_though_its_children_live_on(
    start_method: str, honest: list[dict[str, Any]]
) -> None:
    settings = evil("leaves children and exits", "turn 0", start_method=start_method, step_timeout=5)
    with EnvStateManager(settings) as manager:
        check(freeze(play(manager, TURNS)), honest, 0, "its process exited with code 3")
        assert until(lambda: not left_behind(manager))


def test_a_fork_made_while_a_worker_starts_does_not_hide_the_workers_end(
    honest: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragen.parallel.launcher import Launcher

    start, forks = Launcher.start, []

    def start_beside_a_fork(launcher: Launcher, token: str, lane: str, descriptors: list[int]) -> None:
        forks.append(system.Fork(signal.pause))  # as another thread may do at any time
        start(launcher, token, lane, descriptors)

    monkeypatch.setattr(Launcher, "start", start_beside_a_fork)
    try:
        with EnvStateManager(evil("exits", "turn 2", step_timeout=5)) as manager:
            check(freeze(play(manager, TURNS)), honest, 2, "its process exited with code 3")
    finally:
        for fork in forks:
            fork.kill()
            fork.wait()
    assert forks


@pytest.mark.parametrize("misdeed", ["raises", "leaves", "interrupts", "cancels", "leaves generator"])
def test_whatever_is_raised_gives_the_same_in_main_as_in_workers(misdeed: str) -> None:
    settings = evil(misdeed, "turn 1")
    with EnvStateManager(settings) as manager:
        assert freeze(play(manager, TURNS)) == sequential(settings, TURNS)[0]
        assert all(lane.restarts == 0 for lane in manager.lane_stats())


@pytest.mark.parametrize(("misdeed", "says"), [("sleeps", "timed out after 2 s"), ("exits", EXITED)])
@pytest.mark.parametrize(("on_env_failure", "tries"), [("fallback", 2), ("truncate", 1)])
def test_a_class_that_does_not_load_costs_each_lane_its_tries_and_not_each_environment(
    misdeed: str, says: str, on_env_failure: str, tries: int, honest: list[dict[str, Any]]
) -> None:
    settings = evil(misdeed, "load", startup_timeout=2.0, on_env_failure=on_env_failure)
    settings["es_manager"]["train"].update(env_groups=12, env_configs={"tags": ["Good", "Evil"], "n_groups": [4, 8]})
    with EnvStateManager(settings) as manager:
        rollouts = freeze(play(manager, TURNS))
        assert [lane.restarts for lane in manager.lane_stats()] == [0, tries, tries]  # main, and two lanes
    assert rollouts[:2] == honest[:2]
    assert all(errors(rollout)[-1] is None for rollout in rollouts[:4])
    assert all(re.search(says, str(errors(rollout))) for rollout in rollouts[4:])


def test_an_environment_that_differs_at_every_replay_is_told_and_truncated(
    caplog: pytest.LogCaptureFixture, kill_lanes: Callable[[EnvStateManager], None]
) -> None:
    tags = {"Good": {"env_type": "support.faulty_envs:Walk"}, "Clock": {"env_type": "support.faulty_envs:Clock"}}
    settings = config(tags, [("Good", 2), ("Clock", 1), ("Good", 2)], use_multiprocessing=True)
    reference = sequential(settings, TURNS)[0]
    with caplog.at_level(logging.WARNING), EnvStateManager(settings) as manager:
        rollouts = freeze(play(manager, TURNS, lambda turn: kill_lanes(manager) if turn == 2 else None))
    assert [rollouts[i] for i in (0, 1, 3, 4)] == [reference[i] for i in (0, 1, 3, 4)]
    assert errors(rollouts[2])[:2] == [None, None]
    assert "does not replay: at the reset the observation was 'at" in str(errors(rollouts[2])[2])
    assert "is not deterministic" in caplog.text
    assert "env 2 (tag 'Clock', type 'support.faulty_envs:Clock')" in caplog.text


def test_a_worker_that_cannot_start_is_told_and_its_environments_are_played_in_main(
    honest: list[dict[str, Any]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragen.parallel import warden

    monkeypatch.setattr(warden, "command_line", lambda module, arguments: ["/bin/sh", "-c", "exit 7"])
    with caplog.at_level(logging.WARNING), EnvStateManager(evil("nothing", "never")) as manager:
        assert freeze(play(manager, TURNS)) == honest
        assert all(lane.envs == 0 for lane in manager.lane_stats() if lane.lane != "main")
    assert "exited with code 7" in caplog.text


NO_START = "the lanes' workers do not start"
WAITS = [f"{n} episode{'s' * (n > 1)}" for n in (*range(4, 0, -1), *range(8, 0, -1), *range(16, 12, -1))]


def test_workers_that_never_start_are_told_once_and_tried_again_ever_more_seldom(
    honest: list[dict[str, Any]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragen.parallel import warden

    tries = []
    with EnvStateManager(evil("nothing", "never", max_restarts=1)) as manager, monkeypatch.context() as patch:
        assert freeze(play(manager, TURNS)) == honest
        patch.setattr(warden, "command_line", lambda module, arguments: ["/bin/sh", "-c", "exit 7"])
        for pid in [pid for pid, title in processes().items() if title.startswith("ragen warden")]:
            os.kill(pid, signal.SIGKILL)
        assert until(lambda: not any(title.startswith("ragen ") for title in processes().values()))
        for episode in range(16):
            assert freeze(play(manager, TURNS, seed=1000)) == honest
            assert set(manager.placement().values()) == {f"in main: {NO_START}, tried again in {WAITS[episode]}"}
            tries.append(sum(lane.restarts for lane in manager.lane_stats()))
        patch.undo()
        while manager.lane_stats()[0].envs:
            assert freeze(play(manager, TURNS, seed=1000)) == honest
            assert len(tries) < 100
            tries.append(0)
    failed = [episode for episode in range(1, 16) if tries[episode] > tries[episode - 1]]
    assert failed == [4, 12]
    assert len(tries) < 40
    said = [record.getMessage() for record in caplog.records]
    assert sum("environments stay in the main process" in line for line in said) == 1
    first = "did not start: its worker could not be started (the warden process exited with code 7)."
    assert sum(line.endswith(first) for line in said) == 1


def test_a_warden_that_never_answers_is_given_up_in_the_time_of_whoever_asks(
    honest: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragen.parallel import launcher, warden

    monkeypatch.setattr(warden, "command_line", lambda module, arguments: ["sleep", "1000"])
    monkeypatch.setattr(launcher, "END_TIMEOUT", 0.3)
    patient = EnvStateManager(evil("nothing", "never", startup_timeout=600))
    with patient, EnvStateManager(evil("nothing", "never", startup_timeout=0.5)) as manager:
        assert freeze(play(manager, TURNS)) == honest
