"""Resources that environments of a process share: temporary files, a browser.

    temporary_folder()                     a folder that is removed with this process, however it ends
    worker_resource(key, build, close)     one browser, sandbox, prover or JVM for all environments of this process

Both work the same in a worker, in the main process, and in a script without workers. In a worker, ``tempfile``
uses its temporary folder too (``TMPDIR``), so that files of libraries are removed with it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from envlanes.errors import ResourceError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

_PREFIX = "envlanes-"
_MARKER = ".removed-by-envlanes"  # a file that marks folders that may be removed
_registry_lock = threading.RLock()


# One resource for all environments of a process


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
    the program ends. Resources still held at the end of a worker or of the program are closed then; processes started
    by a killed worker are killed with it, and its replacement builds its own resources.

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


# Temporary files


class TemporaryFolder:
    """A folder that is removed with its owner, or later if its owner was killed.

    A lock on the folder itself marks it as in use: the system releases it when the last process with its descriptor has
    ended. A process that creates such a folder removes marked sibling folders that no process holds. The mark is
    written after locking, so that a folder that could not be locked is never removed.

    Attributes:
        path: The folder.
    """

    def __init__(self) -> None:
        """Create it in the system's temporary folder, and remove folders of killed processes there.

        Raises:
            OSError: It cannot be created.
        """
        parent = system_temporary()
        _sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._descriptor = _lock_folder(self.path, shared=True)
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                (self.path / _MARKER).touch()

    def fileno(self) -> int | None:
        """The descriptor that holds the lock, for a process that shares the folder; None without locks."""
        return self._descriptor

    def remove(self) -> None:
        """Remove it with its content; may be called twice."""
        remove_tree(self.path)
        self.let_go()

    def let_go(self) -> None:
        """Close the lock without removing the folder, which belongs to another process, such as a fork's parent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_own_folder: TemporaryFolder | None = None  # the main process's
_given_folder: Path | None = None  # a worker's, which another process removes
_system_temporary = ""  # the system's temporary folder in a worker


def temporary_folder() -> Path:
    """The folder for this process's temporary files.

    A worker's is removed when the worker ends or is killed. That of another process is created by the first call, and
    removed when the program ends, or, if it is killed, by the next program that uses one. In a worker ``tempfile`` uses
    it automatically; elsewhere it does not, since the program's own files would be removed too: write
    ``tempfile.mkdtemp(dir=temporary_folder())``.

    Raises:
        OSError: It cannot be made.
    """
    global _own_folder
    if _given_folder is not None:
        return _given_folder
    with _registry_lock:
        if _own_folder is None or not _own_folder.path.is_dir():
            _own_folder = TemporaryFolder()
        return _own_folder.path


def system_temporary() -> str:
    """The system's temporary folder, also in a worker, which has one of its own."""
    return _system_temporary or tempfile.gettempdir()


def use_temporary_folder(path: str) -> None:
    """In a worker: use this folder, which another process removes, for all temporary files; created if possible."""
    global _given_folder, _system_temporary
    _system_temporary = tempfile.gettempdir()
    with contextlib.suppress(OSError):
        os.makedirs(path, mode=0o700, exist_ok=True)
        _given_folder = Path(path)
        tempfile.tempdir = path
        # `tempfile` in child processes looks at these in this order; the other two are set where the system uses them.
        for name in ("TMPDIR", "TEMP", "TMP"):
            if name == "TMPDIR" or name in os.environ:
                os.environ[name] = path


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


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove a folder with its content, even if its permissions forbid it; never raises."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.islink(path) or not os.path.isdir(path):
        return
    _allow(path)
    for folder, names, _ in os.walk(path):
        for name in names:
            _allow(os.path.join(folder, name))
    shutil.rmtree(path, ignore_errors=True)


def _allow(folder: str | os.PathLike[str]) -> None:
    if not os.path.islink(folder):  # a link may lead to a folder that is somebody else's
        with contextlib.suppress(OSError):
            os.chmod(folder, stat.S_IRWXU)


def _sweep(parent: str) -> None:
    """Remove the folders of this user's killed processes in ``parent``."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
        for path in found:
            with contextlib.suppress(OSError):
                # The system's folder has those of other users too, whose locks must be left alone.
                if os.lstat(path).st_uid != os.getuid() or not os.path.exists(os.path.join(path, _MARKER)):
                    continue
                descriptor = _lock_folder(Path(path), shared=False)
                if descriptor is not None:
                    try:
                        remove_tree(path)
                    finally:
                        os.close(descriptor)


def _lock_folder(path: Path, shared: bool) -> int | None:
    """A descriptor that holds the lock of a folder; None if another process has it, or there are no locks."""
    if fcntl is None:
        return None
    descriptor = None
    try:
        # No links: the folder around it may be open to all, and somebody may put one in its place.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0))
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def _at_exit() -> None:
    close_resources()
    if _own_folder is not None:
        _own_folder.remove()


def _forget_in_child() -> None:
    """In a fork: resources and folder are the parent's."""
    global _registry_lock, _own_folder
    _registry_lock = threading.RLock()
    _shared.clear()
    if _own_folder is not None:
        _own_folder.let_go()
        _own_folder = None


atexit.register(_at_exit)  # on import, so that it runs after what closes engines and their environments
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
