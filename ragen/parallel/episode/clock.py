"""How the time of a piece of work was spent: computing, waiting, or queued for a processor.

    seconds that passed  =  computed  +  waited  +  queued

A sandbox, a browser or a Java virtual machine computes in its own processes, so child processes count: those that have
ended by ``RUSAGE_CHILDREN``, live ones by the clock that the kernel keeps for each process. A thread in the run queue
of a busy machine neither computes nor waits: Linux counts that time for each thread (``schedstat``). For children it
is estimated, as the longer the more they computed and the more programs wanted a processor (``/proc/loadavg``), and at
most the time in which anything on the machine was queued (``/proc/pressure/cpu``). Time that the system does not
account for counts as waiting.

A process whose own parent ended before it was first seen is not counted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from ragen.parallel import linux

try:
    from resource import RUSAGE_CHILDREN, getrusage
except ImportError:  # on Windows
    getrusage = None  # type: ignore[assignment]

SLOW = 3e-4  # seconds of work from which it pays to measure how they were spent
UNEXPLAINED = 0.1  # share of apparent waiting from which child processes are searched for
SEARCHING = 0.05  # share of the time that searching for child processes may take
_PROCESSORS = os.cpu_count() or 1
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Usage(NamedTuple):
    """How time was spent; the remainder was spent in a run queue.

    Attributes:
        computed: Processor seconds including child processes; may exceed the seconds that passed.
        waited: Seconds spent waiting for anything but a processor.
    """

    computed: float
    waited: float


class Spent(NamedTuple):
    """The time that several resets or turns took.

    Attributes:
        number: Their number.
        seconds: Their total time.
        dearest: Seconds of the longest; the first one may include imports that the others reuse.
        own_s: Their total time without the time queued for a processor.
        waited_s: The part of ``own_s`` spent waiting for anything but a processor.
        extra_s: Further processor seconds, when several child processes computed at once.
        first_own: Like ``own_s``, of the first one, which may load what the others in its process reuse.
    """

    number: int = 0
    seconds: float = 0.0
    dearest: float = 0.0
    own_s: float = 0.0
    waited_s: float = 0.0
    extra_s: float = 0.0
    first_own: float = 0.0

    def also(self, more: Spent) -> Spent:
        """The sum of both."""
        number, seconds, dearest, own_s, waited_s, extra_s, first_own = more
        return Spent(
            self.number + number,
            self.seconds + seconds,
            max(self.dearest, dearest),
            self.own_s + own_s,
            self.waited_s + waited_s,
            self.extra_s + extra_s,
            self.first_own if self.number else first_own,
        )

    def without(self, firsts: Collection[float]) -> Spent:
        """Without the first ones of processes, of so many seconds each (``first_own``); the same if no others are left.

        What remains cost what further ones will: modules are imported, caches are filled.
        """
        if len(firsts) >= self.number:
            return self
        return self._replace(number=self.number - len(firsts), own_s=self.own_s - sum(firsts))

    @property
    def mean_s(self) -> float:
        """Mean seconds of one of them, without the time queued for a processor; 0 if there were none."""
        return self.own_s / self.number if self.number else 0.0

    @property
    def usual_s(self) -> float:
        """Mean seconds of one of them without the longest; 0 while there was only one."""
        return (self.seconds - self.dearest) / (self.number - 1) if self.number > 1 else 0.0

    @property
    def busy(self) -> float:
        """Processors that one of them would keep busy on an idle machine; 1 if it only computes."""
        return 1.0 + (self.extra_s - self.waited_s) / self.own_s if self.own_s > 0 else 1.0


def spent_on(times: Sequence[float], usage: Usage | None = None, passed: float = 0.0) -> Spent:
    """The time that resets or turns took.

    Args:
        times: Seconds of each.
        usage: How the time was spent during which they were done, if known.
        passed: Seconds of that time.
    """
    seconds, dearest = sum(times), max(times)
    if usage is None or not seconds:
        return Spent(len(times), seconds, dearest, seconds, first_own=times[0])
    share = min(1.0, seconds / passed)
    known = share * (usage.waited + usage.computed)
    own_s = min(seconds, known)
    extra_s = max(0.0, known - seconds)
    return Spent(len(times), seconds, dearest, own_s, share * usage.waited, extra_s, times[0] * own_s / seconds)


class Reading(NamedTuple):
    """What the system has counted so far, in seconds.

    Attributes:
        own: Processor time of this thread, or of this process.
        queued: This thread's time in the run queue.
        children: Processor time of child processes.
        pressure: Time in which any process of the machine stood in a run queue; 0 where there are no children.
        at: When this was read, on ``time.perf_counter()``.
        crowd: For each processor, how many programs wanted it beyond the first one; 0 where there are no children.
    """

    own: float
    queued: float
    children: float
    pressure: float
    at: float = 0.0
    crowd: float = 0.0


class UsageClock:
    """Reads how time is spent in this process."""

    def __init__(self, of_process: bool) -> None:
        """Count what is spent from now on.

        Args:
            of_process: Whether all threads and all child processes of this process work for environments, as they do in
                a worker. Otherwise only the calling thread counts, and children that it starts during the work.
        """
        self._of_process = of_process
        self._own = time.process_time if of_process else time.thread_time
        self._children: set[int] = set()  # those that live, with their own children
        self._foreign: set[int] = set()  # those that something else has started
        self._searched = 0.0  # when, and how long it took
        self._search_s = 0.0
        self._queued = 0.0  # as last read
        self._queued_ns = _Counter("/proc/thread-self/schedstat", 1)
        self._pressure_us = _Counter("/proc/pressure/cpu", 4)
        self._running = _Counter("/proc/loadavg", 3)

    def begin(self) -> Reading:
        """A reading before some work."""
        if not self._of_process:
            self._foreign = self._direct() - self._children
        return self.read()

    def read(self) -> Reading:
        """A reading now."""
        children = _ended()
        for pid in list(self._children):
            try:
                children += _of_process(pid)
            except OSError:  # it has ended, and is among those
                self._children.discard(pid)
        pressure, crowd = 0.0, 0.0
        if children:
            pressure = self._pressure_us.read() * 1e-6
            crowd = max(0.0, self._running.read() / _PROCESSORS - 1.0)
        self._queued, at = self._queued_ns.read() * 1e-9, time.perf_counter()
        # Last, since the kernel likes to let others run after it was asked for this: which is part of what comes next.
        return Reading(self._own(), self._queued, children, pressure, at, crowd)

    def glance(self) -> Reading:
        """A reading for :meth:`roughly`, which in the main process takes two microseconds.

        There, its time in the run queue is the last known; a worker, which a message has just reached, reads it.
        """
        if self._of_process:
            return self.read()
        return Reading(self._own(), self._queued, _ended(), 0.0, time.perf_counter())

    def roughly(self, before: Reading) -> tuple[Usage, Reading]:
        """How the time since a glance was spent, as far as that is known; and a reading now.

        In the main process, time of children that live is taken for waiting, and time in the run queue since the last
        reading for that since the glance.
        """
        if self._of_process:
            return self.usage(before)
        now = self.read()._replace(children=_ended(), pressure=0.0)
        return spent(before, now), now

    def usage(self, before: Reading) -> tuple[Usage, Reading]:
        """How the time since a reading was spent; and a reading now."""
        now = self.read()
        usage, seconds = spent(before, now), now.at - before.at
        if usage.waited > UNEXPLAINED * seconds and self._may_search(seconds):
            known = self._children.copy()
            self._search()
            if self._children != known:
                now = self.read()
                usage = spent(before, now)
        return usage, now

    def close(self) -> None:
        """Close the descriptors; a later reading reopens them."""
        for counter in (self._queued_ns, self._pressure_us, self._running):
            counter.close()

    def _may_search(self, seconds: float) -> bool:
        since = time.perf_counter() - self._searched
        return self._search_s < SEARCHING * max(seconds, since)

    def _search(self) -> None:
        begin = time.perf_counter()
        for pid in self._direct() - self._foreign:
            self._children |= {pid} | linux.descendants(pid)
        self._searched = time.perf_counter()
        self._search_s = self._searched - begin

    def _direct(self) -> set[int]:
        """Child processes of this process, or only those that this thread has started."""
        found: set[int] = set()
        with contextlib.suppress(OSError):  # the system has no such list
            for thread in os.listdir("/proc/self/task") if self._of_process else [threading.get_native_id()]:
                with open(f"/proc/self/task/{thread}/children", "rb", buffering=0) as file:
                    found.update(map(int, file.read().split()))
        return found


def spent(before: Reading, now: Reading) -> Usage:
    """How the time between two readings was spent."""
    by_children = max(0.0, now.children - before.children)
    computed = max(0.0, now.own - before.own) + by_children
    waited = now.at - before.at - computed - max(0.0, now.queued - before.queued)
    if by_children and before.pressure:
        waited -= min(now.pressure - before.pressure, by_children * now.crowd)
    return Usage(computed, max(0.0, waited))


class _Counter:
    """A number in a file of the operating system, such as 7, ``total=7`` or 7/200; each thread opens the file once."""

    def __init__(self, path: str, field: int) -> None:
        self._path, self._field = path, field
        self._opened: tuple[int, int] | None = None  # by which thread, and the descriptor

    def read(self) -> int:
        """The number, 0 if the system does not count it."""
        thread = threading.get_native_id()
        try:
            if self._opened is None or self._opened[0] != thread:
                self.close()
                self._opened = thread, os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._opened[1], 256, 0).split()[self._field].rpartition(b"=")[2].partition(b"/")[0])
        except (OSError, IndexError, ValueError):
            return 0

    def close(self) -> None:
        """Close the descriptor."""
        opened, self._opened = self._opened, None
        if opened is not None:
            with contextlib.suppress(OSError):
                os.close(opened[1])

    def __del__(self) -> None:
        self.close()


def _ended() -> float:
    """Processor seconds of child processes that have ended."""
    if getrusage is None:
        return 0.0
    usage = getrusage(RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _of_process(pid: int) -> float:
    """Processor seconds of a process, and of its children that have ended.

    Raises:
        OSError: There is no such process.
    """
    own = time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of another process: Linux's clock_getcpuclockid
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return own + (int(fields[13]) + int(fields[14])) / _TICKS
