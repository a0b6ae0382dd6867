"""Waiting for descriptors: a set of them that is kept from one wait to the next, or given once."""

from __future__ import annotations

import select
from collections.abc import Collection
from typing import Any

_LONGEST_WAIT = 600.0  # seconds of one poll, whose unit is the millisecond in 32 bits


class Watch:
    """Descriptors that are waited for again and again, while some come and go."""

    def __init__(self) -> None:
        self._writable: dict[int, bool] = {}
        self._poll: Any = select.poll() if hasattr(select, "poll") else None  # which Windows has not

    def add(self, descriptor: int, writable: bool = False) -> None:
        """Wait from now on until this one can be read from, or also until it can be written to."""
        if self._writable.get(descriptor) is writable:
            return
        self._writable[descriptor] = writable
        if self._poll is not None:
            self._poll.register(descriptor, select.POLLIN | (select.POLLOUT if writable else 0))

    def discard(self, descriptor: int) -> None:
        """Wait for this one no more; it may be closed already."""
        if self._writable.pop(descriptor, None) is not None and self._poll is not None:
            self._poll.unregister(descriptor)

    def wait(self, seconds: float) -> list[int]:
        """Those that are ready, after so many seconds at most."""
        seconds = max(0.0, min(seconds, _LONGEST_WAIT))
        if self._poll is not None:
            return [descriptor for descriptor, _ in self._poll.poll(seconds * 1000 + 1 if seconds else 0)]
        writable = [descriptor for descriptor, is_asked in self._writable.items() if is_asked]
        ready = select.select(list(self._writable), writable, [], seconds)
        return list({*ready[0], *ready[1]})


def wait_readable(descriptors: Collection[int], seconds: float) -> list[int]:
    """Wait so many seconds at most until one of these descriptors can be read from; those that can."""
    watch = Watch()
    for descriptor in descriptors:
        watch.add(descriptor)
    return watch.wait(seconds)
