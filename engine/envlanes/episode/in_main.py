"""Environments in the main process: a deadline as far as one can be enforced there, and an end to what they leave.

A worker is killed, with all that its environments have started. In the main process, which cannot be killed:

* An alarm (SIGALRM) interrupts an overdue environment: loops in Python, sleeps, waits for locks. It cannot interrupt C
  code that does not return to the interpreter, nor anything outside the main thread. A process that uses this signal or
  the real-time interval timer itself keeps them, and has no deadline here.
* Child processes of environments are told from the program's own by when they appear: :class:`EnvironmentCode`
  surrounds each call into environments. Children of the calling thread that are new when the call returns, those of
  threads that it has started, and their descendants belong to environments (Linux). What other threads start
  meanwhile is not in these lists. Nor are orphans, such as the child of a shell that has ended: the main process must
  not adopt other people's. They end with the last engine, or, where an object of the program still holds them, with the
  program.
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
from functools import cache
from threading import current_thread
from time import perf_counter
from types import FrameType, SimpleNamespace
from typing import Any
from weakref import WeakSet

from envlanes import linux
from envlanes.episode import host
from envlanes.episode.outcome import Overdue
from envlanes.interrupts import in_main_thread

_REAL, _DEFAULT = _signal.ITIMER_REAL, _signal.SIG_DFL
_SOON = 0.001  # seconds after which to look again where nothing may be interrupted
_LONGEST = 1e6  # longest setting of the timer, in seconds; a longer deadline sets it again
_OURS = (host.__file__, __file__)  # not interrupted: half of a change would be left behind
_AGAIN = 1.0  # seconds until an environment that swallowed the interrupt is interrupted again
EXIT_TIMEOUT = 2.0  # seconds for environments' exit functions, and for processes from SIGTERM to SIGKILL

_children = linux.ThreadChildren()
_threads: WeakSet[threading.Thread] = WeakSet()  # started by environments
_processes: set[Any] = set()  # of psutil, which knows a process from a later one with its id
_registered = -1  # the number of exit functions when _disarm was registered last
_pid = os.getpid()


class Deadline:
    """A context manager that raises ``Overdue`` in environments of a host that take too long.

    Deadlines may be nested. Entering it returns whether a deadline is enforced; see above.

    Args:
        home: Has ``since``, when the code began that may be interrupted, on ``time.perf_counter()``; or 0.
        seconds: Time that it may take.
    """

    __slots__ = ("_handler", "_home", "_outer", "_seconds")

    def __init__(self, home: Any, seconds: float) -> None:
        self._home = home
        self._seconds = seconds
        self._handler: Any = None  # while it is set

    def __enter__(self) -> bool:
        outer = self._outer = _signal.getsignal(_signal.SIGALRM)
        is_ours = isinstance(getattr(outer, "__self__", None), Deadline)
        is_taken = _signal.getitimer(_REAL)[0] if outer is _DEFAULT else not is_ours
        if is_taken or not in_main_thread():
            return False
        handler = self._handler = self._ring
        # SIGALRM without a handler ends the process: the handler comes before the timer, and goes after it.
        _signal.signal(_signal.SIGALRM, handler)
        _signal.setitimer(_REAL, self._seconds if self._seconds < _LONGEST else _LONGEST)
        return True

    def __exit__(self, *_: object) -> None:
        handler, self._handler = self._handler, None  # a signal from here on must not set the timer again
        if handler is None or _signal.getsignal(_signal.SIGALRM) is not handler:
            return  # the environment has taken it
        _signal.setitimer(_REAL, 0)
        _signal.signal(_signal.SIGALRM, self._outer)
        if self._outer is not _DEFAULT:
            _signal.setitimer(_REAL, _SOON)  # for another deadline, which recomputes its remaining time

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


class EnvironmentCode:
    """A context manager around the code of environments in the main process; costs a few microseconds a call."""

    __slots__ = ("_before", "_started", "_was_daemonic")

    def __enter__(self) -> None:
        global _registered
        _end_processes_first_at_exit()
        if _registered != atexit._ncallbacks():  # else _disarm is still what was registered last
            atexit.register(_disarm)
            _registered = atexit._ncallbacks()
        thread: Any = current_thread()
        self._was_daemonic = thread._daemonic  # no public setter works once a thread runs
        thread._daemonic = True  # new threads take it from the thread that starts them
        self._started = threading.enumerate()
        self._before = _children.read()

    def __exit__(self, *_: object) -> None:
        global _registered
        # The list is closed where environments' code has closed the engine.
        after = _children.read() if _children.is_open else self._before
        thread: Any = current_thread()
        thread._daemonic = self._was_daemonic
        if (now := threading.enumerate()) != self._started:
            new = set(now).difference(self._started)
            _threads.update(each for each in new if each.daemon)  # few threads of the program's other threads are
        if _threads:
            _note(_of_threads())
        if after != self._before:
            _note(set(after.split()).difference(self._before.split()))
        if _registered != atexit._ncallbacks():  # functions run in reverse order: _arm, the environments', _disarm
            atexit.register(_arm)
            _registered = -1


def end_processes(at_exit: bool = False) -> None:
    """End the processes that environments have started, with their descendants: SIGTERM, then SIGKILL.

    Args:
        at_exit: Whether the program ends; else those that one of its objects holds stay, for the next engine.
    """
    if os.getpid() != _pid:
        return
    _children.close()
    _note(_of_threads())
    if not _processes:
        return
    import psutil  # late: only environments with processes need it

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


def _note(pids: set[bytes]) -> None:
    if not pids:
        return
    import psutil

    _processes.difference_update([each for each in _processes if not each.is_running()])
    for pid in set(map(int, pids)) - _of_multiprocessing():
        with contextlib.suppress(psutil.Error):
            _processes.add(psutil.Process(pid))


def _of_threads() -> set[bytes]:
    alive = [thread.native_id for thread in _threads if thread.native_id]
    return {pid for thread in alive for pid in linux.children_of_thread(thread).split()}


def _of_multiprocessing() -> set[int | None]:
    """The standard library's helper processes, which the program uses too, and which end with it."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    return {getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None)}


