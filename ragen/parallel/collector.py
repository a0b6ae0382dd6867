"""Python's cyclic garbage collector, paused where a batch's results are taken in, which all stay.

The collector looks at young objects after every 700 that were made, and at all there are when enough of them have
stayed. A step of thousands of environments makes tens of thousands of objects, none of which is garbage: looking at
them hundreds of times doubled what the step cost the main process, and cost the more per environment the more there
were. With a pause they are looked at once, after the step.

What has gathered when the wait for lanes begins is looked at then, while nobody waits for this process. Left to itself
the collector would begin as the first object is made after that: when answers are there, and all others come.

Steps of few environments leave it alone. Environments at work in the main process, and whatever other threads do while
lanes are waited for, have the collector as they are used to.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident

MANY = 256  # environments of a step from which on it is paused
_pausing: set[int] = set()  # threads
_lock = threading.Lock()  # held to change them
_is_ours = False  # whether it was switched off here: one that somebody else has switched off stays so


def _pause(thread: int) -> None:
    global _is_ours
    with _lock:
        _pausing.add(thread)
        if not _is_ours and gc.isenabled():
            gc.disable()
            _is_ours = True


def _resume(thread: int) -> None:
    global _is_ours
    with _lock:
        _pausing.discard(thread)
        if not _pausing and _is_ours:
            _is_ours = False
            gc.enable()


class _Made:
    """An object that the collector knows of; with one more of them it does what is due, where it is on."""


def _let_through(thread: int) -> None:
    _resume(thread)
    _Made()


class _Switched:
    """A block that begins with one of these and ends with the other, for this thread; 0 for neither."""

    __slots__ = ("_begin", "_end", "_thread")

    def __init__(self, begin: Callable[[int], None], end: Callable[[int], None], thread: int) -> None:
        self._begin, self._end, self._thread = begin, end, thread

    def __enter__(self) -> None:
        if self._thread:
            self._begin(self._thread)

    def __exit__(self, *_: object) -> None:
        if self._thread:
            self._end(self._thread)


def collector_paused(envs: int) -> AbstractContextManager[None]:
    """For the length of a block: the collector is off, in whatever thread, if so many results matter; nests."""
    thread = get_ident() if envs >= MANY else 0
    return _Switched(_pause, _resume, 0 if thread in _pausing else thread)


def collector_let_through() -> AbstractContextManager[None]:
    """Within such a block, for the length of another: the collector is on, where others' code runs or may run.

    It looks at what has gathered as the block begins.
    """
    return _Switched(_let_through, _pause, get_ident() if is_paused_here() else 0)


def is_paused_here() -> bool:
    """Whether it is off for this thread's sake."""
    return bool(_pausing) and get_ident() in _pausing


def _forget_in_child() -> None:
    """In a fork of the process: other threads are not here, and this one's pause is the parent's."""
    global _lock, _is_ours
    _lock = threading.Lock()
    _pausing.clear()
    if _is_ours:
        _is_ours = False
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
