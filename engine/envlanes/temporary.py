"""Temporary files that are removed with the process that made them.

In a worker, ``tempfile`` uses its folder too (``TMPDIR``), so that files of libraries are removed with it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

_own: dict[int, str] = {}  # by process id: a fork has one of its own
_given_folder = ""  # a worker's, which another process removes
_system_temporary = ""  # the system's temporary folder in a worker


def temporary_folder() -> Path:
    """The folder for this process's temporary files.

    A worker's is removed when the worker ends or is killed. That of another process is created by the first call, and
    removed when the program ends, unless it is killed. In a worker ``tempfile`` uses it automatically; elsewhere it
    does not, since the program's own files would be removed too: write ``tempfile.mkdtemp(dir=temporary_folder())``.

    Raises:
        OSError: It cannot be made.
    """
    pid = os.getpid()
    if not _given_folder and pid not in _own:
        folder = new_folder()
        if _own.setdefault(pid, folder) is not folder:  # another thread was first
            os.rmdir(folder)
    return Path(_given_folder or _own[pid])


def new_folder() -> str:
    """A folder in the system's temporary folder, which its owner is to remove.

    Raises:
        OSError: It cannot be made.
    """
    return tempfile.mkdtemp(prefix="envlanes-", dir=system_temporary())


def system_temporary() -> str:
    """The system's temporary folder, also in a worker, which has one of its own."""
    return _system_temporary or tempfile.gettempdir()


def use_temporary_folder(path: str) -> None:
    """In a worker: use this folder, which another process removes, for all temporary files; created if possible."""
    global _given_folder, _system_temporary
    _system_temporary = tempfile.gettempdir()
    with contextlib.suppress(OSError):
        os.makedirs(path, mode=0o700, exist_ok=True)
        _given_folder = tempfile.tempdir = path
        # `tempfile` in child processes looks at these in this order; the other two are set where the system uses them.
        for name in ("TMPDIR", "TEMP", "TMP"):
            if name == "TMPDIR" or name in os.environ:
                os.environ[name] = path


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove a folder with its content, even if its permissions forbid it; nothing for ``""``. Never raises."""
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


@atexit.register  # on import, so that it runs after what closes engines and their environments
def _remove_own() -> None:
    remove_tree(_own.get(os.getpid(), ""))
