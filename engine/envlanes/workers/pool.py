"""The workers of this process, shared by all its engines: one pool for each kind of worker.

The first engine that asks for workers makes the pool, the last one that leaves ends it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from envlanes.errors import LaneStartError
from envlanes.workers.handle import WorkerKind
from envlanes.workers.orders import CloseAll
from envlanes.workers.worker import Cause, Request, Worker, WorkerFailure, ask, end_all, locked, wait_readable

log = logging.getLogger(__name__)

EXIT_TIMEOUT = 2.0  # seconds that workers get to close their environments when the pool closes


class WorkerPool:
    """Workers of one kind.

    Attributes:
        kind: The kind that starts their workers.
    """

    def __init__(self, key: object, kind: WorkerKind) -> None:
        """A pool without workers; ``key`` identifies a shared pool."""
        self.kind = kind
        self._key = key
        self._workers: list[Worker] = []
        self._users: set[int] = set()
        self._departed: deque[int] = deque()
        self._lock = threading.RLock()
        _known.add(self)

    def workers(self, count: int) -> list[Worker]:
        """The first ``count`` workers, with their processes started."""
        self._close_departed()
        with self._lock:
            while len(self._workers) < count:
                self._workers.append(Worker(f"worker {len(self._workers)}", self.kind))
            workers = self._workers[:count]
        with locked(workers):  # another engine's request may be starting the same ones
            for worker in workers:
                with suppress(OSError, LaneStartError):  # its first request tries again, and reports
                    worker.start()
        return workers

    def rearrange(self) -> None:
        """Between episodes: end workers for which there is a better place now; they are started there when needed."""
        with self._lock:
            workers = list(self._workers) if self.kind.is_remote else []
        with locked(workers):
            for worker in workers:
                if worker.handle is not None and self.kind.is_misplaced(worker.handle):
                    worker.end()

    def ready(self) -> int:
        """The number of workers whose process is up."""
        handles = [worker.handle for worker in self._workers if worker.handle is not None]
        # A hello that has arrived counts, though nobody has read it: only the thread that has the lock may read.
        said = set(wait_readable([handle.fileno() for handle in handles if not handle.is_up], 0.0))
        return sum(handle.is_up or handle.fileno() in said for handle in handles)

    def leave(self, user: int, later: bool = False) -> None:
        """An engine closes: its environments are closed, and with the last engine all workers end.

        ``later``: while other engines remain, its environments are closed at the next request for workers, since the
        caller may be waiting for replies, and hold the workers.
        """
        # Out of the table under the same lock that makes pools: an engine that is made just now gets another pool, and
        # never one that is being closed.
        with _pools_lock:
            self._users.discard(user)
            last = not self._users
            if last and _pools.get(self._key) is self:
                del _pools[self._key]
        if last:
            self.close()
        else:
            self._departed.append(user)
            if not later:
                self._close_departed()

    def _close_departed(self) -> None:
        """Close the environments of engines that have left."""
        while True:
            try:
                user = self._departed.popleft()
            except IndexError:  # another thread may have taken the last one
                return
            present = [worker for worker in self._workers if worker.handle is not None]
            order = CloseAll()
            requests = {worker: Request(user, order, EXIT_TIMEOUT, generation=worker.generation) for worker in present}
            for reply in ask(requests).values():
                if isinstance(reply, WorkerFailure) and reply.cause is not Cause.REPLACED:
                    log.warning("%s, closing environments of a manager that is gone.", reply.describe())

    def close(self) -> None:
        """End all workers: those that do not close their environments within ``EXIT_TIMEOUT`` are killed."""
        workers = list(self._workers)
        with locked(workers):  # another thread may still be closing the environments of its own engine
            handles = [worker.handle for worker in workers if worker.handle is not None]
            # All are asked before any is waited for, and only then killed: they close their environments side by side.
            _await_exit({handle.fileno() for handle in handles if handle.ask_to_exit()})
            try:
                end_all(workers)
            finally:
                self.kind.close()  # even if an end raises: workers that are left end with the process that started them

    def forget_in_child(self) -> None:
        """In a fork of the main process: the workers are the parent's."""
        self._lock = threading.RLock()
        for worker in self._workers:
            worker.forget_in_child()
        self.kind.forget_in_child()


def _await_exit(left: set[int]) -> None:
    """Wait until the workers behind these descriptors have ended, or for ``EXIT_TIMEOUT``."""
    deadline = time.monotonic() + EXIT_TIMEOUT
    while left and (patience := deadline - time.monotonic()) > 0:
        left -= set(wait_readable(left, patience))


_known: weakref.WeakSet[WorkerPool] = weakref.WeakSet()  # all pools of this process, shared or not
_pools: dict[object, WorkerPool] = {}
_pools_lock = threading.RLock()  # the garbage collector may close an engine while another is being made


def shared_pool(user: int, key: object, make: Callable[[], WorkerKind]) -> WorkerPool:
    """The process's pool of this key, made now if there is none; ``user``, an engine's number, leaves it in the end.

    Raises:
        LaneStartError: The process that starts workers cannot be started itself.
    """
    with _pools_lock:
        pool = _pools.get(key) or WorkerPool(key, make())
        pool._users.add(user)
        _pools[key] = pool
        return pool


def _forget_in_child() -> None:
    global _pools_lock
    _pools_lock = threading.RLock()
    for pool in _known:
        pool.forget_in_child()
    _known.clear()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
