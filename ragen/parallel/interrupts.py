"""Ctrl-C, held back where it would leave half a step behind, and let through where something may take long.

Python handles signals in the main thread alone, between two bytecodes of whatever runs there. What the engine and the
manager do with their records happens with SIGINT held back, so that an interrupted step has not happened; waits for
workers, and environments at work in the main process, are let through.

One that comes when a round is over is too late to stop the call, and must not look as if it had: it is held back to the
end of the outermost block, whatever else that asks of the engine, and sent again a moment after the call has returned.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as signal, without its enumerations: ten times as fast
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_main = threading.main_thread().ident
_MOMENT = 0.001  # seconds after which an interrupt that came too late is sent again


def in_main_thread() -> bool:
    """Whether this is the thread that Python handles signals in."""
    return get_ident() == _main


def _be_main_thread() -> None:
    global _main
    _main = get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_be_main_thread)  # the only one there


class _Interrupts:
    """Keeps SIGINT back in the main thread, the only one in which Python handles signals.

    Attributes:
        depth: How many blocks hold it back now; only the main thread changes it.
        is_late: Whether the outermost of them has come so far that its call has happened.
        arrived: Whether an interrupt was noted that is still to be raised.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.is_late = self.arrived = False
        self._handler: Any = None
        self._note = self.note  # one object, to be compared with other handlers

    def note(self, *_: Any) -> None:
        self.arrived = True

    def install(self) -> None:
        handler = _signal.getsignal(_signal.SIGINT)
        if handler is not self._note and callable(handler):  # ignored, or the end of the process: interrupts nothing
            self._handler = handler
            _signal.signal(_signal.SIGINT, self._note)

    def remove(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None and _signal.getsignal(_signal.SIGINT) is self._note:
            _signal.signal(_signal.SIGINT, handler)
        if self.arrived:  # only now: until then one could still be noted
            self.raise_arrived()

    def remove_late(self) -> None:
        handler, self._handler, self.is_late = self._handler, None, False
        arrived, self.arrived = self.arrived, False
        if arrived:
            threading.Thread(target=_interrupt_soon, name="ragen interrupts", daemon=True).start()
        if handler is not None and _signal.getsignal(_signal.SIGINT) is self._note:
            _signal.signal(_signal.SIGINT, handler)  # last: what is noted until now is raised by the next block

    def raise_arrived(self) -> None:
        self.arrived = False
        signal.raise_signal(signal.SIGINT)


class interrupts_held:
    """For the length of a block: SIGINT is held back; nests."""

    _outer: int | None = None  # how deep it lies; None in another thread

    def __enter__(self) -> None:
        if get_ident() != _main:
            return
        self._outer = _interrupts.depth
        if not self._outer:
            if _interrupts.arrived:
                _interrupts.raise_arrived()
            _interrupts.install()
        _interrupts.depth = self._outer + 1

    def __exit__(self, *_: object) -> None:
        if self._outer is None:
            return
        _interrupts.depth = self._outer  # whatever happened to blocks within
        if not self._outer:
            _interrupts.remove_late() if _interrupts.is_late else _interrupts.remove()


def holds_interrupts(function: F) -> F:
    """A function with SIGINT held back for the length of each call."""

    @wraps(function)
    def held(*arguments: Any, **keywords: Any) -> Any:
        with interrupts_held():
            return function(*arguments, **keywords)

    return held  # type: ignore[return-value]


class interrupts_let_through:
    """Within such a block, for the length of another: SIGINT is let through, where something may take long."""

    _outer = 0  # how deep it lies; 0 where nothing is held back any more, or in another thread

    def __enter__(self) -> None:
        if not _interrupts.depth or _interrupts.is_late or get_ident() != _main:
            return
        self._outer = _interrupts.depth
        try:
            _interrupts.depth = 0
            _interrupts.remove()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._outer:
            _interrupts.install()
            _interrupts.depth = self._outer


def interrupts_come_too_late() -> None:
    """Within a block that holds SIGINT back: from here on, its call has happened."""
    if _interrupts.depth and get_ident() == _main:
        if _interrupts.arrived:
            with interrupts_let_through():  # those that are not
                pass
        _interrupts.is_late = True


_interrupts = _Interrupts()


def _interrupt_soon() -> None:
    time.sleep(_MOMENT)
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # which also wakes it
    else:
        signal.raise_signal(signal.SIGINT)


def let_signals_pass(error: BaseException) -> None:
    """Raise again what the handler of a signal to this process has raised while an environment was at work.

    That is a ``KeyboardInterrupt`` wherever Ctrl-C may raise one; and what is no ``Exception``, such as ``SystemExit``,
    if it passed through a handler that is installed. Whatever else an environment throws is its own failure, in main as
    in a worker: ``SystemExit``, ``asyncio.CancelledError``, ``GeneratorExit`` and classes of its own that derive from
    ``BaseException`` included. In main, an environment's own ``KeyboardInterrupt`` cannot be distinguished from
    Ctrl-C, and is taken for it; workers know no Ctrl-C.
    """
    if isinstance(error, Exception) or not in_main_thread():
        return
    if isinstance(error, KeyboardInterrupt):
        is_signal = callable(signal.getsignal(signal.SIGINT))
    else:
        handlers = map(signal.getsignal, signal.valid_signals())
        codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
        is_signal = any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
    if is_signal:
        raise error
