"""Environments in workers find the program as it is: its settings, the ids it registered, its script, its logging."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from support.gym_envs import Walk, kill, same

pytestmark = pytest.mark.processes


class Asks(gymnasium.Env):
    """Shows the result of a function."""

    def __init__(self, ask):
        self.observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._ask = ask

    def reset(self, *, seed=None, options=None):
        return np.array([self._ask()], np.float64), {}

    def step(self, action):
        return np.array([self._ask()], np.float64), 0.0, False, False, {}


def deep(depth):
    return 0 if not depth else 1 + deep(depth - 1)


def mode_of_a_file():
    path = Path(f"of {os.getpid()} {time.perf_counter()}")
    path.touch()
    return float(path.stat().st_mode)


def shadowed():
    import found_twice

    return found_twice.VALUE


def by_path():
    import loaded_by_path

    return loaded_by_path.VALUE


def load_by_path(folder):
    import importlib.util

    (folder / "by.path.py").write_text("VALUE = 8.0")
    spec = importlib.util.spec_from_file_location("loaded_by_path", folder / "by.path.py")
    assert spec is not None and spec.loader is not None
    sys.modules["loaded_by_path"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["loaded_by_path"])


def put_first(folder):
    for name, value in (("last", 1.0), ("first", 2.0)):
        (folder / name).mkdir()
        (folder / name / "found_twice.py").write_text(f"VALUE = {value}")
        sys.path.insert(0, str(folder / name))


def set_zone(folder):
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()


SETTINGS: dict[str, tuple[Callable[[Path], Any], Callable[[], float]]] = {
    "recursion limit": (lambda folder: sys.setrecursionlimit(20_000), partial(deep, 3000)),
    "variable": (lambda folder: os.environ.update(OF_MINE="5"), lambda: float(os.environ.get("OF_MINE", -1))),
    "variable removed": (lambda folder: os.environ.pop("HERE_FIRST"), lambda: float(os.environ.get("HERE_FIRST", -1))),
    "folder": (lambda folder: os.chdir(folder / "there"), lambda: float(Path.cwd().name == "there")),
    "import path": (put_first, shadowed),
    "module by path": (load_by_path, by_path),
    "time zone": (set_zone, lambda: time.localtime(0).tm_hour),
    "umask": (lambda folder: os.umask(0o077), mode_of_a_file),
    "sockets": (lambda folder: socket.setdefaulttimeout(7.0), lambda: socket.getdefaulttimeout() or -1.0),
}


@pytest.fixture
def restored(monkeypatch, tmp_path):
    limit, mask, modules = sys.getrecursionlimit(), os.umask(0o022), set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("OF_MINE", "HERE_FIRST", "TZ"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HERE_FIRST", "3")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    yield
    monkeypatch.undo()
    sys.setrecursionlimit(limit), os.umask(mask), socket.setdefaulttimeout(None), time.tzset()
    for name in {"found_twice", "loaded_by_path"} & (set(sys.modules) - modules):
        del sys.modules[name]


@pytest.mark.parametrize("given", [{}, {"backend": "executor"}], ids=["process", "executor"])
def test_settings_of_the_program_reach_workers_that_run_already(lanes, restored, tmp_path, given):
    lanes([partial(Asks, lambda: 1.0)] * 2, **given).reset(seed=0)  # its workers are shared by all that follow
    for change, _ in SETTINGS.values():
        change(tmp_path)
    fns = [partial(Asks, ask) for _, ask in SETTINGS.values()]
    envs, other = lanes(fns, **given), SyncVectorEnv(fns)
    same(envs.reset(seed=0), other.reset(seed=0))
    kill(envs)
    same(envs.step(np.zeros(len(fns), int)), other.step(np.zeros(len(fns), int)))


@pytest.mark.parametrize("entry_point", [Walk, "support.gym_envs:Walk"], ids=["class", "path"])
def test_ids_that_the_program_registered_are_known_in_workers(lanes, entry_point):
    gymnasium.register("OfTheProgram-v0", entry_point=entry_point)
    gymnasium.register("Unsendable-v0", entry_point=Walk, kwargs={"lock": sys._getframe()})
    try:
        fns = [lambda: gymnasium.make("OfTheProgram-v0", disable_env_checker=True)] * 2
        same(lanes(fns).reset(seed=3), SyncVectorEnv(fns).reset(seed=3))
    finally:
        del gymnasium.registry["OfTheProgram-v0"], gymnasium.registry["Unsendable-v0"]


SCRIPT = """
import logging, multiprocessing, pickle, sys
import gymnasium, numpy as np
from envlanes.gym import LaneVectorEnv

def square(x):
    return x * x

class Helped(gymnasium.Env):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-99, 99, (1,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        assert type(pickle.loads(pickle.dumps(self))) is Helped
        with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
            found = pool.apply(square, (3,))
        logging.getLogger("simulator").info("reset %s", {"at": 1}, extra={"own": square})
        try:
            raise ValueError("of the map")
        except ValueError:
            logging.getLogger("simulator").exception("collided")
        logging.getLogger("other").info("too low")
        return np.array([found], float), {}

if __name__ == "__main__":
    first = LaneVectorEnv([Helped], workers=1)
    logging.basicConfig(filename=sys.argv[3], level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
    logging.getLogger("other").setLevel(logging.ERROR)
    for envs in first, LaneVectorEnv([lambda: Helped()], workers=1, backend=sys.argv[2]):
        assert envs.reset(seed=0)[0].tolist() == [[9.0]]
    envs.close(), first.close()
"""


@pytest.mark.parametrize("backend", ["process", "executor"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_class_of_the_script_pickles_its_functions_and_logs_as_in_the_script(tmp_path, backend, method):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(tmp_path / "script.py"), method, backend, str(tmp_path / "log")]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path})
    assert not done.returncode, done.stderr
    logged = (tmp_path / "log").read_text()
    assert "simulator INFO reset {'at': 1}" in logged and "simulator ERROR collided" in logged
    assert "ValueError: of the map" in logged and "too low" not in logged
