"""A cache shared by all processes of a machine: ``machine_cache(name, key, build)`` is a folder that is built once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from envlanes.temporary import remove_tree, system_temporary
from ragen.errors import CacheError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CACHE_VARIABLE = "RAGEN_CACHE"
BUILD_TIMEOUT = 3600.0  # seconds to wait for another process that builds the same folder

_POLL = 0.05  # seconds between two looks at a lock


def cache_folder() -> Path:
    """The cache folder, created if needed.

    ``RAGEN_CACHE``, else ``$XDG_CACHE_HOME/ragen``, else ``~/.cache/ragen``; if that is not writable, a folder of this
    user in the system's temporary folder.

    Raises:
        CacheError: ``RAGEN_CACHE`` names a folder that is not writable, or no folder is writable.
    """
    places = cache_places()
    for path in places:
        if _is_usable(path):
            return path
    places_named = " and ".join(map(str, places))
    raise CacheError(f"no cache can be created in {places_named}; set {CACHE_VARIABLE} to a writable folder.")


def cache_places() -> list[Path]:
    """The folders that :func:`cache_folder` tries, in order; nothing is created."""
    asked = os.environ.get(CACHE_VARIABLE)
    if asked:
        return [Path(asked).expanduser().absolute()]
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute()
    temporary = Path(system_temporary())
    return [home / "ragen", temporary / f"ragen-cache-{getattr(os, 'getuid', int)()}"]


def _is_usable(path: Path) -> bool:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_own = not path.name.startswith("ragen-cache-") or _is_private(path)
        return is_own and os.access(path, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # no home
        return False


def _is_private(path: Path) -> bool:
    """Whether a folder belongs to this user, who alone can write to it."""
    if not hasattr(os, "getuid"):
        return True
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _own_shelf(name: str) -> Path:
    """The folder of a group in the cache; in a cache that others may write to, within a folder of this user's alone."""
    folder = cache_folder()
    shared = folder / f"ragen-cache-{getattr(os, 'getuid', int)()}"
    for place in [folder / name, shared / name]:
        place.parent.mkdir(0o700, exist_ok=True)
        if not _is_private(place.parent):
            continue
        place.mkdir(0o700, exist_ok=True)
        if _is_private(place):
            return place
    raise CacheError(f"others may write to {str(shared)!r}: name a folder of your own with {CACHE_VARIABLE}.")


def machine_cache(name: str, key: Any, build: Callable[[Path], object]) -> Path:
    """A folder that is built once for all processes of this machine, and kept between programs.

    The first process builds it under a lock, while the others wait; it appears under its name only when it is complete.
    A builder that raises or is killed leaves nothing that another process could mistake for a result. What other users
    built, or could have changed, is not used.

    Args:
        name: The name of the group, such as ``"alfworld"``, under which its folders are stored.
        key: Plain data (texts, numbers, lists, dicts) with everything that determines the content: parameters, seeds,
            versions of the builder. Each key has its own folder; old ones are never removed.
        build: Fills an empty folder; must be deterministic for a key.

    Returns:
        The folder. Treat it as read-only.

    Raises:
        CacheError: No folder is writable, or another process builds for more than an hour.
        TypeError: The key is not plain data.
        Exception: ``build`` raised it. The next call tries again.
    """
    if not re.fullmatch(r"[\w][\w.-]*", name):
        raise CacheError(f"machine_cache: {name!r} is not a valid folder name; use letters, digits, '_', '-' and '.'.")
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16).hexdigest()
    shelf = _own_shelf(name)
    folder = shelf / digest
    if folder.is_dir():
        return folder
    with machine_lock(shelf / f"{digest}.lock"):
        if folder.is_dir():
            return folder
        for leftover in shelf.glob(f"{digest}.part-*"):  # of a builder that was killed
            remove_tree(leftover)
        part = Path(tempfile.mkdtemp(prefix=f"{digest}.part-", dir=shelf))
        try:
            build(part)
            _write_out(part)
            try:
                part.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process has built it, on a system without locks
                    raise
        finally:
            if part.exists():
                remove_tree(part)
    return folder


def _write_out(folder: Path) -> None:
    """Sync all files to disk: after a power failure, names may survive without contents."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with contextlib.suppress(OSError), path.open("rb") as file:  # one that its builder may not read
                os.fsync(file.fileno())


@contextlib.contextmanager
def machine_lock(path: Path, timeout: float = BUILD_TIMEOUT) -> Iterator[None]:
    """Hold a lock shared by the processes of this machine and their threads.

    The system releases it when a process ends. On systems without such locks (Windows) it has no effect.

    Args:
        path: The lock's file, which is not removed; its folder must exist.
        timeout: Seconds to wait.

    Raises:
        CacheError: Another process holds it for longer.
    """
    deadline = time.monotonic() + timeout
    with path.open("a+") as file:
        while not _try_lock(file.fileno()):
            if time.monotonic() > deadline:
                file.seek(0)
                raise CacheError(f"process {file.read()} has held {path} for more than {timeout:.0f} s.")
            time.sleep(_POLL)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _try_lock(descriptor: int) -> bool:
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


# The end of the process, and forks
