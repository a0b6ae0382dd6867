"""The program's own settings that environments may depend on, and how a worker takes them over.

A worker starts with the settings the program had when its supervisor or fork server started, and never runs the main
script. Environments are therefore sent with :func:`settings_now`, which the worker applies before it unpickles them: a
rebuilt environment finds the program as it is at that time. Only what the program has changed is applied, so that
whatever environments set in their worker stays. A worker on another machine keeps its own folder, variables and
locale.
"""

from __future__ import annotations

import contextlib
import importlib.util
import locale
import logging
import os
import socket
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from envlanes.this_process import OWN, node_name

in_worker = False  # whether this process takes over the settings of another one
_OF_THE_MACHINE = {"environ", "folder", "umask", "locale", "script", "modules"}


def settings_now() -> dict[str, Any]:
    """Return the settings of this process by name; those that cannot be read are left out."""
    found = {}
    for name, (read, _) in _SETTINGS.items():
        with contextlib.suppress(OSError, ValueError):  # the working directory was deleted, there is no /proc
            found[name] = read()
    return found


def take_over(settings: dict[str, Any]) -> None:
    """In a worker, apply what has changed in the program's settings; elsewhere, extend the import path only."""
    global _given
    if not in_worker:
        _set_path(settings["path"])
        return
    is_elsewhere = bool(node_name())
    for name, value in settings.items():
        if (name not in _given or value != _given[name]) and not (is_elsewhere and name in _OF_THE_MACHINE):
            with contextlib.suppress(OSError, ValueError, locale.Error):  # the folder is gone, no such locale
                _SETTINGS[name][1](value)
    _given = settings


def script_globals() -> dict[str, Any]:
    """Return the globals of functions of the main script: in a worker, those of its own ``__main__``.

    There the functions and classes can be pickled by name, as in the script, such as the target of a child process.
    """
    return vars(sys.modules["__main__"]) if in_worker else {"__name__": "__main__"}


def _set_path(path: list[str]) -> None:
    # In a worker of this machine the program's path decides which of two modules of a name is found, as it does in the
    # program; on another machine, the folders found there come first.
    comes_first = in_worker and not node_name()
    merged = list(dict.fromkeys([*path, *sys.path] if comes_first else [*sys.path, *path]))
    if merged != sys.path:
        sys.path[:] = merged
        importlib.invalidate_caches()


def _set_environ(variables: dict[str, str]) -> None:
    before, own = _given["environ"], os.environ.get(OWN, "").split()
    for name in before.keys() | variables.keys():
        # Variables that the worker or its environments have set stay, unless the program has changed them since.
        if name in own or before.get(name) == variables.get(name):
            continue
        if name in variables:
            os.environ[name] = variables[name]
        else:
            os.environ.pop(name, None)
    if hasattr(time, "tzset"):  # not on Windows; the C library reads TZ only when told to
        time.tzset()


def _umask() -> int:
    """The umask, which the system calls can only read by changing it for all threads."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next((line.split()[1] for line in lines if line.startswith("Umask:")), ""), 8)


def _levels() -> tuple[int, dict[str, int]]:
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    levels = {name: each.level for name, each in loggers.items() if isinstance(each, logging.Logger) and each.level}
    return logging.root.manager.disable, levels


def _set_levels(given: tuple[int, dict[str, int]]) -> None:
    logging.disable(given[0])
    for name, level in given[1].items():
        logging.getLogger(name).setLevel(level)


def _script() -> tuple[str | None, str | None]:
    """The file of the main script, and its name if it runs as a module (``python -m``)."""
    main = sys.modules["__main__"]
    return getattr(main, "__file__", None), getattr(getattr(main, "__spec__", None), "name", None)


def _set_script(script: tuple[str | None, str | None]) -> None:
    """Let ``multiprocessing`` know the script, which the children of an environment load where they do not fork."""
    main, (file, name) = sys.modules["__main__"], script
    if file is not None:
        main.__file__ = file
    main.__spec__ = ModuleSpec(name, None) if name is not None else None


def _loaded_by_path() -> dict[str, str]:
    """Files of modules that no import statement would find: they were loaded by path, or by a finder of the program."""
    found = {}
    for name, module in list(sys.modules.items()):  # another thread may import meanwhile
        spec: Any = getattr(module, "__spec__", None)
        if "." not in name and getattr(spec, "has_location", False):
            folder, file = os.path.split(spec.origin)
            if spec.submodule_search_locations:
                folder, file = os.path.split(folder)
            if folder not in sys.path or file.partition(".")[0] != name:
                found[name] = spec.origin
    return found


def _find(name: str, *_: Any) -> ModuleSpec | None:
    file = _given["modules"].get(name)
    return None if file is None else importlib.util.spec_from_file_location(name, file)


_finder: Any = SimpleNamespace(find_spec=_find)


def _set_loaded(_: dict[str, str]) -> None:
    """Have modules found where the program has loaded them from, if nothing else finds them."""
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)


_SETTINGS: dict[str, tuple[Any, Any]] = {
    "path": (lambda: list(sys.path), _set_path),
    "environ": (lambda: dict(os.environ), _set_environ),
    "folder": (os.getcwd, os.chdir),
    "umask": (_umask, os.umask),
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
    "sockets": (socket.getdefaulttimeout, socket.setdefaulttimeout),
    "locale": (lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)),
    "levels": (_levels, _set_levels),
    "argv": (lambda: list(sys.argv), lambda value: setattr(sys, "argv", value)),
    "script": (_script, _set_script),
    "modules": (_loaded_by_path, _set_loaded),
}
_given = settings_now()  # as they were when this process, or the one that it was forked from, began
