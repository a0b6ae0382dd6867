"""Steps that were sent and not received yet: as many calls under way as there are homes with something to do."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ragen.errors import StateError
from ragen.games.gym_game import GymResult

Step = Callable[[Sequence[int], Sequence[Any]], list[GymResult]]


class Flights:
    """Environments that are sent on a step in groups, one for each home, and received one by one."""

    def __init__(self, step: Step) -> None:
        """Step environments with this, in threads."""
        self._step = step
        self._order: list[int] = []  # environments in the order in which they were sent
        self._found: dict[int, GymResult | BaseException] = {}
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, index: int) -> bool:
        return index in self._order

    def send(self, ids: Sequence[int], actions: Sequence[Any], homes: Sequence[Any]) -> None:
        """Begin to step these; those that share a home go together."""
        groups: dict[Any, list[int]] = {}
        for row, home in enumerate(homes):
            groups.setdefault(home, []).append(row)
        self._order += ids
        for rows in groups.values():
            work = ([ids[row] for row in rows], [actions[row] for row in rows])
            threading.Thread(target=self._fly, args=work, name="vector send", daemon=True).start()

    def _fly(self, ids: list[int], actions: list[Any]) -> None:
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
        if not 1 <= least <= len(self._order):
            raise StateError(f"`recv` was asked for {least} environments, but {len(self._order)} were sent a step.")
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._ready(least, in_order)) >= least, timeout):
                raise multiprocessing.TimeoutError(
                    f"`recv` has timed out after {timeout} second(s). What was sent is still under way: call `recv` "
                    "again to get it."
                )
            return self._taken(self._ready(least, in_order))

    def _ready(self, least: int, in_order: bool) -> list[int]:
        candidates = self._order[:least] if in_order else self._order
        return [index for index in candidates if index in self._found]

    def _taken(self, ids: list[int]) -> dict[int, GymResult]:
        results: dict[int, GymResult] = {}
        for index in ids:
            result = self._found[index]
            if isinstance(result, BaseException):
                self._forget([each for each in self._order if self._found.get(each) is result])
                raise result
            results[index] = result
        self._forget(ids)
        return results

    def _forget(self, ids: list[int]) -> None:
        for index in ids:
            self._order.remove(index)
            del self._found[index]

    def wait_all(self, timeout: float | None) -> bool:
        """Wait until all have come back; whether they have."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            return self._changed.wait_for(lambda: len(self._found) >= len(self._order), left)
