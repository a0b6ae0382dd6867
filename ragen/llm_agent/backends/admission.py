"""Concurrency control: finds the number of concurrent requests that a server can use, from its throughput and refusals.

``Pace`` sets the limit, ``Slots`` admits requests. If the limit is doubled, a server with spare capacity answers twice
as many requests per second; a saturated one answers as many as before, only later. So the limit is doubled as long as
throughput grows, and then kept: excess requests queue at the server, which keeps it busy between bursts. A larger limit
is tried again from time to time. If the server refuses requests (429), the limit is reduced by a quarter, after which
it grows slowly; a limit of at most ``FIRST`` only if more than one attempt in seven is refused, since a server that
refuses a few of so few does so for other reasons.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

FIRST = 32
MOST = 1024
PAYS = 1.15  # ratio of answers per second from which doubling pays
_LESS = 0.75  # factor after refusals
_MANY = 1 / 7  # share of refused attempts from which a limit up to FIRST is too large
_JUDGED = 16  # attempts of which the share is taken
_SHORTEST_S = 0.05  # shortest measurement in seconds
_STEADY = 12  # measurements between two tries of a larger number


class Pace:
    """Finds the best number of concurrent requests.

    Attributes:
        limit: The current number.
    """

    def __init__(self, limit: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin a measurement.

        Args:
            limit: A fixed number; None to find it.
            clock: Returns the time in seconds.
        """
        self.limit = FIRST if limit is None else limit
        self._is_fixed = limit is not None
        self._clock = clock
        self._is_growing = True
        self._best = self._paid = 0.0  # most answers per second, and the limit at which they were reached
        self._steady = 0
        self._ceiling = MOST
        self._refused_at = float("-inf")
        self._attempts = self._refusals = 0  # since the last judgement
        self._begin()

    def _begin(self) -> None:
        self._since, self._answers, self._was_full = self._clock(), 0, True

    def answered(self, is_full: bool) -> None:
        """Count an answer.

        Args:
            is_full: Whether the limit was reached; if not, a larger one would change nothing.
        """
        if self._is_fixed:
            return
        self._judge()
        self._answers += 1
        self._was_full &= is_full
        seconds = self._clock() - self._since
        if self._answers >= self.limit and seconds >= _SHORTEST_S:
            if self._was_full:
                self._decide(self._answers / seconds)
            self._begin()

    def refused(self) -> None:
        """Count a request that the server refused as one too many."""
        if self._is_fixed:
            return
        self._refusals += 1
        self._judge()

    def _judge(self) -> None:
        """Reduce the limit if many attempts were refused; once for all that are refused together."""
        self._attempts += 1
        if self._attempts < _JUDGED:
            return
        share, self._attempts, self._refusals = self._refusals / self._attempts, 0, 0
        now = self._clock()
        if share <= (_MANY if self.limit <= FIRST else 0.0) or now - self._refused_at < 1.0:
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
            self._grow_carefully()
        elif self._steady >= _STEADY:
            self._best, self._paid, self._steady, self._is_growing = rate, self.limit / 2, 0, True
            self.limit = min(MOST, 2 * self.limit)

    def _grow_carefully(self) -> None:
        """After a refusal: grow to just below the refused limit, and beyond it only after a while."""
        if self.limit < self._ceiling - 1:
            self.limit = min(MOST, self.limit + max(1, self.limit // 20))
        elif self._steady >= _STEADY:
            self._ceiling, self._steady = self.limit + max(2, self.limit // 4), 0


class Slots:
    """Admits requests up to the pace's limit, first come, first served. For one event loop.

    Attributes:
        pace: Sets the limit.
        used: Number of requests admitted now.
    """

    def __init__(self, limit: int | None = None) -> None:
        """Begin with no request admitted; see :class:`Pace`."""
        self.pace = Pace(limit)
        self.used = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """The current limit."""
        return self.pace.limit

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a slot, and hold it within the block."""
        await self._enter()
        try:
            yield
        finally:
            self.used -= 1
            self._wake()

    def answered(self) -> None:
        """Count an answer; called while its slot is held."""
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
            if turn.done() and not turn.cancelled():  # it was granted a slot that it will not use
                self.used -= 1
                self._wake()
            raise

    def _wake(self) -> None:
        while self._queue and self.used < self.limit:
            turn = self._queue.popleft()
            if not turn.done():
                self.used += 1
                turn.set_result(None)
