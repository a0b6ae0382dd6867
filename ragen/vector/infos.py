"""Infos of single environments as the one of a vector environment, by gymnasium's rules.

A key that some environment has is an array over all of them, beside a mask under the key with an underscore before it.
What the array is like follows from the first value: numbers and arrays are stacked, dictionaries merged likewise, and
anything else goes into an array of objects, as do final observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Infos = dict[str, Any]


def merged(infos: Sequence[Infos], count: int | None = None) -> Infos:
    """The infos of a row of environments, in order; those that have none are empty."""
    count = len(infos) if count is None else count
    told = [(row, info) for row, info in enumerate(infos) if info]
    if not told:
        return {}
    found = _alike([info for _, info in told]) if len(told) == count else None
    if found is None:
        found = {}
        for row, info in told:
            _add(found, info, row, count)
    return found


def _alike(infos: list[Infos]) -> Infos | None:
    """All at once, where every environment tells the same keys, and numbers only."""
    keys = list(infos[0])
    if any(list(info) != keys for info in infos):
        return None
    found: Infos = {}
    for key in keys:
        kind = type(infos[0][key])
        if not _is_number(kind) or key == "final_obs" or any(type(info[key]) is not kind for info in infos):
            return None
        found[key] = np.array([info[key] for info in infos], dtype=kind)
        found[f"_{key}"] = np.ones(len(infos), dtype=np.bool_)
    return found


def _add(found: Infos, info: Infos, row: int, count: int) -> None:
    for key, value in info.items():
        if isinstance(value, dict) and key != "final_obs":
            column = found.get(key, {})
            _add(column, value, row, count)
        else:
            column = found[key] if key in found else _column(key, value, count)
            column[row] = value
        mask = found.get(f"_{key}")
        if mask is None:
            mask = np.zeros(count, dtype=np.bool_)
        mask[row] = True
        found[key], found[f"_{key}"] = column, mask


def _column(key: str, value: Any, count: int) -> np.ndarray:
    if key != "final_obs":
        if _is_number(type(value)):
            return np.zeros(count, dtype=type(value))
        if isinstance(value, np.ndarray):
            return np.zeros((count, *value.shape), dtype=value.dtype)
    return np.full(count, None, dtype=object)


def _is_number(kind: type) -> bool:
    return kind in (int, float, bool) or issubclass(kind, np.number)
