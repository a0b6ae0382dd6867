"""A deadline for what the main process plays itself, as far as one can be had there.

Under ``auto``, cheap environments and a share of the others are played in the main process, which nobody can kill. An
alarm (SIGALRM) there interrupts an environment that is overdue: loops in Python, sleeps, waits for locks. It cannot
interrupt C code that does not come back to the interpreter, nor anything outside the main thread. A process that uses
this signal or the real-time interval timer for itself keeps them, and has no deadline here.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as signal, without its enumerations: ten times as fast
import threading
from time import perf_counter
from types import FrameType

from ragen.parallel import host
from ragen.parallel.host import EnvHost, Overdue

_SOON = 0.001  # seconds after which to look again where nothing may be interrupted
_AGAIN = 1.0  # seconds after which an environment that did not let itself be interrupted is interrupted again


class Deadline:
    """Raises :class:`~ragen.parallel.host.Overdue` in each environment of a home that takes too long; a context."""

    def __init__(self, home: EnvHost, seconds: float) -> None:
        """Be a deadline for this home.

        Args:
            home: Whose environments work meanwhile, in this thread.
            seconds: What each of them may take.
        """
        self._home = home
        self._seconds = seconds
        self._is_set = False

    def __enter__(self) -> None:
        self._is_set = _is_free()
        if self._is_set:
            _signal.signal(_signal.SIGALRM, self._ring)
            _signal.setitimer(_signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        if self._is_set and _signal.getsignal(_signal.SIGALRM) == self._ring:  # else the environment has taken it
            self._is_set = False  # what rings from here on must not set the timer again
            _signal.setitimer(_signal.ITIMER_REAL, 0)
            _signal.signal(_signal.SIGALRM, _signal.SIG_DFL)

    def _ring(self, _: int, frame: FrameType | None) -> None:
        if not self._is_set:
            return
        since = self._home.since
        left = since + self._seconds - perf_counter() if since else _SOON
        inside = frame is not None and frame.f_code.co_filename != host.__file__
        if left > 0 or not inside:
            _signal.setitimer(_signal.ITIMER_REAL, max(left, _SOON))
            return
        _signal.setitimer(_signal.ITIMER_REAL, _AGAIN)
        raise Overdue(f"timed out after {self._seconds:g} s")


def _is_free() -> bool:
    """Whether this is the main thread, and nobody uses the signal or the timer."""
    return (
        threading.get_ident() == threading.main_thread().ident
        and _signal.getsignal(_signal.SIGALRM) == _signal.SIG_DFL
        and _signal.getitimer(_signal.ITIMER_REAL) == (0.0, 0.0)
    )
