"""Copies of values that pass into or out of an environment.

An environment may return the same array repeatedly, or one that it uses internally, so returned values are copied at
once.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

IMMUTABLE = frozenset({bool, int, float, complex, str, bytes, type(None)})


def is_immutable(value: Any) -> bool:
    """Whether a value is of a known immutable type."""
    # A record of a structured array is a scalar of NumPy's too, and a view of the array.
    return type(value) in IMMUTABLE or (isinstance(value, np.generic) and not isinstance(value, np.void))


def copied(value: Any) -> Any:
    """A deep copy, or the value itself if it is immutable or cannot be copied."""
    if is_immutable(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # locks, generators, handles: such a value cannot leave its process either way
        return value
