"""However a program ends or a manager is let go of: nothing is left of it, within two seconds."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen.errors import EnvError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.parallel import system
from support import scripts
from support.episodes import config, freeze, inputs, play, sequential
from support.leftovers import descriptors, named_memory, processes, until

PROMISED = 2.0  # seconds until nothing is left


def walks(**settings: Any) -> dict[str, Any]:
    tags = {"Walk": {"env_type": "support.faulty_envs:Walk"}, "Draws": {"env_type": "support.faulty_envs:GlobalDraws"}}
    return config(tags, [("Walk", 2), ("Draws", 2)], **{"use_multiprocessing": True, **settings})


def evil(misdeed: str, place: str, **settings: Any) -> dict[str, Any]:
    fields = {"fault": misdeed, "place": place}
    tags = {
        "Walk": {"env_type": "support.faulty_envs:Walk"},
        "Evil": {"env_type": "support.faulty_envs:Faulty", "env_config": fields},
    }
    return config(tags, [("Walk", 2), ("Evil", 2)], **{"use_multiprocessing": True, **settings})


def is_gone(before: dict[int, str]) -> Callable[[], bool]:
    return lambda: not set(processes()) - set(before)


# Managers


def test_close_ends_everything_and_may_come_twice() -> None:
    before = processes()
    manager = EnvStateManager(walks())
    play(manager)
    assert set(processes()) - set(before)
    manager.close()
    assert until(is_gone(before), PROMISED)
    manager.close()


def test_a_manager_that_was_never_used_is_closed_too() -> None:
    before = processes()
    EnvStateManager(walks()).close()
    assert until(is_gone(before), PROMISED)


def test_an_exception_inside_the_block_ends_everything() -> None:
    before = processes()
    with pytest.raises(ZeroDivisionError), EnvStateManager(walks()) as manager:
        manager.reset()
        raise ZeroDivisionError
    assert until(is_gone(before), PROMISED)


@pytest.mark.parametrize("misdeed", ["sleeps", "exits", "raises", "leaves", "is killed"])
def test_what_environments_do_when_they_are_closed_keeps_nothing(misdeed: str) -> None:
    before = processes()
    manager = EnvStateManager(evil(misdeed, "close"))
    manager.reset()
    manager.close()
    assert until(is_gone(before), PROMISED)


@pytest.mark.parametrize("misdeed", ["leaves children", "leaves threads", "changes process", "returns twice"])
@pytest.mark.parametrize("place", ["init", "turn 0", "close"])
@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_what_environments_leave_behind_ends_with_the_manager(misdeed: str, place: str, method: str) -> None:
    before = processes()
    manager = EnvStateManager(evil(misdeed, place, start_method=method))
    play(manager, 2)
    manager.close()
    assert until(is_gone(before), PROMISED)


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_what_environments_leave_behind_ends_though_the_warden_was_killed(method: str) -> None:
    before = processes()
    with EnvStateManager(evil("leaves marked children", "turn 0", start_method=method)) as manager:
        play(manager, 2)
        (warden,) = [pid for pid, title in processes().items() if title.startswith("ragen warden")]
        os.kill(warden, signal.SIGKILL)
    assert until(is_gone(before), PROMISED)


def test_environments_are_closed_in_their_workers(tmp_path: Path) -> None:
    fields = {"fault": "nothing", "place": "close", "once": str(tmp_path / "closed")}
    settings = config(
        {"E": {"env_type": "support.faulty_envs:Faulty", "env_config": fields}}, [("E", 1)], use_multiprocessing=True
    )
    manager = EnvStateManager(settings)
    manager.reset()
    assert not (tmp_path / "closed").exists()
    manager.close()
    assert (tmp_path / "closed").exists()


def test_a_forgotten_manager_closes_itself() -> None:
    before = processes()
    manager = EnvStateManager(walks())
    play(manager)
    del manager
    gc.collect()
    assert until(is_gone(before), PROMISED)


def test_a_forgotten_manager_leaves_the_workers_of_another_alone() -> None:
    with EnvStateManager(walks()) as kept:
        kept.reset()
        forgotten = EnvStateManager(walks())
        forgotten.reset()
        pids = {lane.pid for lane in kept.lane_stats()}
        del forgotten
        gc.collect()
        assert freeze(play(kept, seed=1000)) == sequential(walks())[0]
        assert {lane.pid for lane in kept.lane_stats()} == pids


def test_a_manager_forgotten_with_a_suspect_in_quarantine_closes_itself(tmp_path: Path) -> None:
    with EnvStateManager(walks()) as kept:
        kept.reset()
        before = processes()
        settings = evil("exits", "turn 0")
        settings["custom_envs"]["Evil"]["env_config"]["once"] = str(tmp_path / "once")
        forgotten = EnvStateManager(settings)
        play(forgotten, 2)
        assert any("quarantine" in lane.lane and lane.envs for lane in forgotten.lane_stats())
        del forgotten
        gc.collect()
        assert freeze(play(kept, seed=1000)) == sequential(walks())[0]
        lanes = {lane.pid for lane in kept.lane_stats()}
        assert until(lambda: not set(processes()) - set(before) - lanes, PROMISED)


@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_many_managers_in_a_row_keep_nothing(count: int) -> None:
    with EnvStateManager(walks()) as first:
        play(first, 1)
    before, open_before, threads = processes(), len(descriptors()), threading.active_count()
    for number in range(count):
        with EnvStateManager(walks(start_method="fork" if number % 3 == 2 else "forkserver")) as manager:
            play(manager, 1)
        assert until(is_gone(before), PROMISED)
        assert len(descriptors()) == open_before
        assert threading.active_count() == threads


MIXED = list(
    itertools.product(
        ["leaves children", "exits", "is killed", "raises", "sleeps", "leaves threads", "leaves children and exits"],
        ["turn 0", "init", "close", "reset"],
        ["fork", "spawn", "forkserver"],
    )
)


def open_things() -> tuple[int, int, int]:
    """Descriptors, threads, pieces of shared memory without a path."""
    memory = Path("/proc/self/maps").read_text().count("memfd:")
    return len(descriptors()), threading.active_count(), memory


@pytest.mark.parametrize("count", [9, pytest.param(100, marks=pytest.mark.slow)])
def test_many_managers_of_evil_environments_keep_nothing_whatever_their_start_method(count: int) -> None:
    before, open_before, named_before = processes(), open_things(), named_memory()
    for misdeed, place, method in (MIXED[19 * number % len(MIXED)] for number in range(count)):
        settings = evil(misdeed, place, start_method=method, step_timeout=0.5, reset_timeout=0.5)
        with contextlib.suppress(EnvError), EnvStateManager(settings) as manager:
            play(manager, 2)
        assert until(is_gone(before), PROMISED), (misdeed, place, method)
        assert open_things() == open_before, (misdeed, place, method)
        assert until(lambda: not named_memory() - named_before), (misdeed, place, method)


def test_many_managers_at_once_share_their_workers() -> None:
    managers = [EnvStateManager(walks()) for _ in range(10)]
    try:
        for manager in managers:
            manager.reset()
        assert sum(title.startswith("ragen lane") for title in processes().values()) == 2
    finally:
        for manager in managers:
            manager.close()


def test_a_hang_in_another_thread_leaves_nothing() -> None:
    before = processes()

    def live() -> None:
        with EnvStateManager(evil("sleeps", "turn 0", step_timeout=0.6)) as manager:
            play(manager, 2)

    thread = threading.Thread(target=live)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert until(is_gone(before), PROMISED)


def test_running_out_of_descriptors_is_no_end() -> None:
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


def test_a_fork_does_not_repeat_what_the_main_process_is_about_to_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "out", "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        print("once")
        assert system.Fork(out.flush).wait(PROMISED) == 0
        monkeypatch.undo()
    assert (tmp_path / "out").read_text() == "once\n"


def test_a_fork_has_a_title_though_the_environment_was_changed(tmp_path: Path) -> None:
    body = """
        from ragen.parallel import system, worker
        name, value = os.environ.popitem()
        for name in [name, *os.environ]:
            os.environ[name] = os.environ.pop(name, value)
        def tell():
            worker.set_title("ragen test")
            print(open("/proc/self/comm").read().strip(), flush=True)
        system.Fork(tell).wait()
    """
    assert scripts.run(scripts.write(tmp_path, body)) == "ragen test\n"


def test_no_two_processes_give_their_workers_the_same_mark(tmp_path: Path) -> None:
    body = """
        from pathlib import Path
        child = os.fork()
        walks = {"W": {"env_type": "support.faulty_envs:Walk"}}
        with EnvStateManager(config(walks, [("W", 4)], use_multiprocessing=True)) as manager:
            manager.reset()
            for name in re.findall("ragen-progress-[0-9a-z]*", Path("/proc/self/maps").read_text()):
                os.write(1, (name + chr(10)).encode())  # in one piece, whoever else writes there
        if child:
            assert os.waitpid(child, 0)[1] == 0
    """
    names = scripts.run(scripts.write(tmp_path, "\nimport re\n" + textwrap.dedent(body))).split()
    assert len(names) == len(set(names)) == 4


FORK = """
    walks = {"W": {"env_type": "support.faulty_envs:Walk"}}
    with EnvStateManager(config(walks, [("W", 4)], use_multiprocessing=True)) as manager:
        manager.reset()
        pids = {lane.pid for lane in manager.lane_stats()}
        child = os.fork()
        if child == 0:
            if CHILD == "exits":
                sys.exit(0)
            if CHILD == "plays":
                assert play(manager, seed=5)
                manager.close()
            if CHILD == "makes another":
                with EnvStateManager(manager.config) as other:
                    assert play(other)
            if CHILD == "stays":
                time.sleep(1000)
            os._exit(0)
        if CHILD == "stays":
            print(child)
        else:
            assert os.waitpid(child, 0)[1] == 0
        assert freeze(play(manager, seed=1000)) == sequential(manager.config)[0]
        assert pids == {lane.pid for lane in manager.lane_stats()}
    print("equal")
