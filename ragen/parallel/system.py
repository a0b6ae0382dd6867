"""Tricks of the operating system: what only Linux can do, and what stands in for it elsewhere."""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_SWEEP_TIMEOUT = 1.0  # seconds
_WAIT_STEP = 0.002  # seconds between looks for the end of a fork
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def usable_cpus() -> int:
    """Processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; elsewhere than on Linux the parent has to do it.

    Args:
        parent: The parent's process id as it was before; if it is gone already, this process ends now.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of this process's descendants whose own parents end, so that they can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Process ids of this process's children, adopted orphans included; empty where the system does not tell."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> set[int]:
    """Process ids of a process's children, their children and so on; empty where the system does not tell."""
    found: set[int] = set()
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                found |= {child} | descendants(child)
    except OSError:  # it ended meanwhile
        pass
    return found


def has_in_environment(pid: int, entry: str) -> bool:
    """Whether a process was started with this ``NAME=value`` in its environment."""
    try:
        return entry.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def has_mapped(pid: int, name: str) -> bool:
    """Whether a process has the :func:`anonymous_file` of this name in its memory, as forks of one that has it do."""
    try:
        return f"memfd:{name} ".encode() in Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False


def kill_all_with(entry: str, mapped: str) -> None:
    """Kill every process of this user that carries a mark, this one aside.

    Looks again until none is found twice: one that is in the middle of an exec shows no environment for a moment.

    Args:
        entry: The mark: a ``NAME=value`` of the environment that the process was started with;
        mapped: or the name of an :func:`anonymous_file` that it has in its memory.
    """
    deadline, misses = time.monotonic() + _SWEEP_TIMEOUT, 0
    while misses < 2 and time.monotonic() < deadline:
        pids = {int(folder.name) for folder in Path("/proc").glob("[0-9]*")} - {os.getpid()}
        found = [pid for pid in pids if has_in_environment(pid, entry) or has_mapped(pid, mapped)]
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        misses = 0 if found else misses + 1
        select.select([], [], [], 0.01)


def anonymous_file(name: str) -> int:
    """Open a file that has no path and goes away with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Fork:
    """A fork of this process that does one thing and ends; waited for and killed like a ``subprocess.Popen``.

    Attributes:
        pid: Its process id.
        returncode: How it ended: its exit code, negative for a signal; None while it is not known to have ended.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        """Fork, and do ``work`` in the child, which shares no session with this process and gets none of its signals.

        Raises:
            OSError: There can be no more processes.
        """
        self.returncode: int | None = None
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or none at all
                stream.flush()  # or what waits in it would be written by the child too
        self.pid = os.fork()
        if self.pid == 0:
            self._be_child(work)

    def _be_child(self, work: Callable[[], None]) -> None:
        """Never returns: the callers' frames, with all that they would clean up, are the parent's."""
        code = 1
        try:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            gc.freeze()  # what was the parent's is not to be finalized here
            for number in signal.valid_signals():
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.SIG_DFL)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def poll(self) -> int | None:
        """``returncode``, after a look."""
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # someone else has waited for it
                self.returncode = -signal.SIGKILL
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: It did not end within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout)
            select.select([], [], [], _WAIT_STEP)
        return code

    def kill(self) -> None:
        """Kill it, if it was not seen to have ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class _Interrupts:
    """Keeps SIGINT back in the main thread, the only one in which Python handles signals."""

    def __init__(self) -> None:
        self._depth = 0
        self._handler: Any = None
        self._arrived = False

    @contextmanager
    def held(self) -> Iterator[None]:
        if threading.get_ident() != threading.main_thread().ident:
            yield
            return
        outer = self._depth
        if not outer:
            self._install()
        self._depth = outer + 1
        try:
            yield
        finally:
            self._depth = outer
            if not outer:
                self._remove()

    @contextmanager
    def let_through(self) -> Iterator[None]:
        if not self._depth or threading.get_ident() != threading.main_thread().ident:
            yield
            return
        depth, self._depth = self._depth, 0
        try:
            self._remove()
            yield
        finally:
            self._install()
            self._depth = depth

    def _install(self) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):  # one that is ignored, or ends the process, interrupts nothing
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)

    def _remove(self) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        if signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, handler)
        arrived, self._arrived = self._arrived, False  # only now: until then one could still be noted
        if arrived:
            signal.raise_signal(signal.SIGINT)

    def _note(self, *_: Any) -> None:
        self._arrived = True


def may_come_from_signal(error: BaseException) -> bool:
    """Whether it was perhaps not the code that ran which raised this, but the handler of a signal to the process.

    A ``KeyboardInterrupt`` wherever Ctrl-C may raise one; and what is no ``Exception``, such as ``SystemExit``, if it
    passed through a handler that is installed.
    """
    if isinstance(error, Exception) or threading.get_ident() != threading.main_thread().ident:
        return False
    if isinstance(error, KeyboardInterrupt):
        return callable(signal.getsignal(signal.SIGINT))
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


_interrupts = _Interrupts()
interrupts_held = _interrupts.held  # for the length of a block; nests
interrupts_let_through = _interrupts.let_through  # within such a block, where something may take long


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
