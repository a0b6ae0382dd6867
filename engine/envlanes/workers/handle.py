"""The interface between the engine and its workers: a handle to one worker, and the kinds that start workers.

A worker (:mod:`envlanes.workers.worker`) knows its process only as a :class:`WorkerHandle`: it sends and receives
bytes, a descriptor becomes readable when there may be a reply, and the process can be ended. A :class:`WorkerKind`
starts workers of one kind: processes under a supervisor, the standard library's executors, actors on other machines.
Any other kind derives from these two classes; nothing else in the engine knows the difference.

What runs inside the worker is the same for all kinds: :class:`envlanes.workers.server.Server`, which is given
messages and gives replies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Message = Sequence[bytes | bytearray | memoryview]  # a pickled payload, then the buffers that it refers to


class WorkerGone(Exception):
    """The worker has ended, or its connection has; :meth:`WorkerHandle.end` returns how."""


class Position(NamedTuple):
    """The position of a worker in its work.

    Attributes:
        request: Number of the request it works on, or worked on last.
        item: Index of the item within that request; the number of items once it is through.
        since: When work on that item began, on ``time.monotonic()`` of the main process.
    """

    request: int
    item: int
    since: float


class Progress:
    """Number of the request, index of the item, and when work on the item started, on ``time.monotonic()``.

    All processes of a machine share that clock. The memory is written field by field while the other process may read
    it, so the order matters: the start comes first and the number last, and a reader takes what it reads twice the
    same. A half-written position then shows at worst too late a start, never too early a one.
    """

    SIZE = 3 * 8

    def __init__(self, memory: Any) -> None:
        """Use this writable memory of at least ``SIZE`` bytes, which both processes share."""
        self._floats = memoryview(memory).cast("B")[: self.SIZE].cast("d")
        self._integers = memoryview(memory).cast("B")[: self.SIZE].cast("q")

    def begin(self, number: int) -> None:
        """Work on this request, and on its first item, starts now."""
        # The number last: with it the reader takes the item and its start for this request's. The other way round it
        # could read the new number with the last item of the old request, and take the worker for done.
        self.mark(0)
        self._integers[2] = number

    def mark(self, index: int) -> None:
        """Work on this item starts now."""
        # The start before the item: read in between, the last item has just begun, and nobody is killed for that. The
        # other way round the new item would seem to have run for as long as the last one.
        self._floats[0] = time.monotonic()
        self._integers[1] = index

    def read(self) -> Position:
        """The worker's position."""
        # Until two readings agree: each field is written at once, the three of them are not.
        position = None
        while position != (again := (self._integers[2], self._integers[1], self._floats[0])):
            position = again
        return Position(*again)


@dataclass(frozen=True)
class Ending:
    """The end of a worker.

    Attributes:
        where: Its process, for messages, such as ``"pid 4242"``; "" if it was never started.
        status: Exit code, negative for a signal; None if not known.
        error: A description that follows "its worker", if the status does not explain the ending.
        position: Its last position in its work, read only after it could not move any more; None if not known.
        is_shared: Whether it ended with what other workers depend on too, such as their machine: no environment is at
            fault then.
    """

    where: str = ""
    status: int | None = None
    error: str = ""
    position: Position | None = None
    is_shared: bool = False

    def describe(self) -> str:
        """The ending in words, the signal by name."""
        if self.error:
            return self.error
        if self.status is None:
            return "ended for an unknown reason"
        if self.status >= 0:
            return f"exited with code {self.status}"
        try:
            return f"was killed by {signal.Signals(-self.status).name}"
        except ValueError:
            return f"was killed by signal {-self.status}"


class WorkerHandle(ABC):
    """One worker; it is never used again after :meth:`end`.

    Attributes:
        is_up: Whether the worker has said that it is there: until then ``startup_timeout`` counts, not an item's.
        pid: Its process id on its machine, where it has one and is up.
        moved: Bytes that went either way so far: a long transfer is no hang.
        unsent: Whether part of a request is still here, so that the descriptor is to be polled for writing too.
    """

    is_up: bool = False
    pid: int | None = None
    moved: int = 0
    unsent: bool = False

    @property
    def node(self) -> str:
        """Name of the machine that it is on; "" for this one."""
        return ""

    @property
    def where(self) -> str:
        """The worker's location, for messages and statistics only."""
        return f"pid {self.pid}" if self.pid is not None else ""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Begin to send a request; never waits.

        Raises:
            WorkerGone: The worker has ended.
        """

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`receive` may have something: that it is up, a reply, its end."""

    @abstractmethod
    def receive(self) -> Message | None:
        """Go on sending what is unsent, and take the next reply if it is complete; None if not. Never waits.

        Raises:
            WorkerGone: The worker has ended, and there is no further reply.
        """

    @abstractmethod
    def end(self) -> Ending:
        """Kill the worker, if it lives, with all that it started as far as the kind can; bounded in time.

        Its position is read after that, and is part of its ending: one that was read before could be overtaken.
        """

    def kill(self) -> None:
        """Kill the worker as if it had crashed, from any thread; the handle's user finds it dead, and ends it."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and was taken note of
                # Windows has no SIGKILL; there any signal but two ends the process at once.
                os.kill(self.pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)

    @abstractmethod
    def position(self) -> Position | None:
        """The worker's position; None if it is not up, or had none as it ended."""

    def stacks(self) -> str:
        """The stacks of the worker's threads; "" where they cannot be had. Bounded to a fraction of a second."""
        return ""

    def ask_to_exit(self) -> bool:
        """Ask the worker to close its environments and end; whether its end will show at the descriptor."""
        return False


class WorkerKind(ABC):
    """A kind of workers, which it starts.

    Attributes:
        name: Its name in ``es_manager.backend``.
        slots: Number of its workers that can compute at the same time.
        round_trip_s: Seconds that a message there and back takes, beyond what it takes between two processes.
        is_remote: Whether they compute on other processors than the main process does.
    """

    name: str
    slots: int
    round_trip_s: float = 0.0
    is_remote: bool = False

    @abstractmethod
    def start(self, name: str) -> WorkerHandle:
        """Begin to start a worker, without waiting for it.

        Args:
            name: Name of the worker.

        Raises:
            LaneStartError: It cannot be started.
        """

    def is_misplaced(self, worker: WorkerHandle) -> bool:
        """Whether an idle worker had better be ended and started anew, since there is a better place for it now."""
        return False

    @abstractmethod
    def close(self) -> None:
        """End what all workers share, after they have been ended; bounded in time."""

    def forget_in_child(self) -> None:  # noqa: B027
        """In a fork of the main process: let go of what the parent goes on using."""
