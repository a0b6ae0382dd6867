"""Signs of life: a thread in each caller asks for them, since a busy event loop is no dead service."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ragen.agent_loop.lookup import kill, told
from ragen.agent_loop.service_actor import Sign
from ragen.agent_loop.whose import can_see, is_running

log = logging.getLogger(__name__)

BEAT = 5.0  # seconds between two signs of life
SECOND = 10.0  # seconds that a service which was silent is given once more


class Heartbeat:
    """Asks a service for signs of life, and ends one that leaves two unanswered."""

    def __init__(self, actor: Any, me: tuple[Any, ...], sign: Sign, patience: float) -> None:
        """Know the service.

        Args:
            actor: Its handle.
            me: What the caller says of itself: its name and process.
            sign: The service's first sign of life.
            patience: Seconds to wait for one.
        """
        self._actor, self._me, self._sign, self._patience = actor, me, sign, patience

    def run(self, loop: asyncio.AbstractEventLoop, stop: threading.Event, fail: Callable[[str], None]) -> None:
        """Ask until told to stop, the loop is closed or the service gone, of which ``fail`` is told in the loop."""
        while not stop.wait(BEAT):
            if loop.is_closed():
                with suppress(Exception):
                    self._actor.leave.remote(self._me[0])
                return
            if (text := self._trouble()) is not None:
                with suppress(RuntimeError):  # the loop was closed just now
                    loop.call_soon_threadsafe(fail, text)
                return

    def _trouble(self) -> str | None:
        import ray
        from ray.exceptions import GetTimeoutError

        for patience in (self._patience, min(SECOND, self._patience)):
            try:
                ray.get(self._actor.beat.remote(*self._me), timeout=patience)
                return None
            except GetTimeoutError:
                log.warning("the environment service has left a sign of life unanswered for %g s", patience)
            except Exception as error:
                return f"the environment service is gone: {told(error)}"
        self._end()
        return (
            f"the environment service (process {self._sign.process.pid}) left signs of life unanswered for "
            f"{self._patience:g} s (agent_loop.service_timeout) and was ended; another takes its place."
        )

    def _end(self) -> None:
        """End a service that is silent; one that was stopped takes no message, so its process is killed."""
        process = self._sign.process
        kill(self._actor)
        if can_see(process) and is_running(process):
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
