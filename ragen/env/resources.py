"""Resources that heavy environments of a process share: a browser, a sandbox, a prover or a JVM.

``worker_resource(key, build, close)`` works the same in a worker, in the main process, and in a script without workers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

from ragen.errors import ResourceError

T = TypeVar("T")

_registry_lock = threading.RLock()


class _Shared:
    """A resource and the leases on it; ``lock`` is held while it is built."""

    def __init__(self, close: Callable[[Any], None] | None) -> None:
        self.close = close
        self.lock = threading.Lock()
        self.value: Any = None
        self.is_built = self.is_gone = False
        self.leases = 0


_shared: dict[Hashable, _Shared] = {}


class Lease(Generic[T]):
    """One environment's lease on a resource that all environments of its process share."""

    def __init__(self, key: Hashable, shared: _Shared) -> None:
        """Created by :func:`worker_resource`."""
        self._key, self._shared = key, shared
        self._is_held = True

    @property
    def value(self) -> T:
        """The resource.

        Raises:
            ResourceError: It was released, discarded, or closed. An environment that does not catch this error is
                rebuilt by the engine, and acquires the resource again.
        """
        if not self._is_held or self._shared.is_gone:
            raise ResourceError(f"resource {self._key!r} was closed or discarded; acquire it again (worker_resource).")
        value: T = self._shared.value
        return value

    def release(self) -> None:
        """Release the lease; the resource is closed with the last one. May be called twice."""
        with _registry_lock:
            if not self._is_held:
                return
            self._is_held = False
            self._shared.leases -= 1
            if self._shared.leases:
                return
            gone = _take(self._key, self._shared)
        _close(gone)

    def discard(self) -> None:
        """Discard a broken resource: it is closed now, and rebuilt when it is next acquired.

        Other environments that hold it get a :class:`ResourceError` when they next access its value.
        """
        with _registry_lock:
            self._is_held = False
            gone = _take(self._key, self._shared)
        with contextlib.suppress(Exception):  # it is broken
            _close(gone)

    def __enter__(self) -> Lease[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def worker_resource(key: Hashable, build: Callable[[], T], close: Callable[[T], None] | None = None) -> Lease[T]:
    """Acquire a resource that all environments of this process share: built by the first, closed with the last.

    Leases are counted, so that, for example, a browser that no environment of the main process needs is not kept until
    the program ends. Resources still held at the end of the program are closed then. Processes started by a worker are
    killed with it, and its replacement builds its own resources.

    Args:
        key: The key of the resource in this process, including all its parameters, such as ``("chromium", path)``.
        build: Creates the resource. Called once, while other threads that acquire the same key wait.
        close: Closes the resource; its argument is the result of ``build``.

    Returns:
        A lease: use ``lease.value``, and call ``lease.release()`` in the environment's ``close()``.

    Raises:
        Exception: ``build`` raised it. The next call tries again.
    """
    while True:
        with _registry_lock:
            shared = _shared.setdefault(key, _Shared(close))
            shared.leases += 1
        # Built under its own lock, not the registry's: another resource need not wait for a browser to start.
        with shared.lock:
            if shared.is_gone:  # its builder failed, or its last holder has released it meanwhile
                continue
            if not shared.is_built:
                try:
                    shared.value = build()
                except BaseException:
                    with _registry_lock:
                        _take(key, shared)
                    raise
                shared.is_built = True
            return Lease(key, shared)


def close_resources() -> None:
    """Close all resources of this process, the latest first; their errors are not raised."""
    with _registry_lock:
        # The latest first: it may use one that was there before it.
        left = [_take(key, shared) for key, shared in reversed(list(_shared.items()))]
    for gone in left:
        with contextlib.suppress(Exception):
            _close(gone)


def _take(key: Hashable, shared: _Shared) -> _Shared | None:
    """Remove a resource from the registry to close it; None if another call has removed it."""
    if shared.is_gone:
        return None
    shared.is_gone = True
    if _shared.get(key) is shared:
        del _shared[key]
    return shared


def _close(gone: _Shared | None) -> None:
    if gone is not None and gone.is_built and gone.close is not None:
        gone.close(gone.value)


@contextlib.contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for this process and its child processes within the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _forget_in_child() -> None:
    """In a fork: resources are the parent's."""
    global _registry_lock
    _registry_lock = threading.RLock()
    _shared.clear()


atexit.register(close_resources)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
