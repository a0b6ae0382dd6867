"""Ctrl-C, held back where it would leave half a step behind, and let through where something may take long.

Python handles signals in the main thread alone, between two bytecodes of whatever runs there. What the engine and the
manager do with their records happens with SIGINT held back, so that an interrupted step has not happened; waits for
workers, and environments at work in the main process, are let through.

One that comes while results are being written down is too late to stop the call, and must not look as if it had: it is
sent again a moment after the call has returned.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as signal, without its enumerations: ten times as fast
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MOMENT = 0.001  # seconds after which an interrupt that came too late is sent again


class _Interrupts:
    """Keeps SIGINT back in the main thread, the only one in which Python handles signals."""

    def __init__(self) -> None:
        self._depth = 0
        self._handler: Any = None
        self._arrived = False
        self._is_late = False

    @contextmanager
    def held(self) -> Iterator[None]:
        if threading.get_ident() != threading.main_thread().ident:
            yield
            return
        outer = self._depth
        if not outer:
            self._raise_arrived()
            self._install()
        self._depth = outer + 1
        try:
            yield
        finally:
            self._depth = outer
            if not outer and self._is_late:
                self._remove_late()
            elif not outer:
                self._remove()

    @contextmanager
    def let_through(self) -> Iterator[None]:
        if not self._depth or threading.get_ident() != threading.main_thread().ident:
            yield
            return
        depth, self._depth = self._depth, 0
        try:
            self._remove()
            yield
        finally:
            self._install()
            self._depth = depth

    def come_too_late(self) -> None:
        if self._depth and threading.get_ident() == threading.main_thread().ident:
            if self._arrived:
                with self.let_through():  # those that are not
                    pass
            self._is_late = True

    def _install(self) -> None:
        handler = _signal.getsignal(_signal.SIGINT)
        if callable(handler):  # one that is ignored, or ends the process, interrupts nothing
            self._handler = handler
            _signal.signal(_signal.SIGINT, self._note)

    def _remove(self) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        if _signal.getsignal(_signal.SIGINT) == self._note:
            _signal.signal(_signal.SIGINT, handler)
        self._raise_arrived()  # only now: until then one could still be noted

    def _remove_late(self) -> None:
        handler, self._handler, self._is_late = self._handler, None, False
        arrived, self._arrived = self._arrived, False
        if arrived:
            threading.Thread(target=_interrupt_soon, name="ragen interrupts", daemon=True).start()
        if handler is not None and _signal.getsignal(_signal.SIGINT) == self._note:
            _signal.signal(_signal.SIGINT, handler)  # last: what is noted until now is raised by the next block

    def _raise_arrived(self) -> None:
        arrived, self._arrived = self._arrived, False
        if arrived:
            signal.raise_signal(signal.SIGINT)

    def _note(self, *_: Any) -> None:
        self._arrived = True


def _interrupt_soon() -> None:
    time.sleep(_MOMENT)
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # which also wakes it
    else:
        signal.raise_signal(signal.SIGINT)


def may_come_from_signal(error: BaseException) -> bool:
    """Whether it was perhaps not the code that ran which raised this, but the handler of a signal to the process.

    A ``KeyboardInterrupt`` wherever Ctrl-C may raise one; and what is no ``Exception``, such as ``SystemExit``, if it
    passed through a handler that is installed.
    """
    if isinstance(error, Exception) or threading.get_ident() != threading.main_thread().ident:
        return False
    if isinstance(error, KeyboardInterrupt):
        return callable(signal.getsignal(signal.SIGINT))
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


_interrupts = _Interrupts()
interrupts_held = _interrupts.held  # for the length of a block; nests
interrupts_let_through = _interrupts.let_through  # within such a block, where something may take long
interrupts_come_too_late = _interrupts.come_too_late  # within such a block, from where on its call has happened


def let_signals_pass(error: BaseException) -> None:
    """Raise again what a signal to this process has raised while an environment was at work.

    Whatever else an environment throws is its own failure, in main as in a worker: ``SystemExit``,
    ``asyncio.CancelledError``, ``GeneratorExit`` and classes of its own that derive from ``BaseException`` included. In
    main, a ``KeyboardInterrupt`` that the environment itself raises cannot be told from Ctrl-C, and is taken for it;
    workers know no Ctrl-C.
    """
    if may_come_from_signal(error):
        raise error
