"""An event loop in its own thread, for synchronous code that makes many requests at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")
_CLOSE_S = 5.0


class LoopThread:
    """Runs coroutines for callers in any thread; the thread starts with the first of them.

    It is a daemon: a process that forgets to close it ends all the same.
    """

    def __init__(self, name: str) -> None:
        """Give the thread its name."""
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine, wait for it, and return what it returns; Ctrl-C in the caller cancels it."""
        future = self.start(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()

    def start(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine, and return a future for its result at once."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    @property
    def started(self) -> bool:
        """Whether the thread runs."""
        return self._loop is not None

    def close(self) -> None:
        """Cancel what still runs, and end the thread; may be called twice."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(_CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE_S)
        if not thread.is_alive():
            loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=_CLOSE_S / 2) if others else None
