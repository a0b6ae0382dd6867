"""How many requests are under way: as many as a server has use for, found by throughput and by its refusals.

``Pace`` decides, ``Slots`` lets requests through. With twice as many under way a server that has room answers twice as
many a second, and one that has none answers as many as before, only later: so the number is doubled as long as that
pays, and then stays: what the server has no room for waits there, which keeps it busy while answers travel and come in
bursts. Now and then a larger number is tried again. A refusal (429) means too many at once: a quarter less, then slowly
upwards again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

FIRST = 32
MOST = 1024
PAYS = 1.15  # so many times as many answers a second are worth doubling for
_LESS = 0.75  # after a refusal
_SHORTEST_S = 0.05  # of a measurement
_STEADY = 12  # measurements between two tries of a larger number


class Pace:
    """Finds the number of requests that should be under way.

    Attributes:
        limit: That number now.
    """

    def __init__(self, limit: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin a measurement.

        Args:
            limit: The number, if it is given and not to be found.
            clock: Tells the seconds.
        """
        self.limit = FIRST if limit is None else limit
        self._is_fixed = limit is not None
        self._clock = clock
        self._is_growing = True
        self._best = self._paid = 0.0  # answers a second at best, and the number with which they came
        self._steady = 0
        self._refused_at = float("-inf")
        self._ceiling = MOST
        self._begin()

    def _begin(self) -> None:
        self._since, self._answers, self._was_full = self._clock(), 0, True

    def answered(self, is_full: bool) -> None:
        """A request was answered.

        Args:
            is_full: Whether as many as allowed were under way; else a larger number would change nothing.
        """
        if self._is_fixed:
            return
        self._answers += 1
        self._was_full &= is_full
        seconds = self._clock() - self._since
        if self._answers >= self.limit and seconds >= _SHORTEST_S:
            if self._was_full:
                self._decide(self._answers / seconds)
            self._begin()

    def refused(self) -> None:
        """A server refused a request since there are too many: one step back for all that are refused together."""
        now = self._clock()
        if self._is_fixed or now - self._refused_at < 1.0:
            return
        self._refused_at = now
        self._ceiling = self.limit
        self.limit = max(1, int(self.limit * _LESS))
        self._is_growing, self._best, self._paid, self._steady = False, 0.0, float(self.limit), 0
        self._begin()

    def _decide(self, rate: float) -> None:
        if self._is_growing and rate > self._best * PAYS:
            self._best, self._paid = rate, float(self.limit)
            self.limit = min(MOST, 2 * self.limit)
            return
        if self._is_growing:
            self._is_growing, self._steady = False, 0
            self.limit = max(1, min(self.limit, int(2 * self._paid)))
            return
        self._steady += 1
        if self._refused_at > float("-inf"):
            self._go_on_carefully()
        elif self._steady >= _STEADY:
            self._best, self._paid, self._steady, self._is_growing = rate, self.limit / 2, 0, True
            self.limit = min(MOST, 2 * self.limit)

    def _go_on_carefully(self) -> None:
        """After a refusal: up to just below where it came, and beyond that only after a while."""
        if self.limit < self._ceiling - 1:
            self.limit = min(MOST, self.limit + max(1, self.limit // 20))
        elif self._steady >= _STEADY:
            self._ceiling, self._steady = self.limit + max(2, self.limit // 4), 0


class Slots:
    """Lets as many requests through as its pace says, in the order in which they came. For one event loop.

    Attributes:
        pace: Decides how many.
        used: How many are through now.
    """

    def __init__(self, limit: int | None = None) -> None:
        """Begin with no request let through; see :class:`Pace`."""
        self.pace = Pace(limit)
        self.used = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """How many may be through now."""
        return self.pace.limit

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a slot, and have it within the block."""
        await self._enter()
        try:
            yield
        finally:
            self.used -= 1
            self._wake()

    def answered(self) -> None:
        """A request was answered; called while its slot is held."""
        self.pace.answered(self.used >= self.limit or bool(self._queue))
        self._wake()

    async def _enter(self) -> None:
        if self.used < self.limit and not self._queue:
            self.used += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its slot was given to it, and it will not take it
                self.used -= 1
                self._wake()
            raise

    def _wake(self) -> None:
        while self._queue and self.used < self.limit:
            turn = self._queue.popleft()
            if not turn.done():
                self.used += 1
                turn.set_result(None)
