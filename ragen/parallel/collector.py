"""Python's cyclic garbage collector, paused where a batch's results are taken in, which all stay.

The collector looks at young objects after every 700 that were made, and at all there are when enough of them have
stayed. A step of thousands of environments makes tens of thousands of objects, none of which is garbage: looking at
them hundreds of times doubled what the step cost the main process, and cost the more per environment the more there
were. With a pause they are looked at once, after the step.

Environments at work in the main process, and whatever other threads do while lanes are waited for, have the collector
as they are used to.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Collector:
    """Counts who has it paused; a collector that somebody else has switched off stays so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses = 0  # of all threads
        self._is_ours = False  # whether it was switched off here
        self._here = threading.local()

    @contextmanager
    def paused(self) -> Iterator[None]:
        if getattr(self._here, "is_pausing", False):
            yield
            return
        self._here.is_pausing = True
        self._pause()
        try:
            yield
        finally:
            self._resume()
            self._here.is_pausing = False

    @contextmanager
    def let_through(self) -> Iterator[None]:
        if not getattr(self._here, "is_pausing", False):
            yield
            return
        self._here.is_pausing = False
        self._resume()
        try:
            yield
        finally:
            self._pause()
            self._here.is_pausing = True

    def forget_in_child(self) -> None:
        """In a fork of the process: other threads' pauses are not here, nor is this thread's own."""
        self._lock = threading.Lock()
        was_ours = self._is_ours
        self._pauses, self._is_ours, self._here = 0, False, threading.local()
        if was_ours:
            gc.enable()

    def _pause(self) -> None:
        with self._lock:
            self._pauses += 1
            if self._pauses == 1 and gc.isenabled():
                gc.disable()
                self._is_ours = True

    def _resume(self) -> None:
        with self._lock:
            self._pauses = max(0, self._pauses - 1)  # a fork has forgotten them
            if not self._pauses and self._is_ours:
                self._is_ours = False
                gc.enable()


_collector = _Collector()
collector_paused = _collector.paused  # for the length of a block; nests
collector_let_through = _collector.let_through  # within such a block, where others' code runs or may run

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_collector.forget_in_child)