"""


@pytest.mark.parametrize("child", ["exits", "plays", "makes another", "is killed"])
@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_a_fork_of_the_main_process_disturbs_nothing(child: str, method: str, tmp_path: Path) -> None:
    body = f"CHILD = {child!r}\n" + FORK.replace("use_multi", f"start_method={method!r}, use_multi")
    assert scripts.run(_script(tmp_path, body)) == "equal\n"


def test_a_fork_that_stays_keeps_no_worker_alive(tmp_path: Path) -> None:
    process = scripts.start(_script(tmp_path, 'CHILD = "stays"\n' + FORK))
    child = int(process.stdout.readline())  # type: ignore[union-attr]
    try:
        assert process.stdout.readline() == "equal\n"  # type: ignore[union-attr]
        assert process.wait(30) == 0
        assert until(lambda: set(processes()) <= {child}, PROMISED)
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def _script(folder: Path, body: str) -> Path:
    head, _, rest = body.partition("\n")
    return scripts.write(folder, f"{head}\n{textwrap.dedent(rest)}")


# The end of the whole program

BUSY = """
    settings = config(
        {"W": {"env_type": "support.faulty_envs:Walk"},
         "E": {"env_type": "support.faulty_envs:Faulty", "env_config": {"fault": "leaves children", "place": "turn 0"}},
         "S": {"env_type": "support.faulty_envs:Faulty", "env_config": {"fault": "sleeps", "place": "turn 0"}}},
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


def start_busy(tmp_path: Path, method: str = "forkserver", **popen: Any) -> subprocess.Popen[str]:
    """A program in the middle of a step that will not end, with children of an environment running."""
    body = BUSY.replace("use_multi", f"start_method={method!r}, use_multi")
    process = scripts.start(scripts.write(tmp_path, body), **popen)
    assert process.stdout.readline() == "ready\n", process.communicate()  # type: ignore[union-attr]
    asleep = until(lambda: sum("sleep" in title for title in processes().values()) >= 3)
    assert asleep, processes()
    return process


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=30)
    assert until(lambda: not processes(), PROMISED), processes()
    return out, err


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_one_ctrl_c_ends_a_step_quickly_and_workers_say_nothing(method: str, tmp_path: Path) -> None:
    process = start_busy(tmp_path, method, start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    out, err = finish(process)
    assert out == "left\n"
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1 and err.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGABRT])
@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_a_signal_to_the_program_ends_everything(number: signal.Signals, method: str, tmp_path: Path) -> None:
    process = start_busy(tmp_path, method)
    process.send_signal(number)
    out, err = finish(process)
    assert process.returncode == -number
    assert (out, err) == ("", "")


