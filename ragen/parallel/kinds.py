"""Which kinds of workers there are, and which one is taken where a kind cannot be had."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from ragen.parallel.lanes.handle import LaneKind
from ragen.parallel.lanes.pool import WorkerPool, shared_pool
from ragen.parallel.settings import Settings

log = logging.getLogger(__name__)
_told: set[str] = set()


def open_pool(user: int, settings: Settings, preload: Sequence[str]) -> WorkerPool:
    """The process's pool of the kind that the settings ask for, or of the kind that can be had here.

    Args:
        user: Number of the engine, which has to leave the pool in the end.
        settings: The engine's.
        preload: Modules that workers will need.

    Raises:
        LaneStartError: What starts workers cannot be started itself.
    """
    backend = available(settings.backend)
    key = (backend, settings.start_method)
    return shared_pool(user, key, partial(_new_kind, backend, settings.start_method, preload))


def available(backend: str) -> str:
    """The backend that is taken where this one is asked for; that it is another one is told once."""
    if backend != "process":
        return backend
    from ragen.parallel.process.kind import unavailable

    if why := unavailable():
        if why not in _told:
            _told.add(why)
            log.warning("backend 'process' cannot be had here (%s): 'executor' is taken instead.", why)
        return "executor"
    return backend


def _new_kind(backend: str, start_method: str, preload: Sequence[str]) -> LaneKind:
    if backend == "executor":
        from ragen.parallel.lanes.executor import ExecutorKind

        return ExecutorKind(start_method)
    from ragen.parallel.process.kind import ProcessKind

    return ProcessKind(start_method, preload)
