"""Calls to the operating system that only Linux has."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from pathlib import Path

_SWEEP_TIMEOUT = 1.0  # seconds: a program that starts processes for ever must not hold up the end of ours for as long
# From <sys/prctl.h>, which Python's `os` and `signal` do not have.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends.

    ``parent`` is its id as it was before; if it is gone already, this process ends now.
    """
    # In this order: a parent that ends before the call sends no signal, and one that ends after it does.
    # The signal comes with the end of the *thread* that forked, and the setting survives execv: the supervisor forks
    # from its main thread, which lives as long as it does.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of this process's descendants whose own parents end, so that they can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Process ids of this process's children, adopted orphans included; empty where the system has no such list."""
    try:
        # The main thread's list alone: the supervisor, which asks, starts its children there and is given orphans
        # there. A thread of a preloaded module that starts children itself would keep them from this list.
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


class ThreadChildren:
    """Reads the process ids of the current thread's children, with the list of the last thread kept open."""

    def __init__(self) -> None:
        self._thread, self._list = 0, -1  # kept open, since it is read twice for each call into environments

    @property
    def is_open(self) -> bool:
        """Whether it has been read since it was closed."""
        return self._thread != 0

    def read(self) -> bytes:
        """The ids; empty where the system has no such list."""
        thread = threading.get_native_id()
        if thread != self._thread:  # in a fork of this process as well
            self.close()
            with contextlib.suppress(OSError):
                self._list = os.open(f"/proc/self/task/{thread}/children", os.O_RDONLY)
            self._thread = thread
        try:
            return os.pread(self._list, 1 << 16, 0) if self._list >= 0 else b""
        except OSError:
            return b""

    def close(self) -> None:
        """Close the list; the next read opens one again."""
        descriptor, self._thread, self._list = self._list, 0, -1
        if descriptor >= 0:
            os.close(descriptor)


def descendants(pid: int) -> set[int]:
    """Process ids of a process's children, their children and so on; empty where the system has no such list."""
    found: set[int] = set()
    with contextlib.suppress(OSError):  # it ended meanwhile
        # All threads: each has a list of its own, and an environment may start processes in any.
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                found |= {child} | descendants(child)
    return found


def kill_all_with(entry: str) -> None:
    """Kill every process of this user, this one aside, that was started with this ``NAME=value`` in its environment.

    Looks again until none is found twice: one that is in the middle of an exec shows no environment for a moment.
    """
    deadline, misses = time.monotonic() + _SWEEP_TIMEOUT, 0
    while misses < 2 and time.monotonic() < deadline:
        pids = {int(folder.name) for folder in Path("/proc").glob("[0-9]*")} - {os.getpid()}
        found = {pid for pid in pids if has_in_environment(pid, entry)}
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        # Twice without a find: a process in the middle of an exec shows no environment, and one may just be forking.
        misses = 0 if found else misses + 1
        time.sleep(0.01)  # a moment for what was killed to go, or the scans of /proc would keep a processor busy


def has_in_environment(pid: int, entry: str) -> bool:
    """Whether a process of this user was started with this ``NAME=value`` in its environment."""
    try:
        return entry.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