def _held() -> set[int | None]:
    """Ids of the processes whose ``Popen`` or ``Process`` is still in use, such as a browser in a module's variable.

    Two lists of the standard library hold objects that nobody else does, to wait for their processes later:
    ``subprocess._active``, which takes in a ``Popen`` as it is destroyed, and multiprocessing's ``_children``.
    """
    gc.collect()  # an environment that is closed may be part of a cycle, which holds nothing for anybody
    process = getattr(sys.modules.get("multiprocessing.process"), "BaseProcess", subprocess.Popen)
    children: set[Any] = getattr(sys.modules.get("multiprocessing.process"), "_children", set())
    dropped = set(map(id, getattr(subprocess, "_active", None) or ()))
    kinds = subprocess.Popen, process
    known = [each for each in gc.get_objects() if issubclass(type(each), kinds)]  # isinstance() would ask a proxy
    held = set()
    for each in known:
        is_child = isinstance(each, process) and each in children
        # `known`, `each` and the argument of getrefcount() are three references.
        if id(each) not in dropped and sys.getrefcount(each) > 3 + is_child:
            held.add(each.pid)
    return held


@cache
def _end_processes_first_at_exit() -> None:
    """Have processes ended before any exit function runs, since multiprocessing's waits for its own.

    A function that is registered when the main thread ends runs before all others, and once all threads have ended
    that may still play.
    """
    with contextlib.suppress(RuntimeError):  # the main thread has ended
        getattr(threading, "_register_atexit", atexit.register)(atexit.register, end_processes, True)
        return
    atexit.register(end_processes, True)


_exit = SimpleNamespace(since=0.0)
_exit_deadline = Deadline(_exit, EXIT_TIMEOUT)


def _arm() -> None:
    _exit.since = perf_counter()
    _exit_deadline.__enter__()


def _disarm() -> None:
    _exit_deadline.__exit__()
