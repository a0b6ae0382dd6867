"""However a program ends or a manager is let go of: nothing is left of it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import textwrap
import threading
from pathlib import Path

import numpy.random  # noqa: F401  # while there are descriptors to import it
import pytest

from envlanes.errors import EnvError
from support import scripts
from support.episodes import EnvStateManager, config, inputs, play
from support.leftovers import descriptors, is_over, named_memory, processes, titled, until

pytestmark = [pytest.mark.cold, pytest.mark.usefixtures("backend")]

of_processes = pytest.mark.parametrize("backend", ["process"], indirect=True)
of_executors = pytest.mark.parametrize("backend", ["executor"], indirect=True)


def walks(**settings):
    tags = {"Walk": {"env_type": "support.faulty_envs:Walk"}, "Draws": {"env_type": "support.faulty_envs:GlobalDraws"}}
    return config(tags, [("Walk", 2), ("Draws", 2)], **{"use_multiprocessing": True, **settings})


def faulty(fault, place, once="", **settings):
    tags = {
        "Walk": {"env_type": "support.faulty_envs:Walk"},
        "Faulty": {
            "env_type": "support.faulty_envs:Faulty",
            "env_config": {"fault": fault, "place": place, "once": once},
        },
    }
    return config(tags, [("Walk", 2), ("Faulty", 2)], **{"use_multiprocessing": True, **settings})


def is_gone(before):
    return lambda: not set(processes()) - set(before)


# Managers


def test_close_ends_everything_and_may_come_twice():
    before = processes()
    manager = EnvStateManager(walks())
    play(manager)
    assert set(processes()) - set(before)
    manager.close()
    assert until(is_gone(before))
    manager.close()
    EnvStateManager(walks()).close()  # one that was never used too
    assert until(is_gone(before))


def test_an_exception_inside_the_block_ends_everything():
    before = processes()
    with pytest.raises(ZeroDivisionError), EnvStateManager(walks()) as manager:
        manager.reset()
        raise ZeroDivisionError
    assert until(is_gone(before))


LEFT = [
    ("leaves threads", "turn 0"),
    ("leaves threads", "close"),
    ("changes process", "init"),
    ("returns twice", "close"),
]
LEFT_BY_PROCESSES = [("leaves children", "init"), ("leaves children", "turn 0"), ("leaves children", "close")]


@pytest.mark.parametrize(("fault", "place"), LEFT)
def test_what_environments_leave_behind_ends_with_the_manager(fault, place):
    before = processes()
    manager = EnvStateManager(faulty(fault, place))
    play(manager, 2)
    manager.close()
    assert until(is_gone(before))


@of_processes
@pytest.mark.parametrize(("fault", "place"), LEFT_BY_PROCESSES)
def test_what_environments_have_started_ends_with_the_manager(fault, place):
    test_what_environments_leave_behind_ends_with_the_manager(fault, place)


@of_executors
def test_what_environments_have_started_stays_with_executors():
    """Nobody adopts the orphans of such a worker: an environment has to end what it starts itself."""
    before = processes()
    manager = EnvStateManager(faulty("leaves marked children", "turn 0"))
    play(manager, 2)
    manager.close()
    left = set(processes()) - set(before)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert until(lambda: all(map(is_over, left)))
    assert len(left) >= 4


@of_processes
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_environments_leave_behind_ends_though_the_supervisor_was_killed(method):
    before = processes()
    with EnvStateManager(faulty("leaves marked children", "turn 0", start_method=method)) as manager:
        play(manager, 2)
        (supervisor,) = titled("envlanes supervisor")
        os.kill(supervisor, signal.SIGKILL)
    assert until(is_gone(before))


def test_environments_are_closed_in_their_workers(tmp_path):
    manager = EnvStateManager(faulty("nothing", "close", once=str(tmp_path / "closed")))
    manager.reset()
    assert not (tmp_path / "closed").exists()
    manager.close()
    assert (tmp_path / "closed").exists()


def test_a_forgotten_manager_closes_itself():
    before = processes()
    manager = EnvStateManager(walks())
    play(manager)
    del manager
    gc.collect()
    assert until(is_gone(before))


def open_things():
    """Descriptors, threads, pieces of shared memory without and with a path."""
    memory = Path("/proc/self/maps").read_text()
    return len(descriptors()), threading.active_count(), memory.count("memfd:"), memory.count("/dev/shm/")


MIXED = list(
    itertools.product(
        ["exits", "is killed", "raises", "sleeps", "leaves threads"],
        ["turn 0", "init", "close", "reset"],
        ["spawn", "forkserver"],
    )
)


@pytest.mark.parametrize("count", [2, pytest.param(80, marks=pytest.mark.slow)])
def test_many_managers_of_faulty_environments_keep_nothing_whatever_their_start_method(count, monkeypatch):
    monkeypatch.setattr("envlanes.workers.pool.EXIT_TIMEOUT", 0.3)
    before, open_before, named_before = processes(), open_things(), named_memory()
    for fault, place, method in (MIXED[11 * number % len(MIXED)] for number in range(count)):
        settings = faulty(fault, place, start_method=method, step_timeout=0.4, reset_timeout=0.4)
        with contextlib.suppress(EnvError), EnvStateManager(settings) as manager:
            play(manager, 2)
        assert until(is_gone(before)), (fault, place, method, processes())  # what is just being started takes longer
        assert open_things() == open_before, (fault, place, method)
        assert until(lambda: not named_memory() - named_before), (fault, place, method)


def test_running_out_of_descriptors_is_no_end():
    """Workers that cannot be started leave their environments in main, and leak nothing."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with EnvStateManager(walks()) as manager:
        manager.reset()
        for lane in manager.lane_stats()[1:]:
            os.kill(lane.pid, signal.SIGKILL)  # type: ignore[arg-type]
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(descriptors()) // 2, hard))
        try:
            manager.step(inputs(range(4), 0))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert manager.lane_stats()[0].envs == 4


