"""What surrounds a run of an environment: what it prints, how long it takes, what its class counts, why it failed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from ragen.env.registry import resolve_env
from ragen.errors import RagenError


class ClassState:
    """What a class of environments counts in itself, such as its instances, so that every run begins with the same."""

    def __init__(self, env_type: str) -> None:
        """Remember what the class of a type counts now."""
        try:
            self._class: Any = resolve_env(env_type)[0]
        except RagenError:  # it is not played, then
            self._class = None
        self._values = self._read()

    def restore(self) -> None:
        """Set what has changed since this was made."""
        for name, value in self._read().items():
            if name in self._values and value != self._values[name]:
                setattr(self._class, name, self._values[name])

    def _read(self) -> dict[str, Any]:
        values = vars(self._class) if self._class is not None else {}
        return {name: value for name, value in values.items() if type(value) in (int, float) and name[:2] != "__"}


@contextlib.contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Interrupt what takes longer."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"it takes longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Environments and the packages they import print nothing here, nor do the processes that are started meanwhile."""
    sys.stdout.flush()
    kept = [(stream, os.dup(stream)) for stream in (1, 2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream, _ in kept:
            os.dup2(nothing, stream)
        yield
    finally:
        sys.stdout.flush()
        for stream, copy in kept:
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nothing)


def first_line(error: BaseException) -> str:
    """What an exception says, or what its cause says where it is one of this package's."""
    cause = error
    while cause.__cause__ is not None and isinstance(cause, RagenError):
        cause = cause.__cause__
    text = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    return f"{type(cause).__name__}: {text}"[:200]
