"""The outcome of one request to one environment: a value, or the exception it raised, ready for transport."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from envlanes.episode.clock import Spent
from envlanes.errors import EnvError
from envlanes.interrupts import let_signals_pass

LOADING = "load() of a snapshot"
"""The phase in which an environment's ``load`` raised, or that did not restore it."""

_LONGEST_TEXT, _LONGEST_TRACE = 2_000, 20_000  # characters kept of an exception's message and traceback


class Outcome(NamedTuple):
    """The outcome of one item of a batch.

    Attributes:
        env_id: The environment.
        value: The result, a :class:`Raised`, or a :class:`~envlanes.episode.journal.Divergence`.
        seconds: Time it took in the environment's process.
        saved: The pickled snapshot taken after it, if there was one.
    """

    env_id: int
    value: Any
    seconds: float = 0.0
    saved: Any = None


class Batch(NamedTuple):
    """The outcomes of a batch.

    Attributes:
        outcomes: In the order of its items.
        spent: The time of its resets or turns by tag, without those that failed.
    """

    outcomes: list[Outcome]
    spent: Mapping[str, Spent] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of an environment, in a form that can always be sent to another process.

    Attributes:
        phase: The operation: ``"build"``, ``"reset"``, ``"play"``, ``"replay"``, ``"call"``, :data:`LOADING`; or
            ``"load"``, ``"send"``, ``"receive"`` for values that cannot be sent between processes.
        text: Type and message, independent of the process in which it was raised.
        trace: The formatted traceback.
        pickled: The exception itself, if it comes from another process and can be pickled.
        original: The exception itself, if it was raised in this process.
    """

    phase: str
    text: str
    trace: str
    pickled: bytes | None = None
    original: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException, phase: str, travels: bool = True) -> Raised:
        """Describe an exception that was just caught; it is pickled if it is sent to another process."""
        text, unwritten = describe(error), f"a {type(error).__name__} whose traceback cannot be written\n"
        trace = _shortened(_tried(lambda: "".join(traceback.format_exception(error)), unwritten), _LONGEST_TRACE)
        if not travels:
            return cls(phase, text, trace, original=error.with_traceback(None))
        try:
            # A long message is not sent twice; the text has its two ends.
            pickled = pickle.dumps(error) if len(text) < _LONGEST_TEXT else None
            pickle.loads(pickled or b"N.")  # many exceptions with arguments of their own cannot be loaded again
        except BaseException as failure:
            let_signals_pass(failure)
            pickled = None
        return cls(phase, text, trace, pickled)

    def exception(self) -> BaseException:
        """The environment's exception, with the traceback of the process it was raised in as its cause."""
        error: Any = self.original
        try:
            error = pickle.loads(self.pickled) if error is None and self.pickled else error
        except BaseException as failure:  # an exception may fail to load in another process
            let_signals_pass(failure)
        if not isinstance(error, BaseException):
            error = EnvError(self.text)
        # As concurrent.futures shows an exception of another process: its traceback above that of the caller.
        error.__cause__ = OriginalTraceback(self.trace)
        return error


class TimedOut(Raised):
    """An environment that was overdue in the main process, and was interrupted."""


class Overdue(BaseException):
    """Raised inside an environment that takes too long in the main process; its message describes the time-out."""


class OriginalTraceback(Exception):
    """The traceback of an exception that was raised in another place, as text."""

    def __str__(self) -> str:
        return "\n" + self.args[0]


def describe(error: BaseException) -> str:
    """Type and message of an exception, shortened; never raises."""
    name = type(error).__name__
    return _shortened(_tried(lambda: f"{name}: {error}", name), _LONGEST_TEXT)


def _tried(write: Callable[[], str], otherwise: str) -> str:
    """A text about an exception; its own ``__str__`` may fail, or the working directory may have been removed."""
    try:
        return write()
    except BaseException as failure:
        let_signals_pass(failure)
        return otherwise


def _shortened(text: str, limit: int) -> str:
    """The text, without its middle where it is longer than the limit."""
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[: limit // 2]}... ({left_out} characters) ...{text[-limit // 2 :]}"
