"""Processes of environments in the main process end with the engine or the program."""

from __future__ import annotations

import psutil
import pytest

from support import scripts

PROGRAM = """
import atexit, multiprocessing, os, signal, subprocess, sys, threading, time
from envlanes.engine import Engine

WAITS = [sys.executable, "-c", "import time; time.sleep(600)"]

def stubborn():
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    say(os.getpid())
    time.sleep(600)

def say(pid):
    os.write(1, b"%d\\n" % pid)

def fork(then):
    pid = os.fork()
    if not pid:
        try:
            then()
        finally:
            os._exit(0)
    return pid

def grandchild():
    read, write = os.pipe()
    fork(lambda: (fork(stubborn), os.write(write, b"."), time.sleep(600)))
    os.read(read, 1)

starts = {
    "a fork": lambda: fork(stubborn),
    "a program": lambda: say(subprocess.Popen(WAITS).pid),
    "a grandchild": grandchild,
    "multiprocessing": lambda: multiprocessing.get_context("fork").Process(target=stubborn).start(),
}[sys.argv[1]]

class Env(BaseEnv):
    uses_global_rng = False
    def __init__(self, config=None): pass
    def reset(self, seed=None, mode=None): return "start"
    def step(self, action):
        starts()
        return "next", 0.0, False, {}
    def render(self, mode=None): return "next"
    def close(self): pass

register_env("Env", Env)

def begin():
    manager = EnvStateManager(config({"Env": {"env_type": "Env"}}, [("Env", 1)], use_multiprocessing=False))
    play(manager, 1)
    return manager

own = subprocess.Popen(WAITS)
manager = begin()
{ending}
"""
ENDINGS = {
    "close": "manager.close(); say(0); sys.stdin.read(); assert own.poll() is None; own.kill()",
    "exception": "own.kill(); say(0); raise RuntimeError",
    "end": "own.kill(); say(0)",
}
CASES = [
    *[("a fork", ending) for ending in ENDINGS],
    *[(start, "close") for start in ("a program", "a grandchild")],
    ("multiprocessing", "end"),
]


@pytest.mark.parametrize(("start", "ending"), CASES)
def test_a_process_of_an_environment_ends_with_the_engine_and_the_program_s_own_stays(tmp_path, start, ending):
    script = scripts.write(tmp_path, PROGRAM.replace("{ending}", ENDINGS[ending]))
    program = scripts.start(script, start, stdin=scripts.subprocess.PIPE)
    assert program.stdout is not None and program.stdin is not None
    pids = [int(line) for line in iter(program.stdout.readline, "0\n") if line.strip()]
    assert len(pids) == 1, program.communicate()
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    if ending == "close":
        assert not left
    _, errors = program.communicate("", timeout=60)
    assert program.returncode == (ending == "exception"), errors
    assert not psutil.wait_procs(left, timeout=30)[1]


KEPT = """
import gc, multiprocessing, subprocess

def start(how):
    if how == "Popen":
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=[600])
    process.start()
    return process

class Env(BaseEnv):
    uses_global_rng = False
    server = None  # for all environments of the program
    def __init__(self, config=None):
        gc.disable()
        self.me = self
        self.own = start(sys.argv[1])
        Env.server = Env.server or start(sys.argv[1])
        print(self.own.pid)
    def reset(self, seed=None, mode=None): return "start"
    def step(self, action):
        os.kill(self.server.pid, 0)
        alive = self.server.poll() is None if sys.argv[1] == "Popen" else self.server.is_alive()
        return "next", float(alive), False, {}
    def render(self, mode=None): return "next"
    def close(self): pass

register_env("Env", Env)
for _ in range(3):
    with EnvStateManager(config({"Env": {"env_type": "Env"}}, [("Env", 1)], use_multiprocessing=False)) as manager:
        play(manager, 1)
        assert manager.envs[0]["status"].rewards == [1.0]
    del manager
print(Env.server.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["Popen", "Process"])
def test_a_process_that_a_class_keeps_for_the_next_manager_ends_with_the_program(tmp_path, how):
    program = scripts.start(scripts.write(tmp_path, KEPT), how, stdin=scripts.subprocess.PIPE)
    assert program.stdout is not None
    *own, kept = [int(program.stdout.readline() or program.communicate()[1]) for _ in range(4)]
    server = psutil.Process(kept)
    assert server.is_running() and not any(psutil.pid_exists(pid) for pid in own)
    _, errors = program.communicate("", timeout=60)
    assert program.returncode == 0, errors
    assert not psutil.wait_procs([server], timeout=30)[1]


AT_EXIT = """
import atexit
class Env(BaseEnv):
    uses_global_rng = False
    def __init__(self, config=None):
        atexit.register(print, "theirs")
        atexit.register(time.sleep, 10**6)
        def flush():
            time.sleep(0.01)
            print("flushed")
        self.thread = threading.Thread(target=lambda: (time.sleep(10**6), print("never")))
        self.thread.start()
        atexit.register(flush)
    def reset(self, seed=None, mode=None): return "start"
    def step(self, action): return "next", 0.0, False, {}
    def render(self, mode=None): return "next"

register_env("Env", Env)
atexit.register(print, "before")
manager = EnvStateManager(config({"Env": {"env_type": "Env"}}, [("Env", 1)], use_multiprocessing=False))
play(manager, 1)
atexit.register(print, "after")
"""


def test_an_exit_function_of_an_environment_that_hangs_is_interrupted_and_the_others_run(tmp_path):
    printed = scripts.run(scripts.write(tmp_path, AT_EXIT)).split()
    assert printed == ["after", "flushed", "theirs", "before"], "a thread of an environment is cut off at the end"
