"""Systems that lack what this one has: what is imported there, and what is taken instead."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support import scripts

PLAYS = """
    import logging
    logging.basicConfig(level=logging.WARNING)
    settings = config({"W": {"env_type": "support.faulty_envs:Walk"}}, [("W", 4)], use_multiprocessing=True)
    if __name__ == "__main__":
        for _ in range(2):
            with EnvStateManager(settings) as manager:
                assert freeze(play(manager)) == sequential(settings)[0]
                print(manager.lane_stats()[0].envs)
"""

HIDE = """
import os, psutil, select, signal, socket, sys
sys.platform = "darwin"
for module in ("fcntl", "resource", "setproctitle", "termios", "pwd", "grp"):
    sys.modules[module] = None
"""

MISSING = """
for module, names in (
    (os, ["fork", "setsid", "memfd_create", "register_at_fork", "killpg"]),
    (signal, ["SIGUSR1", "SIGUSR2", "SIGKILL", "SIGCHLD", "SIGALRM", "pthread_sigmask", "sigtimedwait", "setitimer"]),
    (socket, ["send_fds", "recv_fds"]),
    (select, ["poll"]),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""


def test_the_package_can_be_imported_where_little_of_unix_is_there(tmp_path):
    body = """
        import envlanes
        for name in envlanes.__all__:
            getattr(envlanes, name)
        from envlanes.kinds import available
        print(available("process"), available("executor"))
    """
    script = scripts.write(tmp_path, body, HIDE + MISSING)
    assert scripts.run(script) == "executor executor\n"


def test_without_what_shows_titles_everything_works(tmp_path):
    head = 'import sys\nsys.modules["setproctitle"] = None\n' + scripts.HEAD
    assert scripts.run(scripts.write(tmp_path, PLAYS, head)) == "0\n0\n"


def test_where_there_can_be_no_processes_of_our_own_executors_are_taken_and_that_is_told_once(tmp_path):
    head = 'import multiprocessing.spawn, sys\nsys.executable = ""\n' + scripts.HEAD
    process = scripts.start(scripts.write(tmp_path, PLAYS, head))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "0\n0\n"), err
    assert err.count("backend 'process' is not available here") == 1


MOUNTS = {
    "read-only": "mount --bind /proc /proc && mount -o remount,ro,bind /proc",
    "none": "mount -t tmpfs none /proc",
}


@pytest.mark.parametrize("proc", MOUNTS)
def test_rollouts_are_equal_though_proc_is_read_only_or_missing(tmp_path, proc):
    mount = ["unshare", "-m", "sh", "-c"]
    try:
        can_mount = not subprocess.run([*mount, MOUNTS[proc]], capture_output=True).returncode
    except OSError:
        can_mount = False
    if not can_mount:
        pytest.skip("no file systems can be mounted here")
    script = scripts.write(tmp_path, PLAYS)
    line = [*mount, f"{MOUNTS[proc]}; exec {sys.executable} {script}"]
    done = subprocess.run(line, env=scripts.environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n0\n", "")
