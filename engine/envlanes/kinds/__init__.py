"""The kinds of workers, and the fallback where a kind is unavailable."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from envlanes.kinds.ray_options import RayOptions
from envlanes.settings import Settings
from envlanes.workers.handle import WorkerKind
from envlanes.workers.pool import WorkerPool, shared_pool

log = logging.getLogger(__name__)
_logged: set[str] = set()


def open_pool(user: int, settings: Settings, preload: Sequence[str]) -> WorkerPool:
    """The process's pool of the kind that the settings name, or of the fallback.

    Raises:
        LaneStartError: The kind of workers cannot be started.
        ConfigError: The cluster that this process is connected to is not the one that the settings name.
    """
    backend = available(settings.backend)
    key: tuple[object, ...] = (backend, settings.start_method)
    if backend == "ray":
        key = (*key, repr(RayOptions.of(settings.ray)))
    return shared_pool(user, key, partial(_new_kind, backend, settings, preload))


def available(backend: str) -> str:
    """The backend used for a setting: itself or its fallback, which is logged once."""
    if backend != "process":
        return backend
    from envlanes.kinds.process.kind import unavailable

    if why := unavailable():
        if why not in _logged:
            _logged.add(why)
            log.warning("backend 'process' is not available here (%s); using 'executor' instead.", why)
        return "executor"
    return backend


def _new_kind(backend: str, settings: Settings, preload: Sequence[str]) -> WorkerKind:
    start_method = settings.start_method
    if backend == "ray":
        from envlanes.kinds import ray_cluster
        from envlanes.kinds.ray import RayKind

        cluster = ray_cluster.RayCluster(RayOptions.of(settings.ray), start_method, preload)
        return RayKind(cluster, settings.max_workers, settings.startup_timeout)
    if backend == "executor":
        from envlanes.kinds.executor import ExecutorKind

        return ExecutorKind(start_method)
    from envlanes.kinds.process.kind import ProcessKind

    return ProcessKind(start_method, preload)
