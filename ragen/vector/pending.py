"""Calls that were begun and are waited for later: they go on in threads, whatever the waiting does.

:class:`Pending` is one call of all sub-environments; :class:`PendingSteps` are steps that were sent one by one and not
received yet, as many calls under way as there are workers with something to do.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ragen.errors import StateError
from ragen.games.gym_game import GymResult
from ragen.parallel.interrupts import interrupts_let_through

Step = Callable[[Sequence[int], Sequence[Any]], list[GymResult]]


class Pending:
    """One call under way.

    A time-out of :meth:`wait` ends the waiting, not the call: it can be waited for again, and gives its own result
    then, never that of another call.

    Attributes:
        kind: ``"reset"``, ``"step"`` or ``"call"``.
    """

    def __init__(self, kind: str, work: Callable[[], Any]) -> None:
        """Begin it."""
        self.kind = kind
        self._work = work
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"vector {kind}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    @property
    def is_done(self) -> bool:
        """Whether its result is there."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until its result is there.

        Args:
            timeout: Seconds to wait at most; None to wait until it is done.

        Raises:
            TimeoutError: That of ``multiprocessing``: it takes longer, and goes on.
        """
        with interrupts_let_through():
            is_there = self._done.wait(timeout)
        if not is_there:
            raise multiprocessing.TimeoutError(
                f"The call to `{self.kind}_wait` has timed out after {timeout} second(s). It is still pending: call "
                f"`{self.kind}_wait` again to get its result."
            )
        self._thread.join()

    def result(self) -> Any:
        """What the call gave, once it was waited for.

        Raises:
            BaseException: Whatever the call raised.
        """
        if self._error is not None:
            raise self._error
        return self._value


class PendingSteps:
    """Environments that are sent a step in groups, one for each worker, and received one by one.

    Attributes:
        order: Environments in the order in which they were sent.
    """

    def __init__(self, step: Step) -> None:
        """Step environments with this, in threads."""
        self._step = step
        self.order: list[int] = []
        self._found: dict[int, GymResult | BaseException] = {}
        self._changed = threading.Condition()

    def send(self, ids: Sequence[int], actions: Sequence[Any], homes: Sequence[Any]) -> None:
        """Begin to step these; those that share a home go together."""
        groups: dict[Any, list[int]] = {}
        for row, home in enumerate(homes):
            groups.setdefault(home, []).append(row)
        self.order += ids
        for rows in groups.values():
            work = ([ids[row] for row in rows], [actions[row] for row in rows])
            threading.Thread(target=self._run, args=work, name="vector send", daemon=True).start()

    def _run(self, ids: list[int], actions: list[Any]) -> None:
        try:
            found: Sequence[Any] = self._step(ids, actions)
        except BaseException as error:
            found = [error] * len(ids)
        with self._changed:
            self._found.update(zip(ids, found, strict=True))
            self._changed.notify_all()

    def receive(self, least: int, in_order: bool, timeout: float | None) -> dict[int, GymResult]:
        """Wait until so many are there.

        Args:
            least: How many at least; all that are there come back.
            in_order: Exactly ``least``, and always those that were sent first, whichever were quicker.
            timeout: Seconds to wait at most; what was not received can be received later.

        Returns:
            Results by environment, in the order in which they were sent.

        Raises:
            StateError: So many were not sent.
            TimeoutError: That of ``multiprocessing``.
            BaseException: What a group of them raised; the others can be received after it.
        """
        if not 1 <= least <= len(self.order):
            raise StateError(f"`recv` was asked for {least} environments, but only {len(self.order)} were sent a step.")
        with self._changed:
            with interrupts_let_through():
                is_there = self._changed.wait_for(lambda: len(self._ready(least, in_order)) >= least, timeout)
            if not is_there:
                raise multiprocessing.TimeoutError(
                    f"`recv` has timed out after {timeout} second(s). The steps are still pending: call `recv` "
                    "again to get it."
                )
            return self._taken(self._ready(least, in_order))

    def _ready(self, least: int, in_order: bool) -> list[int]:
        candidates = self.order[:least] if in_order else self.order
        return [index for index in candidates if index in self._found]

    def _taken(self, ids: list[int]) -> dict[int, GymResult]:
        results: dict[int, GymResult] = {}
        for index in ids:
            result = self._found[index]
            if isinstance(result, BaseException):
                self._forget([each for each in self.order if self._found.get(each) is result])
                raise result
            results[index] = result
        self._forget(ids)
        return results

    def _forget(self, ids: list[int]) -> None:
        for index in ids:
            self.order.remove(index)
            del self._found[index]

    def wait_all(self, timeout: float | None) -> bool:
        """Wait until all have come back; whether they have."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            return self._changed.wait_for(lambda: len(self._found) >= len(self.order), left)
