"""The errors that the engine raises, one sentence each, and how messages show values, paths and exceptions.

A message says what happened, where (env id, tag, type, worker, pid, exit signal, turn) and what to do about it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_VALUES = re.compile(
    r"(?<= returned ).*?(?=; expected )|'[^']*'|\"[^\"]*\"|0x[0-9a-f]+|\d+(?:\.\d+)?", re.DOTALL | re.IGNORECASE
)


def did_you_mean(name: str, known: Iterable[str], shown: Callable[[str], str] = str, cutoff: float = 0.6) -> str:
    """`` Did you mean 'sokoban'?``, to follow an error message; "" if no known name is similar.

    Args:
        name: The unknown name.
        known: The known names.
        shown: Formats the suggested name.
        cutoff: Least similarity of a name, from 0 to 1.
    """
    return suggestion(shown(each) for each in nearest(name, known, cutoff))


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """The known name that is most similar to this one; empty if none is."""
    from difflib import get_close_matches  # here, since workers import this module

    return get_close_matches(name, sorted({*known}), 1, cutoff)


def suggestion(names: Iterable[str]) -> str:
    """`` Did you mean 'a' or 'b'?``, to follow another sentence; "" without names."""
    listed = " or ".join(map(repr, names))
    return f" Did you mean {listed}?" if listed else ""


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path for messages: relative to the current folder if it is inside of it."""
    try:
        return str(path).removeprefix(f"{os.getcwd()}{os.sep}")
    except OSError:  # the current folder was removed
        return str(path)


def in_short(value: Any, limit: int = 80) -> str:
    """A value for messages: its ``repr``, or the first ``limit`` characters and the total number."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def in_contrast(one: Any, other: Any, limit: int = 80) -> tuple[str, str]:
    """Two values for a message: the ``repr`` of each, or the part of each around the first difference."""
    if isinstance(one, str) and isinstance(other, str):
        shown = around_difference(one, other, limit)
        return repr(shown[0]), repr(shown[1])
    return around_difference(repr(one), repr(other), limit)


def around_difference(one: str, other: str, limit: int) -> tuple[str, str]:
    """Two texts; if one is longer than ``limit``, so many characters of each around the first difference."""
    pairs = enumerate(zip(one, other, strict=False))
    same = next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, same - limit // 2) if max(len(one), len(other)) > limit else 0
    end = start + limit
    shown = [f"{'...' * (start > 0)}{text[start:end]}{'...' * (end < len(text))}" for text in (one, other)]
    return shown[0], shown[1]


def steady_repr(value: Any, longest: int | None = None) -> str:
    """The ``repr`` of a value without object addresses, which differ between processes; never raises.

    Args:
        value: Any value.
        longest: Maximum number of characters; None for all.
    """
    try:
        text = _ADDRESS.sub("", repr(value))
    except Exception:  # of a class that a user wrote
        text = f"a {type(value).__name__} whose repr() raises"
    return text if longest is None or len(text) <= longest else f"{text[: longest - 3]}..."


def steady_text(value: Any) -> str:
    """A text itself, or the ``str`` of any other value without object addresses."""
    if isinstance(value, str):
        return value
    try:
        return _ADDRESS.sub("", str(value))
    except Exception:  # likewise
        return steady_repr(value)


def without_values(text: str) -> str:
    """A failure's message with ``..`` for its numbers, quoted texts and returned values.

    Failures of one cause differ in these alone; whatever lists failures counts those of an equal text together.
    """
    return _VALUES.sub("..", text)


def counted(count: int, one: str, many: str = "") -> str:
    """A number and its noun, whose plural ends in ``s`` if none is given."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


class EnvLanesError(Exception):
    """The base of every error that this package raises on purpose."""


class ConfigError(EnvLanesError, ValueError):
    """A configuration key has an invalid value; nothing was built or changed."""


class InputError(EnvLanesError, ValueError):
    """The input of a call does not fit the manager's state; no environment was stepped."""


class StateError(EnvLanesError, RuntimeError):
    """A method was called at a time when it cannot work, such as a step before the first reset."""


class EpisodeOverError(StateError, AssertionError):
    """An environment was stepped although its episode is over and it has not been reset."""


class EnvError(EnvLanesError, RuntimeError):
    """An environment failed in its own code; the environment's exception is the cause."""


class ReturnError(EnvError):
    """A method of an environment returned the wrong kind of value, such as three values instead of four."""


class DivergenceError(EnvError):
    """An environment, replayed from its seed and actions, did not return the same results as the first time."""


class ForkError(EnvError):
    """An environment cannot be copied in the requested state; no copy was added."""


class LaneError(EnvLanesError, RuntimeError):
    """A worker process could not do what was requested, for a reason outside the environment's own code."""


class LaneStartError(LaneError):
    """A worker process could not be started, or could not load what its environments need."""


class LaneDiedError(LaneError):
    """A worker process ended while it was needed: it was killed, or an environment ended it."""


class LaneTimeoutError(LaneError, TimeoutError):
    """An environment missed a deadline: its worker process was killed, or it was interrupted in the main process."""


class StorageError(EnvLanesError, OSError):
    """A run's file cannot be written, such as on a full disk; what was written is kept, and the run can go on."""
