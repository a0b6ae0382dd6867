"""Closing a vector environment, also while a call is under way."""

from __future__ import annotations

import logging
import multiprocessing
import time

from gymnasium import logger

from ragen.parallel import EnvEngine
from ragen.vector.flights import Flights
from ragen.vector.pending import Pending

log = logging.getLogger(__name__)

_ABANDONED = 5.0  # seconds in which a call ends whose workers were killed


def close(engine: EnvEngine, pending: Pending | None, flights: Flights, timeout: float | None, terminate: bool) -> None:
    """Wait for what is under way, or end it, and close the engine.

    Args:
        engine: The engine.
        pending: A call that was begun and not waited for.
        flights: Steps that were sent and not received.
        timeout: Seconds to wait for them; None until they are done.
        terminate: Do not wait.
    """
    under_way = pending.kind if pending is not None else "send" if flights else None
    if under_way is not None:
        logger.warn(f"Calling `close` while waiting for a pending call to `{under_way}` to complete.")
        if not _is_over(pending, flights, 0.0 if terminate else timeout):
            engine.abandon()
            if not _is_over(pending, flights, _ABANDONED):
                log.warning("an environment in the main process does not come back from `%s`; it is left.", under_way)
                return
    engine.close()


def _is_over(pending: Pending | None, flights: Flights, timeout: float | None) -> bool:
    """Wait for what is under way, whatever it gives; whether it has ended."""
    deadline = None if timeout is None else time.monotonic() + timeout
    if pending is not None:
        try:
            pending.wait(timeout)
        except multiprocessing.TimeoutError:
            if not pending.is_done:
                return False
        except BaseException:
            log.debug("what was under way at the end has failed", exc_info=True)
    return flights.wait_all(None if deadline is None else max(0.0, deadline - time.monotonic()))
