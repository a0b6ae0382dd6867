"""Environments that misbehave: each does one thing wrong at one place, always or once.

All of them play the same honest little game (:class:`Walk`), so what an environment would have given is known. What
must never happen in the main process (hang, exit, kill) refuses to happen there: it raises :class:`ReachedMain`.

Places: ``load`` (its configuration is unpickled in a worker), ``init``, ``reset``, ``turn N``, ``render`` (of turn 1),
``replay`` (the reset of a second life), ``close``, ``thread`` (soon after turn 1, from a thread).
"""

# mypy: disable-error-code="func-returns-value"

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envlanes.episode import program
from envlanes.episode.host import REPLAY_S
from support.toy_envs import BaseEnv

FOREVER = 10**6


class ReachedMain(Exception):
    """Something that ends or blocks a process was about to happen in the main process."""


@dataclass
class FaultConfig:
    """A fault, and its place.

    Attributes:
        fault: A key of ``FAULTS``.
        place: See the module.
        once: Path of a file that the fault leaves behind, and that keeps it from happening again; "" for always.
        lives: Path of a file that counts how often the environment was built, for ``place: replay``.
    """

    fault: str = "nothing"
    place: str = "turn 1"
    once: str = ""
    lives: str = ""

    def __setstate__(self, state):
        self.__dict__.update(state)
        if program.in_worker:
            misbehave(self, "load")


class Walk(BaseEnv):
    """Walks along a line at random; over once its place divides by 17."""

    uses_global_rng = False

    def __init__(self, config=None):
        self.config = config
        self.place = 0

    def reset(self, seed=None, mode=None):
        self.random = random.Random(seed)
        self.steps = 0
        self.place = self.random.randrange(100)
        return self.sight()

    def step(self, action):
        self.steps += 1
        self.place += self.random.randrange(10) + len(action)
        there = self.place % 17 == 0
        return self.sight(), self.place / 7, there, {"success": there, "place": self.place}

    def render(self, mode=None):
        return self.sight()

    def sight(self):
        return f"at {self.place} after {self.steps} steps"


class Slow(Walk):
    """The same walk, a few milliseconds a step."""

    def step(self, action):
        time.sleep(0.003)
        return super().step(action)


class Pictures(Walk):
    """The same walk, shown as an image."""

    def render(self, mode=None):
        image = np.full((8, 6, 3), self.place % 256, np.uint8)
        image[0, 0] = self.steps % 256
        return image


class GlobalDraws(Walk):
    """Draws from the global generators, in the usual and in unusual ways."""

    uses_global_rng = True

    def reset(self, seed=None, mode=None):
        self.steps = 0
        self.place = random.randrange(50) + int(np.random.randint(50))
        return self.sight()

    def step(self, action):
        self.steps += 1
        self.place += random.randrange(10) + int(np.random.randint(10)) + int(10 * np.random.normal()) + len(action)
        if self.steps == 2:
            random.seed(self.place)
            np.random.seed(self.place % 1000)
        return self.sight(), float(np.random.rand()), False, {"draw": random.random()}


class Unreplayable(Walk):
    """Says that it cannot be rebuilt."""

    replayable = False


class Clock(Walk):
    """Tells the time: never the same again."""

    def render(self, mode=None):
        return f"at {self.place}, {time.perf_counter_ns()} ns"


class SavesBadly(Walk):
    """Loads another place, and takes long enough for snapshots to be worth their while."""

    def step(self, action):
        time.sleep(2 * REPLAY_S)
        return super().step(action)

    def save(self):
        return self.random.getstate(), self.steps, self.place + 1

    def load(self, state):
        self.random = random.Random()
        generator, self.steps, self.place = state
        self.random.setstate(generator)


class RaisesLoading(SavesBadly):
    def save(self):
        return None

    def load(self, state):
        raise ValueError("not me")


class Faulty(Walk):
    """Walks like the others until it misbehaves."""

    config_class = FaultConfig

    def __init__(self, config):
        super().__init__(config)
        self.extra: dict[str, Any] = {}
        self.shown = 0
        self.life = _count_life(config.lives)
        self._misbehave("init")

    def reset(self, seed=None, mode=None):
        self.shown = 0
        self.extra = {}
        self._misbehave("reset")
        if self.life > 1:
            self._misbehave("replay")
        return super().reset(seed, mode)

    def step(self, action):
        self._misbehave(f"turn {self.shown - 1}")
        if self.config.place == "thread" and self.shown == 2 and program.in_worker:
            threading.Timer(0.02, self._misbehave, ("thread",)).start()
        observation, reward, done, info = super().step(action)
        return observation, reward, done, {**info, **self.extra}

    def render(self, mode=None):
        self.shown += 1  # once after the reset, and once after each turn
        if self.shown == 2:
            self._misbehave("render")
        return super().render()

    def close(self):
        self._misbehave("close")

    def _misbehave(self, place):
        self.extra = misbehave(self.config, place) or self.extra


def misbehave(config, place):
    """Misbehave, if this is the place and the time; what the fault adds to the info of the turn."""
    if config.place != place:
        return None
    if config.once:
        try:
            Path(config.once).touch(exist_ok=False)
        except FileExistsError:
            return None
    return FAULTS[config.fault]()


def _count_life(path):
    if not path:
        return 1
    with open(path, "ab") as file:
        file.write(b".")
        return file.tell()


