"""Pending calls, which run in threads independently of the code that waits for them.

Environments in the main process are stepped by the calling thread at once: they may hold what only the thread that
built them can use, such as a database connection or an OpenGL context. :class:`Pending` is one call of all
sub-environments; :class:`PendingSteps` are steps sent one by one and not yet received, with one call in progress per
busy worker.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from envlanes.errors import StateError
from envlanes.games.gym_game import GymResult
from envlanes.interrupts import interrupts_let_through

Step = Callable[[Sequence[int], Sequence[Any]], list[GymResult]]


class Pending:
    """One pending call.

    A time-out of :meth:`wait` ends the waiting, not the call: it can be waited for again, and then returns its own
    result, never that of another call.

    Attributes:
        kind: ``"reset"``, ``"step"`` or ``"call"``.
    """

    def __init__(self, kind: str, work: Callable[[], Any], in_thread: bool) -> None:
        """Begin the call, in a thread of its own or here, where it is then done."""
        self.kind = kind
        self._work = work
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=[BaseException], name=f"vector {kind}", daemon=True)
        if in_thread:
            self._thread.start()
        else:
            self._run(Exception)

    def _run(self, kept: type[BaseException]) -> None:
        try:
            self._value = self._work()
        except kept as error:
            self._error = error
        finally:
            self._done.set()

    @property
    def is_done(self) -> bool:
        """Whether its result is available."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until its result is available.

        Args:
            timeout: Maximum number of seconds to wait; None to wait until it is done.

        Raises:
            TimeoutError: ``multiprocessing.TimeoutError``: it takes longer, and continues.
        """
        with interrupts_let_through():
            is_there = self._done.wait(timeout)
        if not is_there:
            raise multiprocessing.TimeoutError(
                f"The call to `{self.kind}_wait` has timed out after {timeout} second(s). It is still pending: call "
                f"`{self.kind}_wait` again to get its result."
            )
        if self._thread.ident is not None:
            self._thread.join()

    def result(self) -> Any:
        """The result of the call, after it was waited for.

        Raises:
            BaseException: The call raised it.
        """
        if self._error is not None:
            raise self._error
        return self._value


class PendingSteps:
    """Steps that are sent in groups, one per worker, and received one by one.

    Attributes:
        order: Environments in the order in which they were sent.
    """

    def __init__(self, step: Step) -> None:
        """Step environments with this function, in threads."""
        self._step = step
        self.order: list[int] = []
        self._found: dict[int, GymResult | BaseException] = {}
        self._changed = threading.Condition()

    def send(self, ids: Sequence[int], actions: Sequence[Any], homes: Sequence[Any]) -> None:
        """Begin to step these environments; those in the same worker are stepped together, those in main here."""
        groups: dict[Any, list[int]] = {}
        for row, home in enumerate(homes):
            groups.setdefault(home, []).append(row)
        here = groups.pop("main", [])
        self.order += ids
        for rows in groups.values():
            work = ([ids[row] for row in rows], [actions[row] for row in rows], BaseException)
            threading.Thread(target=self._run, args=work, name="vector send", daemon=True).start()
        if here:
            self._run([ids[row] for row in here], [actions[row] for row in here], Exception)

    def _run(self, ids: list[int], actions: list[Any], kept: type[BaseException]) -> None:
        try:
            found: Sequence[Any] = self._step(ids, actions)
        except kept as error:
            found = [error] * len(ids)
        with self._changed:
            self._found.update(zip(ids, found, strict=True))
            self._changed.notify_all()

    def receive(self, least: int, in_order: bool, timeout: float | None) -> dict[int, GymResult]:
        """Wait for finished environments.

        Args:
            least: Minimum number; all finished ones are returned.
            in_order: Return exactly ``least``, always those that were sent first, regardless of which are faster.
            timeout: Maximum number of seconds to wait; the rest can be received later.

        Returns:
            Results by environment, in the order in which they were sent.

        Raises:
            StateError: Fewer were sent.
            TimeoutError: ``multiprocessing.TimeoutError``.
            BaseException: A group of them raised it; the others can be received afterwards.
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
        """Wait until all are finished; returns whether they are."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            return self._changed.wait_for(lambda: len(self._found) >= len(self.order), left)
