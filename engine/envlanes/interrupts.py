"""Handling of Ctrl-C: an interrupted call has not happened.

Python handles signals only in the main thread, between two bytecodes: a ``KeyboardInterrupt`` may come between any two
lines. So a call of the engine, the manager or another holder is one guarded block: SIGINT is noted in it, and raised
where that leaves nothing half done, which is where the time is spent: while the call waits for workers, while
environments run in the main process, right before results are committed, or at the end of the block. (To let it fly
everywhere but around the commit was considered. But a lock that was just acquired, a request of which half is in the
pipe, and an environment that has a new home and no worker are then left behind, each with a remedy of its own.)

A SIGINT that arrives once results are being committed is too late to stop the call, and must not appear to have done
so: the call returns, and the next one raises it, at its first chance to. (To send it again a moment after the return,
from a thread, would raise it anywhere, such as before the caller has stored the result.)
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as signal, without its enumerations: ten times as fast
import signal
import traceback
from collections.abc import Callable
from functools import wraps
from threading import get_ident, main_thread
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def in_main_thread() -> bool:
    """Whether this is the thread that Python handles signals in."""
    return get_ident() == main_thread().ident


class _Guard:
    """The state of the main thread, which alone reads and changes it.

    Attributes:
        is_held: Whether SIGINT is noted now.
        is_late: Whether the guarded call can no longer be undone.
        arrived: Whether one was noted and not yet raised.
        handler: The program's own, while :func:`_note` stands in its place.
    """

    is_held = is_late = arrived = False
    handler: Any = None


guard = _Guard()


def _note(*_: Any) -> None:
    guard.arrived = True


def _raise_arrived() -> None:
    guard.arrived = False
    signal.raise_signal(signal.SIGINT)  # the program's own handler decides what that does


class interrupts_held:
    """A context manager that guards a block; within a guarded block it does nothing."""

    _is_outermost = False

    def __enter__(self) -> None:
        if guard.is_held or get_ident() != main_thread().ident:
            return
        # In this order: until the handler stands in its place, an interrupt leaves the block unentered.
        handler = _signal.getsignal(_signal.SIGINT)
        # One that is ignored, or ends the process, interrupts nothing. `_note` stands there if the handler of another
        # signal has raised in the middle of this method, or of `__exit__`.
        if callable(handler) and handler is not _note:
            guard.handler = handler
            _signal.signal(_signal.SIGINT, _note)
        self._is_outermost = guard.is_held = True

    def __exit__(self, *_: object) -> None:
        if not self._is_outermost:
            return
        self._is_outermost = guard.is_held = False  # before the handler is back: one that it raises here must not stay
        is_late, guard.is_late = guard.is_late, False
        if _signal.getsignal(_signal.SIGINT) is _note:  # else an environment has put another one in its place
            _signal.signal(_signal.SIGINT, guard.handler)
        if not is_late and guard.arrived:  # only now: until then one could still be noted
            _raise_arrived()


def holds_interrupts(function: F) -> F:
    """Decorate a function to hold SIGINT back during each call."""

    @wraps(function)
    def held(*arguments: Any, **keywords: Any) -> Any:
        with interrupts_held():
            return function(*arguments, **keywords)

    return held  # type: ignore[return-value]


class interrupts_let_through:
    """A context manager that lets SIGINT through, within a guarded block whose results are not being committed.

    The program's own handler is back meanwhile: an environment may look at it, and put it back much later.
    """

    _is_open = False

    def __enter__(self) -> None:
        if not guard.is_held or guard.is_late or get_ident() != main_thread().ident:
            return
        self._is_open, guard.is_held = True, False
        try:
            if _signal.getsignal(_signal.SIGINT) is _note:
                _signal.signal(_signal.SIGINT, guard.handler)
            if guard.arrived:
                _raise_arrived()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._is_open:
            handler = _signal.getsignal(_signal.SIGINT)
            if callable(handler):
                guard.handler = handler
                _signal.signal(_signal.SIGINT, _note)
            guard.is_held = True


def interrupts_come_too_late() -> None:
    """Declare, within a guarded block, that its results are being committed: the call can no longer be undone."""
    if guard.is_held and get_ident() == main_thread().ident:
        if guard.arrived:
            with interrupts_let_through():  # those that are not
                pass
        guard.is_late = True


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