def in_worker_only(deed):
    """The deed, which refuses to be done in the main process."""

    def guarded():
        if not program.in_worker:
            raise ReachedMain(deed.__name__)
        return deed()

    return guarded


class Unpicklable:
    """Cannot be pickled; equal to others of its kind."""

    def __reduce__(self):
        raise TypeError("this one stays here")

    def __eq__(self, other):
        return type(self) is type(other)

    __hash__ = None  # type: ignore[assignment]


class Unloadable(Unpicklable):
    """Can be pickled, but not unpickled."""

    def __reduce__(self):
        return _refuse, ()


class Springs(Unpicklable):
    """Runs code as it is unpickled."""

    def __init__(self, deed, *arguments):
        self.spring = deed, arguments

    def __reduce__(self):
        return self.spring

    def __deepcopy__(self, memo):
        return self


def _refuse():
    raise ValueError("this one does not arrive")


class OddError(Exception):
    """An error that pickles into something else, and cannot say what it is."""

    def __reduce__(self):
        return str, ("no exception at all",)

    def __str__(self):
        raise RuntimeError("speechless")


class Interrupt(BaseException):
    """No ``Exception``, so that no ordinary handler stops it."""


def _loop():
    while True:
        pass


def _sleep():
    time.sleep(FOREVER)


def _deadlock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def _exit():
    os._exit(3)


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _crash():
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def _terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def _interrupt():
    raise Interrupt("nobody catches this")


def _raise_ctrl_c():
    raise KeyboardInterrupt("of my own")


def _cancel():
    raise asyncio.CancelledError("cancelled")


def _leave_generator():
    raise GeneratorExit


def _eat_memory():
    limit = 1 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    eaten = bytearray(limit)
    raise AssertionError(f"{len(eaten)} bytes were not too many")


def _raise():
    raise ValueError("boom")


def _leave_interpreter():
    sys.exit(4)


def _raise_odd():
    raise OddError


def _return_unpicklable():
    return {"handle": Unpicklable()}


def _return_unloadable():
    return {"handle": Unloadable()}


def _return_much():
    return {"frame": b"x" * (100 << 20)}


def _build_slowly():
    threading.Event().wait(0.3)


def _dawdle():
    threading.Event().wait(0.05)


def _leave_threads():
    if program.in_worker:
        for daemon in (False, True):
            threading.Thread(target=time.sleep, args=(FOREVER,), daemon=daemon).start()


def _leave_children(hidden=True):
    """Plain and in a session of its own, started and forked; and hidden, with an environment of its own."""
    sleep = ["sleep", str(FOREVER)]
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, start_new_session=True)
    if hidden:
        kept = {name: os.environ[name] for name in ("PATH", "RAGEN_TESTED_BY") if name in os.environ}
        subprocess.Popen(sleep, env=kept, start_new_session=True)
    _fork(time.sleep, FOREVER)
    _fork(lambda: (os.setsid(), time.sleep(FOREVER)))


def _fork(work, *arguments):
    if os.fork() == 0:
        try:
            work(*arguments)
        finally:
            os._exit(0)


def _return_twice():
    os.fork()


def _print_much():
    for _ in range(2000):
        print("to whom it may concern", "x" * 100)
    print("noise", file=sys.stderr)


def _change_process():
    """Faults that concern the whole process; in the main process they would harm the tests."""
    os.chdir("/")
    sys.path.clear()
    os.environ.clear()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR2, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)


def _close_files():
    os.closerange(0, 256)


def _close_standard_files():
    sys.stdout.close()
    sys.stderr.close()


FAULTS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "loops": in_worker_only(_loop),
    "sleeps": in_worker_only(_sleep),
    "deadlocks": in_worker_only(_deadlock),
    "stops": in_worker_only(_stop),
    "exits": in_worker_only(_exit),
    "is killed": in_worker_only(_kill),
    "crashes": in_worker_only(_crash),
    "is terminated": in_worker_only(_terminate),
    "interrupts": _interrupt,
    "raises ctrl-c": in_worker_only(_raise_ctrl_c),
    "cancels": _cancel,
    "leaves generator": _leave_generator,
    "eats memory": in_worker_only(_eat_memory),
    "closes files": in_worker_only(_close_files),
    "raises": _raise,
    "raises in workers": lambda: program.in_worker and _raise(),
    "leaves": _leave_interpreter,
    "raises oddly": _raise_odd,
    "returns unpicklable": _return_unpicklable,
    "returns unloadable": _return_unloadable,
    "returns much": _return_much,
    "returns exiting": lambda: {"handle": Springs(os._exit, 3)},
    "returns leaving": lambda: {"handle": Springs(sys.exit, 3)},
    "returns sleeping": lambda: {"handle": [{"deep": Springs(time.sleep, FOREVER)}]},
    "is slow": _build_slowly,
    "dawdles": _dawdle,
    "leaves threads": _leave_threads,
    "leaves children": lambda: program.in_worker and _leave_children(),
    "leaves marked children": in_worker_only(lambda: _leave_children(hidden=False)),
    "leaves children and exits": in_worker_only(lambda: (_leave_children(hidden=False), _exit())),
    "returns twice": lambda: program.in_worker and _return_twice(),
    "prints much": lambda: program.in_worker and _print_much(),
    "changes process": lambda: program.in_worker and _change_process(),
    "closes standard files": lambda: program.in_worker and _close_standard_files(),
}
