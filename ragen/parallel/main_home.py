"""The main process as a home of environments: one thread at a time plays there, with deadlines as far as can be."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from ragen.parallel.episode.host import EnvHost
from ragen.parallel.episode.main_deadline import Deadline
from ragen.parallel.episode.outcome import Outcome
from ragen.parallel.lanes.orders import Order

_one_at_a_time = threading.RLock()  # environments may share what their modules keep, whichever engine they are of
_NO_DEADLINE: AbstractContextManager[None] = nullcontext()


class MainHome:
    """The environments of one engine that live in the main process.

    Attributes:
        has_deadlines: Whether an environment that takes too long is interrupted; see
            :mod:`ragen.parallel.episode.main_deadline`.
    """

    def __init__(self, has_deadlines: bool) -> None:
        self.has_deadlines = has_deadlines
        self._host = EnvHost()

    def run(self, order: Order, timeout: float) -> list[Outcome]:
        """Carry out an order here; each item may take ``timeout`` seconds."""
        with _one_at_a_time, self._deadline(timeout):
            return order.run(self._host)

    def unload(self, env_ids: Iterable[int], timeout: float) -> None:
        """Close environments and forget them."""
        with _one_at_a_time, self._deadline(timeout):
            self._host.unload(env_ids)

    def close(self, timeout: float) -> None:
        """Close all of them."""
        with _one_at_a_time, self._deadline(timeout):
            self._host.close()

    def _deadline(self, timeout: float) -> AbstractContextManager[bool | None]:
        return Deadline(self._host, timeout) if self.has_deadlines else _NO_DEADLINE
