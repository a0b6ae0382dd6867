"""A call that was begun and is waited for later: it goes on in a thread, whatever the waiting does."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from typing import Any


class Pending:
    """One call under way.

    A time-out of :meth:`wait` ends the waiting, not the call: it can be waited for again, and gives its own result
    then, never that of another call.

    Attributes:
        kind: ``"reset"``, ``"step"`` or ``"call"``.
    """

    def __init__(self, kind: str, work: Callable[[], Any]) -> None:
        """Begin it."""
        self.kind = kind
        self._work = work
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"vector {kind}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    @property
    def is_done(self) -> bool:
        """Whether its result is there."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> Any:
        """Its result.

        Args:
            timeout: Seconds to wait at most; None to wait until it is done.

        Raises:
            TimeoutError: That of ``multiprocessing``: it takes longer, and goes on.
            BaseException: Whatever the call raised.
        """
        if not self._done.wait(timeout):
            raise multiprocessing.TimeoutError(
                f"The call to `{self.kind}_wait` has timed out after {timeout} second(s). It is still under way: call "
                f"`{self.kind}_wait` again to get its result."
            )
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value
