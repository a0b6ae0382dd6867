"""The built files on disk: built once, checked whenever they are opened, shared by all processes.

A file is written under a temporary name and renamed when complete. A process that finds no file, or a damaged one,
builds it while holding a lock, which the operating system releases if the process dies; other processes wait for it. A
file's name depends on everything it was built from, so an outdated file is never used.
"""

from __future__ import annotations

import io
import logging
import os
import tempfile
import warnings
from pathlib import Path

from ragen.cache import CACHE_VARIABLE, cache_places, machine_lock
from ragen.env.checks import require
from ragen.env.webshop.build import build_store
from ragen.env.webshop.source import Source
from ragen.env.webshop.store import Store
from ragen.errors import CacheError

_log = logging.getLogger(__name__)


def check_cache_dir(cache_dir: str | None) -> None:
    """Check that the configured cache directory can be used; nothing is created.

    Raises:
        ConfigError: It is not a directory, and cannot be created.
    """
    key, given = ("cache_dir", cache_dir) if cache_dir else (CACHE_VARIABLE, os.environ.get(CACHE_VARIABLE))
    if not given:
        return
    path = Path(given).expanduser().absolute()
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    ok = there.is_dir() and (there == path or os.access(there, os.W_OK))
    require(ok, "webshop", key, given, "a directory, or a path where one can be created")


def open_store(source: Source, cache_dir: str | None = None) -> Store:
    """The built file of a source; it is built if there is none.

    Unless a directory is configured (``cache_dir`` or ``RAGEN_CACHE``), this uses ``~/.cache/ragen``, or a directory
    beside the temporary files, or as a last resort, with a warning, this process's memory.

    Raises:
        ConfigError: A data file has an invalid format.
        CacheError: The configured directory is not writable, or another process takes too long to build.
    """
    name = f"{source.key()}.store"
    for directory in _directories(cache_dir):
        store = _open(directory / name)
        if store is None and _make(directory):
            store = _open_or_build(source, directory / name)
        if store is not None:
            return store
    asked = cache_dir or os.environ.get(CACHE_VARIABLE)
    if asked:
        raise CacheError(f"webshop: cannot write to {asked} (cache_dir or {CACHE_VARIABLE}); choose another directory.")
    warnings.warn(
        "webshop: there is no writable directory for the built catalogue, so each process builds its own in memory; "
        f"set env_config key cache_dir or the variable {CACHE_VARIABLE}.",
        RuntimeWarning,
        stacklevel=2,
    )
    return _build_in_memory(source)


def _directories(cache_dir: str | None) -> list[Path]:
    places = [Path(cache_dir).expanduser().absolute()] if cache_dir else cache_places()
    return [place / "webshop" for place in places]


def _make(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK)


def _open(path: Path) -> Store | None:
    """The file; None if it is missing or damaged."""
    try:
        return Store.open(path)
    except CacheError as error:
        _log.warning("webshop: %s is built again: %s", path, error)
    except OSError:
        pass  # missing or not readable; if it stays so, building raises an error
    return None


def _open_or_build(source: Source, path: Path) -> Store:
    with machine_lock(path.with_suffix(".lock")):
        store = _open(path)
        if store is None:
            _build(source, path)
            store = Store.open(path)
        return store


def _build(source: Source, path: Path) -> None:
    for leftover in path.parent.glob(f"{path.stem}.*.part"):  # of a builder that was killed
        leftover.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            build_store(source, file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _build_in_memory(source: Source) -> Store:
    stream = io.BytesIO()
    build_store(source, stream)
    return Store(stream.getvalue())
