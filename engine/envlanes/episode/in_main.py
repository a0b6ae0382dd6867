"""Environments in the main process: a deadline as far as one can be enforced there, and an end to what they leave.

A worker is killed, with all that its environments have started. In the main process, which cannot be killed:

* An alarm (SIGALRM) interrupts an overdue environment: loops in Python, sleeps, waits for locks. It cannot interrupt C
  code that does not return to the interpreter, nor anything outside the main thread. A process that uses this signal or
  the real-time interval timer itself keeps them, and has no deadline here.
* Child processes of environments are told from the program's own by when they appear: children of the calling thread
  that are new when a call into environments returns, and their descendants, belong to environments (Linux). What other
  threads start is not in these lists. Nor are orphans, such as the child of a shell that has ended: the main process
  must not adopt other people's. They end with the last engine, or, where an object of the program still holds them,
  with the program.
* Threads are daemons unless they say otherwise.
* Functions registered with :mod:`atexit` are interrupted if they take too long.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as signal, without its enumerations: ten times as fast
import atexit
import contextlib
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from math import inf
from threading import current_thread
from time import perf_counter
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar
from weakref import WeakSet

from envlanes import linux
from envlanes.episode import host
from envlanes.episode.outcome import Overdue
from envlanes.interrupts import in_main_thread

T = TypeVar("T")

_REAL = _signal.ITIMER_REAL
_SOON = 0.001  # seconds after which to look again where nothing may be interrupted; a timer of 0 never rings
_LONGEST = 1e6  # longest setting of the timer, in seconds; a longer deadline sets it again
_OURS = (host.__file__, __file__)  # not interrupted: half of a change would be left behind
_AGAIN = 1.0  # seconds until an environment that swallowed the interrupt is interrupted again
EXIT_TIMEOUT = 2.0  # seconds for environments' exit functions, and for processes from SIGTERM to SIGKILL

_one_at_a_time = threading.RLock()  # environments of different engines may share state in their modules
_children = linux.ThreadChildren()
_processes: set[Any] = set()  # of psutil, which knows a process from a later one with its id
_registered = -1  # the number of exit functions when _disarm was registered last
_pid = os.getpid()


class MainHome:
    """The environments of one engine that live in the main process.

    Attributes:
        has_deadlines: Whether an environment that takes too long is interrupted.
    """

    def __init__(self) -> None:
        self.has_deadlines = True
        self._host = host.EnvHost()
        _main_homes.add(self)

    def run(
        self, work: Callable[[host.EnvHost], T], timeout: float, until: float = inf, counts_children: bool = False
    ) -> T:
        """Have the host do some work; each item may take ``timeout`` seconds; see :class:`.EnvHost` for the others."""
        deadline = Deadline(self._host, timeout) if self.has_deadlines else contextlib.nullcontext()
        with _one_at_a_time, _environment_code(), deadline:
            self._host.until, self._host.counts_children = until, counts_children
            return work(self._host)

    def close(self, timeout: float) -> None:
        """Close all of them, in ``timeout`` seconds together: each has an equal part of what the others have left."""
        until, env_ids = perf_counter() + timeout, self._host.env_ids
        with _one_at_a_time:
            with _environment_code():
                for waiting, env_id in zip(range(len(env_ids), 0, -1), env_ids, strict=True):
                    part = max(_SOON, round((until - perf_counter()) / waiting, 3))
                    with Deadline(self._host, part):
                        self._host.unload([env_id])
            # Environments share the processes that one of them has started: they end with the last. The list is a copy,
            # since other threads may make more homes meanwhile.
            if not any(home._host.env_ids for home in list(_main_homes)):
                _end_processes()


_main_homes: WeakSet[MainHome] = WeakSet()


class Deadline:
    """A context manager that raises ``Overdue`` in environments of a host that take too long.

    Entering it does nothing where no deadline can be enforced; see above. An environment that steps others in its own
    turn has one deadline for all of that.

    Args:
        home: Has ``since``, when the code began that may be interrupted, on ``time.perf_counter()``; or 0.
        seconds: Time that it may take.
    """

    __slots__ = ("_handler", "_home", "_seconds")

    def __init__(self, home: Any, seconds: float) -> None:
        self._home = home
        self._seconds = seconds
        self._handler: Any = None  # while it is set

    def __enter__(self) -> None:
        is_taken = _signal.getsignal(_signal.SIGALRM) is not _signal.SIG_DFL or _signal.getitimer(_REAL)[0]
        if is_taken or not in_main_thread():
            return
        handler = self._handler = self._ring
        # SIGALRM without a handler ends the process: the handler comes before the timer, and goes after it.
        _signal.signal(_signal.SIGALRM, handler)
        _signal.setitimer(_REAL, self._seconds if self._seconds < _LONGEST else _LONGEST)

    def __exit__(self, *_: object) -> None:
        handler, self._handler = self._handler, None  # a signal from here on must not set the timer again
        if handler is None or _signal.getsignal(_signal.SIGALRM) is not handler:
            return  # the environment has taken it
        _signal.setitimer(_REAL, 0)
        _signal.signal(_signal.SIGALRM, _signal.SIG_DFL)

    def _ring(self, _: int, frame: FrameType | None) -> None:
        if self._handler is None:
            return
        since = self._home.since
        left = since + self._seconds - perf_counter() if since else _SOON
        # There is no frame where an exit function is one of C's, such as time.sleep.
        if left > 0 or (frame is not None and frame.f_code.co_filename in _OURS):
            _signal.setitimer(_REAL, min(max(left, _SOON), _LONGEST))
            return
        _signal.setitimer(_REAL, _AGAIN)
        raise Overdue(f"timed out after {self._seconds:g} s")


@contextlib.contextmanager
def _environment_code() -> Iterator[None]:
    """Surround the code of environments in the main process; costs a few microseconds a call."""
    global _registered
    _end_processes_first_at_exit()
    if _registered != atexit._ncallbacks():  # else _disarm is still what was registered last
        atexit.register(_disarm)
        _registered = atexit._ncallbacks()
    thread: Any = current_thread()
    was_daemonic = thread._daemonic  # no public setter works once a thread runs
    thread._daemonic = True  # new threads take it from the thread that starts them
    before = _children.read()
    try:
        yield
    finally:
        thread._daemonic = was_daemonic
        # The list is closed where environments' code has closed the engine.
        if _children.is_open and (after := _children.read()) != before:
            _note(set(map(int, after.split())).difference(map(int, before.split())))
        if _registered != atexit._ncallbacks():  # functions run in reverse order: _arm, the environments', _disarm
            atexit.register(_arm)
            _registered = -1


def _note(pids: set[int]) -> None:
    from multiprocessing import forkserver, resource_tracker

    import psutil  # late: only environments with processes need it

    # The standard library's helper processes, which the program uses too, and which end with it.
    helpers: set[Any] = {resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid}  # type: ignore[attr-defined]
    _processes.difference_update([each for each in _processes if not each.is_running()])
    for pid in pids - helpers:
        with contextlib.suppress(psutil.Error):
            _processes.add(psutil.Process(pid))


def _end_processes(at_exit: bool = False) -> None:
    """End the processes that environments have started, with their descendants: SIGTERM, then SIGKILL.

    Args:
        at_exit: Whether the program ends; else those that one of its objects holds stay, for the next engine.
    """
    if os.getpid() != _pid:
        return
    _children.close()
    if not _processes:
        return
    import psutil

    held = set() if at_exit else _held()
    family = {each for each in _processes if each.pid not in held and each.is_running()}
    _processes.difference_update([each for each in _processes if each.pid not in held])
    # Before any is ended: the children of a process that is gone are orphans, which nothing tells from the program's.
    for each in list(family):
        with contextlib.suppress(psutil.Error):
            family.update(each.children(recursive=True))
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for each in family:
            with contextlib.suppress(psutil.Error):
                end(each)
        family = set(psutil.wait_procs(family, EXIT_TIMEOUT)[1])


def _held() -> set[int | None]:
    """Ids of the processes whose ``Popen`` or ``Process`` is still in use, such as a browser in a module's variable."""
    from multiprocessing import process

    gc.collect()  # an environment that is closed may be part of a cycle, which holds nothing for anybody
    # Two lists of the standard library hold objects that nobody else does, to wait for their processes later.
    waiting: list[Any] = [*subprocess._active, *process._children]  # type: ignore[attr-defined]
    kinds = subprocess.Popen, process.BaseProcess
    known = [each for each in gc.get_objects() if issubclass(type(each), kinds)]  # isinstance() would ask a proxy
    # `known`, `each` and the argument of getrefcount() are three references; one of those lists, and its copy, two.
    return {each.pid for each in known if sys.getrefcount(each) > (5 if each in waiting else 3)}


@cache
def _end_processes_first_at_exit() -> None:
    """Have processes ended before any exit function runs, since multiprocessing's waits for its own.

    A function that is registered when the main thread ends runs before all others, and once all threads have ended
    that may still play.
    """
    try:
        threading._register_atexit(atexit.register, _end_processes, True)  # type: ignore[attr-defined]
    except RuntimeError:  # the main thread has ended
        atexit.register(_end_processes, True)


_exit = SimpleNamespace(since=0.0)
_exit_deadline = Deadline(_exit, EXIT_TIMEOUT)


def _arm() -> None:
    _exit.since = perf_counter()
    _exit_deadline.__enter__()


def _disarm() -> None:
    _exit_deadline.__exit__()