# A fork of the main process

FORK = """
    walks = {"W": {"env_type": "support.faulty_envs:Walk"}}
    settings = config(walks, [("W", 4)], use_multiprocessing=True)
    with EnvStateManager(settings) as manager:
        manager.reset()
        pids = {lane.pid for lane in manager.lane_stats()}
        child = os.fork()
        if child == 0:
            time.sleep(1000)
            os._exit(0)
        print(child)
        assert freeze(play(manager, seed=1000)) == sequential(settings)[0]
        assert pids == {lane.pid for lane in manager.lane_stats()}
    print("equal")
"""


def test_a_fork_that_stays_keeps_no_worker_alive(tmp_path):
    process = scripts.start(scripts.write(tmp_path, FORK))
    child = int(process.stdout.readline())  # type: ignore[union-attr]
    try:
        assert process.stdout.readline() == "equal\n"  # type: ignore[union-attr]
        assert process.wait(60) == 0
        assert until(lambda: not [pid for pid in titled("envlanes ") if pid != child])
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


# The end of the whole program

BUSY = """
    children = "leaves children" if os.environ["RAGEN_TESTS_BACKEND"] == "process" else "leaves threads"
    sleeps = {"fault": "sleeps", "place": "turn 0", "once": "asleep"}
    settings = config(
        {"W": {"env_type": "support.faulty_envs:Walk"},
         "E": {"env_type": "support.faulty_envs:Faulty", "env_config": {"fault": children, "place": "turn 0"}},
         "S": {"env_type": "support.faulty_envs:Faulty", "env_config": sleeps}},
        [("W", 4), ("E", 1), ("S", 1)], use_multiprocessing=True, max_workers=3, step_timeout=600,
    )
    manager = EnvStateManager(settings)
    manager.reset()
    print("ready")
    try:
        manager.step(inputs(range(6), 0))
    finally:
        print("left")
"""


def start_busy(tmp_path, backend, children="leaves children", **popen):
    """A program in the middle of a step that will not end, with children of an environment running."""
    body = BUSY.replace("leaves children", children)
    process = scripts.start(scripts.write(tmp_path, body), **popen)
    assert process.stdout.readline() == "ready\n", process.communicate()  # type: ignore[union-attr]
    assert until((tmp_path / "asleep").exists)
    if backend == "process":
        assert until(lambda: sum("sleep" in title for title in processes().values()) >= 3)
    return process


def finish(process):
    out, err = process.communicate(timeout=60)
    assert until(lambda: not processes()), processes()
    return out, err


def test_one_ctrl_c_ends_a_step_quickly_and_workers_say_nothing(tmp_path, backend):
    process = start_busy(tmp_path, backend, start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    out, err = finish(process)
    assert out == "left\n"
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1 and err.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGABRT])
def test_a_signal_to_the_program_ends_everything(number, tmp_path, backend):
    process = start_busy(tmp_path, backend)
    process.send_signal(number)
    out, err = finish(process)
    assert process.returncode == -number
    said = [line for line in err.splitlines() if "resource_tracker" not in line and line.strip() != "warnings.warn("]
    assert (out, said) == ("", [])  # the standard library's tracker may tell of semaphores that it removes


ENDS = {
    "end of script": "",
    "exception": "raise SystemExit('over')",
    "sys.exit": "sys.exit(3)",
    "os._exit": "os._exit(3)",
    "exit in a thread": "threading.Thread(target=lambda: os._exit(3)).start(); time.sleep(100)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_without_closing_leaves_nothing(end, tmp_path):
    body = """
        walks = {"W": {"env_type": "support.faulty_envs:Walk"}}
        manager = EnvStateManager(config(walks, [("W", 4)], use_multiprocessing=True))
        play(manager)
        print("played")
    """
    script = scripts.write(tmp_path, textwrap.dedent(body) + ENDS[end])
    process = scripts.start(script, "-W", "error")
    out, err = finish(process)
    assert out == "played\n"
    said = [line for line in err.splitlines() if "resource_tracker" not in line and line.strip() != "warnings.warn("]
    assert said == (["over"] if end == "exception" else [])
