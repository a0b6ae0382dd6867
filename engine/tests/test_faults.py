"""The table of faults and places: what the user gets, and that every other environment gets what it always gets.

Each fault once, each place once, for each kind of workers; what follows from every combination of what is known is
tabled in ``test_recovery_table``.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from typing import Any

import pytest

from envlanes.errors import EnvError, EnvLanesError, LaneDiedError, LaneError, LaneTimeoutError
from envlanes.kinds import executor, ray_cluster
from envlanes.kinds.process import kind as process_kind
from envlanes.kinds.process import supervisor
from support.episodes import BACKEND, EnvStateManager, config, errors, freeze, play, sequential
from support.leftovers import is_over, processes, titled, until
from support.simulated_nodes import SimulatedCluster

pytestmark = pytest.mark.usefixtures("backend")


@pytest.fixture(params=["process", "executor", pytest.param("ray", marks=pytest.mark.cluster)])
def backend(request, monkeypatch):
    """Each kind of workers in turn; those on nodes without Ray, see ``test_ray_cluster.py`` for a real cluster."""
    kind: str = request.param
    monkeypatch.setenv(BACKEND, kind)
    if kind == "ray":
        monkeypatch.setattr(ray_cluster, "RayCluster", SimulatedCluster)
    return kind


FAULTY = 2  # env_id of the faulty one, between good ones of the same lanes
TURNS = 4
EQUAL = "equal"
IMPATIENT = {"step_timeout": 0.5, "reset_timeout": 0.5}
ENV = r"env 2 \(tag 'Faulty', type 'support.faulty_envs:Faulty'\)"

TIMED_OUT = r"timed out after (0\.5|1|5) s"
EXITED = r"its process exited with code 3"
KILLED = r"its process was killed by SIGKILL"
STOPPED = r"its process was killed by SIGTERM"  # by the standard library, of an executor whose pipe has ended
BOOM = r"ValueError: boom"

# what happens always, at this place: the turn whose info tells (0: the first after the reset), and what it says
TABLE: dict[tuple[str, str], tuple[int, str] | str] = {
    ("sleeps", "load"): (0, TIMED_OUT),
    ("sleeps", "turn 2"): (2, TIMED_OUT),
    ("loops", "init"): (0, TIMED_OUT),
    ("deadlocks", "reset"): (0, TIMED_OUT),
    ("stops", "turn 1"): (1, TIMED_OUT),
    ("exits", "load"): (0, EXITED),
    ("exits", "render"): (0, EXITED),
    ("exits", "close"): EQUAL,
    ("is killed", "reset"): (0, KILLED),
    ("is killed", "turn 2"): (2, KILLED),
    ("crashes", "turn 1"): (1, "its process was killed by SIGSEGV"),
    ("is terminated", "turn 0"): (0, "its process was killed by SIGTERM"),
    ("interrupts", "turn 1"): (1, "Interrupt: nobody catches this"),
    ("interrupts", "load"): EQUAL,  # it only cannot work in a worker
    ("raises ctrl-c", "turn 1"): (1, "KeyboardInterrupt: of my own"),
    ("cancels", "turn 2"): (2, "CancelledError: cancelled"),
    ("leaves generator", "reset"): (0, "GeneratorExit: "),
    ("eats memory", "turn 1"): (1, "MemoryError|ReachedMain"),
    ("closes files", "turn 1"): (
        1,
        f"its process exited|its process ended|{KILLED}|{STOPPED}",
    ),  # the first
    ("raises", "load"): EQUAL,
    ("raises", "turn 0"): (0, BOOM),
    ("raises", "render"): (0, BOOM),
    ("raises in workers", "init"): EQUAL,
    ("raises in workers", "reset"): EQUAL,
    ("raises in workers", "turn 1"): EQUAL,
    ("leaves", "turn 2"): (2, "SystemExit: 4"),
    ("leaves", "close"): EQUAL,
    ("raises oddly", "turn 1"): (1, "OddError"),
    ("returns unpicklable", "turn 1"): EQUAL,
    ("returns unloadable", "turn 1"): EQUAL,
    ("returns much", "turn 1"): EQUAL,
    ("returns exiting", "turn 1"): (1, EXITED),
    ("returns leaving", "turn 1"): EQUAL,
    ("returns sleeping", "turn 1"): (1, TIMED_OUT),
    ("is slow", "init"): EQUAL,
    ("leaves threads", "turn 1"): EQUAL,
    ("returns twice", "turn 1"): EQUAL,
    ("prints much", "turn 1"): EQUAL,
    ("changes process", "turn 1"): EQUAL,
    ("closes standard files", "turn 1"): EQUAL,
}
HANGS = {"sleeps", "loops", "deadlocks", "stops", "returns sleeping"}

# What is raised or returned is met by the code that all kinds of workers run; how a worker is lost, each kind finds out
# in its own way.
OF_EVERY_KIND = [
    ("stops", "turn 1"),
    ("exits", "load"),
    ("exits", "close"),
    ("is killed", "turn 2"),
    ("eats memory", "turn 1"),
    ("closes files", "turn 1"),
    ("raises ctrl-c", "turn 1"),
    ("raises in workers", "init"),
    ("raises in workers", "turn 1"),
    ("returns unpicklable", "turn 1"),
    ("returns unloadable", "turn 1"),
    ("returns exiting", "turn 1"),
    ("leaves threads", "turn 1"),
    ("prints much", "turn 1"),
    ("closes standard files", "turn 1"),
]
by_processes = pytest.mark.parametrize("backend", ["process"], indirect=True)


def of_kinds(rows, of_every_kind):
    """All rows for workers of our own, and for the other kinds those in which kinds differ."""
    cases = [("process", *row) for row in rows]
    cases += [(kind, *row) for kind in ("executor", "ray") for row in of_every_kind]
    marks: dict[str, Any] = {"ray": pytest.mark.cluster}
    values = [pytest.param(*case, marks=marks.get(case[0], ())) for case in cases]
    return pytest.mark.parametrize(("backend", "fault", "place"), values, indirect=["backend"])


def faulty(fault, place, once="", lives="", **es_manager):
    """Five environments, the one in the middle faulty, on two lanes."""
    fields = {"fault": fault, "place": place, "once": once, "lives": lives}
    tags = {
        "Good": {"env_type": "support.faulty_envs:Walk"},
        "Faulty": {"env_type": "support.faulty_envs:Faulty", "env_config": fields},
    }
    patience: dict[str, float] = IMPATIENT if fault in HANGS else {}
    if fault in HANGS and place == "load":
        patience = {"startup_timeout": 5.0}  # for workers too, so that their supervisor has to be there already
    groups = [("Good", 2), ("Faulty", 1), ("Good", 2)]
    return config(tags, groups, use_multiprocessing=True, **{**patience, **es_manager})


@pytest.fixture(scope="module")
def honest():
    """The results of all environments without a fault."""
    return sequential(faulty("nothing", "never"), TURNS)[0]


def check(rollouts, honest, turn, says):
    """The faulty environment is truncated at that turn, saying so; all else is as if it were not there."""
    for mine, theirs in zip(rollouts, honest, strict=True):
        if mine["env_id"] != FAULTY:
            assert mine == theirs
    told = errors(rollouts[FAULTY])
    assert told[:-1] == [None] * turn
    assert re.search(says, told[-1] or ""), told
    if turn:
        assert rollouts[FAULTY]["history"][: turn - 1] == honest[FAULTY]["history"][: turn - 1]
    assert rollouts[FAULTY]["metrics"]["Faulty/success"] == 0.0
    assert rollouts[FAULTY]["metrics"]["Faulty/env_error"] == 1.0
    assert rollouts[FAULTY]["env_error"] == told[-1]


def without_handles(rollouts):
    """Rollouts without what the faults added to an info."""
    for turn in rollouts[FAULTY]["history"]:
        for key in ("handle", "frame"):
            turn.get("info", {}).pop(key, None)
    return rollouts


@of_kinds(TABLE, OF_EVERY_KIND)
def test_a_fault_that_comes_always_costs_its_own_environment_at_most(fault, place, honest):
    if (fault, place) == ("sleeps", "load"):
        with EnvStateManager(faulty("nothing", "never")) as manager:  # whose supervisor stays
            manager.reset()
    with EnvStateManager(faulty(fault, place)) as manager:
        rollouts = freeze(play(manager, TURNS))
        after = freeze(play(manager, 1, seed=1)) if place.startswith("turn") and fault not in HANGS else None
    expected = TABLE[fault, place]
    if expected == EQUAL:
        assert without_handles(rollouts) == honest
    else:
        check(rollouts, honest, *expected)  # type: ignore[misc]
    assert after is None or all(errors(after[env_id]) == [None] for env_id in (0, 1, 3, 4))


@by_processes
def test_what_fails_only_in_workers_stays_in_main_and_what_fails_in_main_too_does_not():
    places = {}
    for fault in ("raises in workers", "raises"):
        with EnvStateManager(faulty(fault, "turn 1")) as manager:
            play(manager, TURNS)
            manager.reset(seed=1)
            places[fault] = [manager.home(env_id) == "main" for env_id in range(5)]
    assert places == {"raises in workers": [False, False, True, False, False], "raises": [False] * 5}


ONCE = [
    ("stops", "turn 1"),
    ("exits", "load"),
    ("exits", "render"),
    ("is killed", "reset"),
    ("crashes", "turn 1"),
    ("cancels", "turn 2"),
    ("closes files", "turn 1"),
    ("raises", "render"),
]


@of_kinds(ONCE, ONCE[:2] + ONCE[3:5])
def test_a_fault_that_comes_once_changes_nothing(fault, place, honest, tmp_path):
    with EnvStateManager(faulty(fault, place, once=str(tmp_path / "once"))) as manager:
        assert freeze(play(manager, TURNS)) == honest
    assert (tmp_path / "once").exists()


REPLAYS = {"sleeps": TIMED_OUT, "exits": EXITED, "is killed": KILLED, "raises": BOOM, "is slow": EQUAL}


@pytest.mark.parametrize("fault", REPLAYS)
def test_a_fault_in_the_replay_costs_its_own_environment_at_most(fault, honest, tmp_path, kill_lanes):
    with EnvStateManager(faulty(fault, "replay", lives=str(tmp_path / "lives"))) as manager:
        rollouts = freeze(play(manager, TURNS, lambda turn: kill_lanes(manager) if turn == 2 else None))
    if REPLAYS[fault] == EQUAL:
        assert rollouts == honest
    else:
        check(rollouts, honest, 2, REPLAYS[fault])


@by_processes
@pytest.mark.parametrize("fault", ["raises", "leaves", "raises oddly"])
def test_an_environment_that_cannot_be_built_is_an_error_at_reset(fault):
    with EnvStateManager(faulty(fault, "init")) as manager:
        with pytest.raises(EnvError, match=ENV):
            manager.reset()
        assert manager.rollout_cache is None


@of_kinds([("sleeps", "turn 1"), ("exits", "reset"), ("raises", "turn 1")], [("exits", "reset")])
def test_with_truncate_there_is_no_second_chance(fault, place, honest, tmp_path):
    patience: dict[str, Any] = {"step_timeout": 1.0} if fault in HANGS else {}
    settings: dict[str, Any] = {"on_env_failure": "truncate", **patience}
    with EnvStateManager(faulty(fault, place, once=str(tmp_path / "once"), **settings)) as manager:
        rollouts = freeze(play(manager, TURNS))
    check(rollouts, honest, 1 if place == "turn 1" else 0, f"{TIMED_OUT}|{EXITED}|{BOOM}")


RAISED: dict[tuple[str, str], tuple[type[EnvLanesError], str]] = {
    ("sleeps", "turn 2"): (LaneTimeoutError, r"turn 3.*timed out after 1 s.*(worker \d|env 2).*pid \d+"),
    ("exits", "turn 2"): (LaneDiedError, r"turn 3.*exited with code 3.*worker \d.*pid \d+"),
    ("is killed", "turn 0"): (LaneDiedError, r"turn 1.*killed by SIGKILL.*pid \d+"),
    ("exits", "reset"): (LaneDiedError, r"reset.*exited with code 3"),
    ("raises", "turn 2"): (EnvError, r"turn 3.*ValueError: boom"),
    ("leaves", "reset"): (EnvError, r"reset.*SystemExit: 4"),
}


@of_kinds(RAISED, [("sleeps", "turn 2"), ("is killed", "turn 0")])
def test_with_raise_the_error_names_environment_type_turn_and_cause(fault, place, honest):
    patience: dict[str, Any] = {"step_timeout": 1.0} if fault in HANGS else {}
    error, says = RAISED[fault, place]
    with EnvStateManager(faulty(fault, place, on_env_failure="raise", **patience)) as manager:
        with pytest.raises(error, match=rf"{ENV}.*{says}") as caught:
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


def test_an_environment_that_differs_at_every_replay_is_told_and_truncated(caplog, kill_lanes):
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


@by_processes
@pytest.mark.parametrize("kind", ["SavesBadly", "RaisesLoading"])
def test_a_snapshot_that_does_not_restore_an_environment_is_named_and_its_episode_replayed(kind, kill_lanes):
    settings = config({"Saves": {"env_type": f"support.faulty_envs:{kind}"}}, [("Saves", 2)], use_multiprocessing=True)
    with EnvStateManager(settings) as manager:
        rollouts = freeze(play(manager, TURNS, lambda turn: kill_lanes(manager) if turn == 3 else None))
        assert manager.not_restored() == {"Saves": f"support.faulty_envs:{kind}"} and not manager.not_deterministic()
    assert rollouts == sequential(settings, TURNS)[0]


# Workers that end while idle


def test_a_worker_that_dies_between_turns_again_and_again_harms_no_other_environment(
    honest,
):
    with EnvStateManager(faulty("exits", "thread")) as manager:
        rollouts = freeze(play(manager, TURNS, lambda turn: turn and until(lambda: False, 0.05)))
    assert [rollouts[i] for i in (0, 1, 3, 4)] == [honest[i] for i in (0, 1, 3, 4)]


# What workers leave running


@pytest.mark.cold
@by_processes
def test_what_a_killed_worker_left_running_is_ended_with_it():
    with EnvStateManager(faulty("leaves children", "init")) as manager:
        manager.reset()
        pid = next(lane.pid for lane in manager.lane_stats() if "support.faulty_envs:Faulty" in lane.env_types)
        assert until(lambda: len(left_behind(manager)) == 5)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)  # from outside, so that nobody could look at its family before
        assert until(
            lambda: len(left_behind(manager)) <= 3
        )  # what has a session of its own ends at close at the latest


def left_behind(manager):
    """Processes that are neither the supervisor nor workers."""
    known = {lane.pid for lane in manager.lane_stats()}
    known.update(titled("envlanes supervisor"))
    return [pid for pid in processes() if pid not in known]


@pytest.mark.cold
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_the_end_of_a_worker_is_seen_though_its_children_live_on(start_method, honest, backend):
    """With executors they go on until someone else ends them: nobody looks for the family of a worker there."""
    settings = faulty("leaves children and exits", "turn 0", start_method=start_method, step_timeout=5)
    before = processes()
    with EnvStateManager(settings) as manager:
        check(freeze(play(manager, TURNS)), honest, 0, EXITED)
    orphans = [pid for pid in processes() if pid not in before]
    if backend != "executor":
        assert not orphans
        return
    assert len(orphans) == 2 * 4  # of two tries
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)
    assert until(lambda: all(map(is_over, orphans)))


@pytest.mark.cold
def test_a_fork_made_while_a_worker_starts_does_not_hide_the_workers_end(
    honest,
):
    with EnvStateManager(faulty("exits", "turn 2", step_timeout=5)) as manager:  # whose workers are starting
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        try:
            check(freeze(play(manager, TURNS)), honest, 2, EXITED)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


# Workers that do not start


@pytest.fixture
def no_start(backend, monkeypatch):
    """Lets no worker start from when it is called, until what it gives is called."""

    def refuse(*_, **__):
        raise OSError("no process can be had")

    def allow():
        monkeypatch.undo()

    def forbid():
        if backend == "process":
            monkeypatch.setattr(supervisor, "command_line", lambda module, arguments: ["/bin/sh", "-c", "exit 7"])
            for pid in titled("envlanes supervisor"):
                os.kill(pid, signal.SIGKILL)
        elif backend == "ray":
            monkeypatch.setattr(SimulatedCluster, "starts_agents", False)
            for name in list(SimulatedCluster.last.agents) if SimulatedCluster.last else ():
                SimulatedCluster.last.kill_agent(name)
        else:
            monkeypatch.setattr(executor, "ProcessPoolExecutor", refuse)
            for pid in titled("envlanes worker"):
                os.kill(pid, signal.SIGKILL)
        assert until(lambda: not titled("envlanes "))
        return allow

    return forbid


@pytest.mark.cold
def test_a_worker_that_cannot_start_is_told_and_its_environments_are_played_in_main(honest, caplog, no_start):
    no_start()
    with caplog.at_level(logging.WARNING), EnvStateManager(faulty("nothing", "never")) as manager:
        assert freeze(play(manager, TURNS)) == honest
        assert all(lane.envs == 0 for lane in manager.lane_stats() if lane.lane != "main")
    assert caplog.records


@pytest.mark.cold
@by_processes
def test_a_supervisor_that_never_answers_is_given_up_in_the_time_of_whoever_asks(honest, monkeypatch):
    monkeypatch.setattr(supervisor, "command_line", lambda module, arguments: ["sleep", "1000"])
    monkeypatch.setattr(process_kind, "END_TIMEOUT", 0.3)
    patient = EnvStateManager(faulty("nothing", "never", startup_timeout=600))
    with patient, EnvStateManager(faulty("nothing", "never", startup_timeout=0.5)) as manager:
        assert freeze(play(manager, TURNS)) == honest
