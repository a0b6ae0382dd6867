"""A worker's position, in a few bytes of memory that the main process reads while the worker writes them.

So the main process knows which item's deadline is running without a message being sent.
"""

from __future__ import annotations

import time
from typing import Any

from envlanes.workers.handle import Position


class Progress:
    """Number of the request, index of the item, and when work on the item started, on ``time.monotonic()``.

    All processes of a machine share that clock. The memory is written field by field while the other process may read
    it, so the order matters: the start comes first and the number last, and a reader takes what it reads twice the
    same. A half-written position then shows at worst too late a start, never too early a one.
    """

    SIZE = 3 * 8

    def __init__(self, memory: Any) -> None:
        """Use this writable memory of at least ``SIZE`` bytes, which both processes share."""
        self._floats = memoryview(memory).cast("B")[: self.SIZE].cast("d")
        self._integers = memoryview(memory).cast("B")[: self.SIZE].cast("q")

    def begin(self, number: int) -> None:
        """Work on this request, and on its first item, starts now."""
        # The number last: with it the reader takes the item and its start for this request's. The other way round it
        # could read the new number with the last item of the old request, and take the worker for done.
        self.mark(0)
        self._integers[2] = number

    def mark(self, index: int) -> None:
        """Work on this item starts now."""
        # The start before the item: read in between, the last item has just begun, and nobody is killed for that. The
        # other way round the new item would seem to have run for as long as the last one.
        self._floats[0] = time.monotonic()
        self._integers[1] = index

    def read(self) -> Position:
        """The worker's position."""
        # Until two readings agree: each field is written at once, the three of them are not.
        position = None
        while position != (again := (self._integers[2], self._integers[1], self._floats[0])):
            position = again
        return Position(*again)
