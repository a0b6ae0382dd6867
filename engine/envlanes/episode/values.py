"""Copies of mutable values that pass into or out of an environment."""

from __future__ import annotations

import copy
import inspect
from functools import lru_cache
from typing import Any

IMMUTABLE = frozenset({bool, int, float, complex, str, bytes, type(None)})


def is_immutable(value: Any) -> bool:
    """Whether a value is of a known immutable type."""
    kind = type(value)
    if kind in IMMUTABLE:
        return True
    names = {base.__name__ for base in kind.__mro__} if kind.__module__ == "numpy" else ()
    return "generic" in names and "void" not in names  # a record of a structured array is a view of it


def copied(value: Any) -> Any:
    """A deep copy, or the value itself if it is immutable or cannot be copied."""
    if is_immutable(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # locks, generators, handles: such a value cannot leave its process either way
        return value


@lru_cache(maxsize=256)
def options_taken(reset: Any) -> frozenset[str] | None:
    """The names of the options that a ``reset`` takes; None if it takes any."""
    parameters = inspect.signature(reset).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)
