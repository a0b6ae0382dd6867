"""Handling of Ctrl-C: deferred where it would leave a step half done, and delivered during long waits.

Python handles signals only in the main thread, between two bytecodes. The engine and the manager update their records
with SIGINT held back, so that an interrupted step has no effect; SIGINT is let through while they wait for workers, and
while environments run in the main process.

A SIGINT that arrives when a round is over is too late to stop the call, and must not appear to have done so: it is held
back to the end of the outermost block, and sent again a moment after the call has returned.
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
        depth: Number of nested blocks that hold it back; only the main thread changes it.
        is_late: Whether the call of the outermost block can no longer be undone.
        arrived: Whether an interrupt was recorded and not yet raised.
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
            threading.Thread(target=_interrupt_soon, name="envlanes interrupts", daemon=True).start()
        if handler is not None and _signal.getsignal(_signal.SIGINT) is self._note:
            _signal.signal(_signal.SIGINT, handler)  # last: what is noted until now is raised by the next block

    def raise_arrived(self) -> None:
        self.arrived = False
        signal.raise_signal(signal.SIGINT)


class interrupts_held:
    """A context manager that holds SIGINT back; may be nested."""

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
    """Decorate a function to hold SIGINT back during each call."""

    @wraps(function)
    def held(*arguments: Any, **keywords: Any) -> Any:
        with interrupts_held():
            return function(*arguments, **keywords)

    return held  # type: ignore[return-value]


class interrupts_let_through:
    """A context manager that lets SIGINT through, within a block that holds it back."""

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
    """Declare, within a block that holds SIGINT back, that its call can no longer be undone."""
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
    """Raise an error again if a signal handler of this process raised it while an environment was running.

    These are a ``KeyboardInterrupt`` wherever Ctrl-C may raise one, and anything that is not an ``Exception``, such as
    ``SystemExit``, if its traceback contains an installed handler: also the ``KeyboardInterrupt`` of a handler of
    SIGTERM in a program that ignores Ctrl-C, such as one that a script started in the background. Everything else that
    an environment raises is its own failure, in the main process and in workers alike: ``SystemExit``,
    ``asyncio.CancelledError``, ``GeneratorExit`` and its own subclasses of ``BaseException`` included. In the main
    process, an environment's own ``KeyboardInterrupt`` cannot be distinguished from Ctrl-C, and is treated as one;
    workers ignore Ctrl-C.
    """
    if isinstance(error, Exception) or not in_main_thread():
        return
    is_signal = isinstance(error, KeyboardInterrupt) and callable(signal.getsignal(signal.SIGINT))
    if not is_signal:
        handlers = map(signal.getsignal, signal.valid_signals())
        codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
        is_signal = any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
    if is_signal:
        raise error
