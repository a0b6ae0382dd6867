"""Which environments are being used by a call: two threads never have the same one, and none has them at the end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ragen.errors import InputError, StateError
from ragen.parallel.interrupts import interrupts_held


class InUse:
    """The environments of one engine that calls are using now.

    Attributes:
        env_ids: Of all threads.
        is_closed: Whether the engine is, and none can be used any more.
    """

    def __init__(self, known: Collection[int], lock: Any) -> None:
        self.env_ids: set[int] = set()
        self.is_closed = False
        self._known, self._lock = known, lock

    @contextmanager
    def claimed(self, env_ids: Iterable[int]) -> Iterator[None]:
        """Have environments for oneself, with interrupts held back, for the length of a call.

        Raises:
            InputError: There is no such environment.
            StateError: Another call is using one of them, or the engine is closed.
        """
        self.check_open()
        with interrupts_held():
            wanted = set(env_ids)
            with self._lock:
                if unknown := wanted.difference(self._known):
                    raise InputError(f"there is no environment {sorted(unknown, key=str)[0]!r} in this engine.")
                if taken := self.env_ids & wanted:
                    raise StateError(f"env {min(taken)} is being used by another thread; wait for that call to end.")
                self.env_ids |= wanted
            try:
                yield
            finally:
                self.give_back(wanted)

    def give_back(self, env_ids: Collection[int]) -> None:
        """The call is over."""
        with self._lock:
            self.env_ids.difference_update(env_ids)

    def check_open(self) -> None:
        """Raise a ``StateError`` if the engine is closed."""
        if self.is_closed:
            raise StateError("this manager is closed; make a new one.")