ENDS = {
    "end of script": "",
    "exception": "raise SystemExit('over')",
    "sys.exit": "sys.exit(3)",
    "os._exit": "os._exit(3)",
    "exit in a thread": "threading.Thread(target=lambda: os._exit(3)).start(); time.sleep(100)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_without_closing_leaves_nothing(end: str, tmp_path: Path) -> None:
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
    assert err == ("over\n" if end == "exception" else "")


def test_nothing_warns_even_if_every_warning_is_an_error(tmp_path: Path) -> None:
    body = """
        import gc, warnings
        for method in ("forkserver", "spawn", "fork"):
            tags = {"W": {"env_type": "support.faulty_envs:Walk"}, "D": {"env_type": "support.faulty_envs:GlobalDraws"}}
            settings = config(tags, [("W", 2), ("D", 2)], use_multiprocessing=True, start_method=method)
            with EnvStateManager(settings) as manager:
                manager.reset()
                for lane in manager.lane_stats()[1:]:
                    os.kill(lane.pid, signal.SIGKILL)
                play(manager)
            manager = EnvStateManager(settings)
            play(manager)
            del manager
            gc.collect()
        print("done")
    """
    process = scripts.start(scripts.write(tmp_path, body), "-X", "dev", "-W", "error")
    out, err = process.communicate(timeout=60)
    assert out == "done\n", err
    assert "Warning" not in err and "Error" not in err and "Exception" not in err, err


def test_sys_exit_in_mid_episode_of_a_thread_leaves_nothing(tmp_path: Path) -> None:
    body = """
        def live():
            walks = {"W": {"env_type": "support.faulty_envs:Walk"}}
            with EnvStateManager(config(walks, [("W", 4)], use_multiprocessing=True)) as m:
                play(m)
                sys.exit(1)
        thread = threading.Thread(target=live)
        thread.start()
        thread.join()
        print("over")
    """
    assert scripts.run(scripts.write(tmp_path, body)) == "over\n"
    assert until(lambda: not processes(), PROMISED)
