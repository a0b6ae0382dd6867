"""Whether two rollouts say the same: numbers by value whatever their type, all else by type and content."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
from PIL import Image

from ragen.errors import in_short

_NOTHING = object()


def first_difference(expected: Any, got: Any, place: str = "") -> str:
    """Where two values part, and what stands there; empty if they say the same.

    ``1``, ``1.0`` and ``numpy.float64(1)`` are the same, and so are a list and a tuple; NaN is the same as itself.
    """
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        return _first_of(expected, got, place)
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        pairs = enumerate(zip_longest(expected, got, fillvalue=_NOTHING))
        return next(filter(None, (first_difference(a, b, f"{place}[{i}]") for i, (a, b) in pairs)), "")
    return "" if _same(expected, got) else f"{place or 'value'}: {_told(expected)} became {_told(got)}"


def _first_of(expected: Mapping[Any, Any], got: Mapping[Any, Any], place: str) -> str:
    for key in dict.fromkeys([*expected, *got]):
        found = first_difference(expected.get(key, _NOTHING), got.get(key, _NOTHING), f"{place}.{key}")
        if found:
            return found
    return ""


def _same(expected: Any, got: Any) -> bool:
    if isinstance(expected, Image.Image) and isinstance(got, Image.Image):
        return expected.size == got.size and expected.tobytes() == got.tobytes()
    if isinstance(expected, np.ndarray) or isinstance(got, np.ndarray):
        return type(expected) is type(got) and np.array_equal(expected, got)
    if _is_number(expected) and _is_number(got):
        return bool(expected == got) or (math.isnan(expected) and math.isnan(got))
    return type(expected) is type(got) and bool(expected == got)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number | np.bool_)


def _told(value: Any) -> str:
    return "nothing" if value is _NOTHING else in_short(value, 120)
