"""Supervisor processes that stay from test to test, for tests of what workers do and not of how the first one starts.

A supervisor is an interpreter of its own, and starting it costs more than all that most tests do with its workers.
Workers are forks of one that stays as of any other, and end with their pool as ever. What is tested with
``@pytest.mark.cold`` has supervisors that start and end with the pool.

A worker imports the module of its environment's class, which for most tests is the test's own module. What such modules
import is imported once, in the supervisor and in the standard library's fork server: a worker then takes a fifth of the
time to start. That workers import by themselves what they need is tested with ``cold``, and by programs that tests run.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest

from envlanes.kinds import executor
from envlanes.kinds.process.kind import Launcher
from envlanes.workers.handle import Ending
from support import leftovers
from support.fixtures import PRELOADED

MOST = 6  # that wait for a test that needs one like them; the checker alone takes four kinds
CHANGES = ("PYTEST_CURRENT_TEST", "RAGEN_TESTS_BACKEND", "COLUMNS")  # change between tests, and mean workers nothing


@dataclass(eq=False)
class Staying:
    """A supervisor, what it has imported, and who has workers of it; it ends once it is neither kept nor used."""

    launcher: Launcher
    imported: set[str]
    leases: set[Lease] = field(default_factory=set)
    is_kept: bool = True

    def __post_init__(self) -> None:
        leftovers.STAYING[self.launcher._process.pid] = self.launcher._commands.fileno()

    def let_go(self) -> None:
        self.is_kept = False
        self.end_if_unused()

    def end_if_unused(self) -> None:
        if not self.launcher.is_alive() or not (self.is_kept or self.leases):
            self.launcher.close()
            leftovers.STAYING.pop(self.launcher._process.pid, None)


class Lease:
    """As much of a launcher as a kind of workers uses: closing ends the workers, and the supervisor stays."""

    def __init__(self, staying: Staying) -> None:
        self._staying = staying
        self._launcher = staying.launcher
        self._tokens: set[str] = set()
        staying.leases.add(self)

    def is_alive(self) -> bool:
        return self._launcher.is_alive()

    def start(self, token: str, name: str, descriptors: list[int]) -> None:
        self._tokens.add(token)
        self._launcher.start(token, name, descriptors)

    def end(self, token: str, was_up: bool) -> Ending:
        self._tokens.discard(token)
        return self._launcher.end(token, was_up)

    def close(self) -> None:
        for token in list(self._tokens):
            self.end(token, True)
        self._staying.leases.discard(self)
        self._staying.end_if_unused()

    def forget_in_child(self) -> None:
        self._launcher.forget_in_child()


_kept: dict[tuple[object, ...], Staying] = {}  # the one that was used last at the end


def launcher(method: str, preload: Sequence[str], environ: Mapping[str, str]) -> Launcher | Lease:
    """The launcher of a kind of workers: a lease of a supervisor that starts workers as a new one would.

    It may have imported more than is asked for, as the supervisor of a manager with more kinds of environments would.
    """
    if method != "forkserver":
        return Launcher(method, preload, environ)
    key = (frozenset(environ.items()), *_surroundings())
    preload = [*preload, *PRELOADED]
    found = _kept.pop(key, None)
    if found is None or not found.launcher.is_alive() or not found.imported.issuperset(preload):
        imported = set(preload) | (found.imported if found is not None else set())
        if found is not None:
            found.let_go()
        found = Staying(Launcher(method, sorted(imported), environ), imported)
    _kept[key] = found
    for other in list(_kept)[:-MOST]:
        _kept.pop(other).let_go()
    return Lease(found)


@cache
def fork_server() -> None:
    """Start the standard library's, which stays until this process ends, as executors start it."""
    multiprocessing.set_forkserver_preload([*executor._PRELOADED, *PRELOADED])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # it takes no import path from here
        first = multiprocessing.get_context("forkserver").Process(target=os.getpid)
        first.start()
        first.join()
    multiprocessing.set_forkserver_preload(["__main__"])


def _surroundings() -> tuple[object, ...]:
    """State that a new process inherits from this one, as far as tests change it."""
    variables = frozenset((name, value) for name, value in os.environ.items() if name not in CHANGES)
    output = tuple((os.fstat(descriptor).st_dev, os.fstat(descriptor).st_ino) for descriptor in (1, 2))
    return variables, output, os.getcwd(), tuple(sys.path), frozenset(os.sched_getaffinity(0))


def end_all() -> None:
    """End what is left at the end of the tests."""
    while _kept:
        _kept.popitem()[1].let_go()


def _forget_in_child() -> None:
    for each in _kept.values():
        each.launcher.forget_in_child()
    _kept.clear()
    leftovers.STAYING.clear()


os.register_at_fork(after_in_child=_forget_in_child)
