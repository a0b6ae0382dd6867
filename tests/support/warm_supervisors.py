"""Supervisor processes that stay from test to test, for tests of what workers do and not of how the first one starts.

A supervisor is an interpreter of its own, and starting it costs more than all that most tests do with its workers.
Workers are forks of one that stays as of any other, and end with their pool as ever. What is tested with
``@pytest.mark.cold`` has supervisors that start and end with the pool.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from ragen.parallel.lanes.handle import Ending
from ragen.parallel.process.launcher import Launcher
from support import leftovers

MOST = 4  # that wait for a test that needs one like them
CHANGES = ("PYTEST_CURRENT_TEST", "RAGEN_TESTS_BACKEND")  # change between tests, and mean workers nothing

_kept: dict[tuple[object, ...], Launcher] = {}  # the one that was used last at the end


class Lease:
    """As much of a launcher as a kind of workers uses: closing ends the workers, and the supervisor stays."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._tokens: set[str] = set()

    def is_alive(self) -> bool:
        return self._launcher.is_alive()

    def start(self, token: str, lane: str, descriptors: list[int]) -> None:
        self._tokens.add(token)
        self._launcher.start(token, lane, descriptors)

    def end(self, token: str, was_up: bool) -> Ending:
        self._tokens.discard(token)
        return self._launcher.end(token, was_up)

    def close(self) -> None:
        for token in list(self._tokens):
            self.end(token, True)
        if not self.is_alive():
            _end(self._launcher)

    def forget_in_child(self) -> None:
        self._launcher.forget_in_child()


def launcher(method: str, preload: Sequence[str], environ: Mapping[str, str]) -> Launcher | Lease:
    """What a kind of workers makes for itself: a lease of a supervisor that starts workers as a new one would."""
    if method != "forkserver":
        return Launcher(method, preload, environ)
    key = (tuple(preload), frozenset(environ.items()), *_surroundings())
    found = _kept.pop(key, None)
    if found is not None and not found.is_alive():
        _end(found)
        found = None
    if found is None:
        found = Launcher(method, preload, environ)
        leftovers.STAYING[found._process.pid] = found._commands.fileno()
    _kept[key] = found
    for other in list(_kept)[:-MOST]:
        _end(_kept.pop(other))
    return Lease(found)


def _surroundings() -> tuple[object, ...]:
    """What a new process inherits from this one, as far as tests change it."""
    variables = frozenset((name, value) for name, value in os.environ.items() if name not in CHANGES)
    output = tuple((os.fstat(descriptor).st_dev, os.fstat(descriptor).st_ino) for descriptor in (1, 2))
    return variables, output, os.getcwd(), tuple(sys.path), frozenset(os.sched_getaffinity(0))


def _end(launcher: Launcher) -> None:
    launcher.close()
    leftovers.STAYING.pop(launcher._process.pid, None)


def end_all() -> None:
    """End what is left at the end of the tests."""
    while _kept:
        _end(_kept.popitem()[1])


def _forget_in_child() -> None:
    for each in _kept.values():
        each.forget_in_child()
    _kept.clear()
    leftovers.STAYING.clear()


os.register_at_fork(after_in_child=_forget_in_child)
