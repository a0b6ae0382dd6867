"""A deadline for environments in the main process, as far as one can be enforced there.

Under ``auto``, environments begin in the main process, which cannot be killed, and cheap ones stay there.
An alarm (SIGALRM) interrupts an overdue environment there: loops in Python, sleeps, waits for locks. It cannot
interrupt C code that does not return to the interpreter, nor anything outside the main thread. A process that uses this
signal or the real-time interval timer itself keeps them, and has no deadline here.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as signal, without its enumerations: ten times as fast
from time import perf_counter
from types import FrameType
from typing import Any

from envlanes.episode import host
from envlanes.episode.host import EnvHost
from envlanes.episode.outcome import Overdue
from envlanes.interrupts import in_main_thread

_REAL, _DEFAULT = _signal.ITIMER_REAL, _signal.SIG_DFL
_SOON = 0.001  # seconds after which to look again where nothing may be interrupted
_LONGEST = 1e6  # longest setting of the timer, in seconds; a longer deadline sets it again
_OURS = host.__file__  # where nothing is interrupted: half of a change would be left behind
_AGAIN = 1.0  # seconds until an environment that swallowed the interrupt is interrupted again


class Deadline:
    """A context manager that raises ``Overdue`` in environments of a host that take too long.

    Deadlines may be nested. Entering it returns whether a deadline is enforced; see above.
    """

    __slots__ = ("_handler", "_home", "_outer", "_seconds")

    def __init__(self, home: EnvHost, seconds: float) -> None:
        self._home = home
        self._seconds = seconds
        self._handler: Any = None  # while it is set

    def __enter__(self) -> bool:
        outer = self._outer = _signal.getsignal(_signal.SIGALRM)
        is_taken = _signal.getitimer(_REAL)[0] if outer is _DEFAULT else not _is_deadline(outer)
        if is_taken or not in_main_thread():
            return False
        handler = self._handler = self._ring
        _signal.signal(_signal.SIGALRM, handler)
        _signal.setitimer(_REAL, self._seconds if self._seconds < _LONGEST else _LONGEST)
        return True

    def __exit__(self, *_: object) -> None:
        handler, self._handler = self._handler, None  # what rings from here on must not set the timer again
        if handler is None or _signal.getsignal(_signal.SIGALRM) is not handler:
            return  # the environment has taken it
        _signal.setitimer(_REAL, 0)
        _signal.signal(_signal.SIGALRM, self._outer)
        if self._outer is not _DEFAULT:
            _signal.setitimer(_REAL, _SOON)  # for another deadline, which recomputes its remaining time

    def _ring(self, _: int, frame: FrameType | None) -> None:
        if self._handler is None:
            return
        since = self._home.since
        left = since + self._seconds - perf_counter() if since else _SOON
        file = frame.f_code.co_filename if frame is not None else ""
        inside = frame is not None and file != _OURS
        if left > 0 or not inside:
            _signal.setitimer(_REAL, min(max(left, _SOON), _LONGEST))
            return
        _signal.setitimer(_REAL, _AGAIN)
        raise Overdue(f"timed out after {self._seconds:g} s")


def _is_deadline(handler: Any) -> bool:
    return isinstance(getattr(handler, "__self__", None), Deadline)
