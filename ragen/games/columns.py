"""Values of many environments as columns: one array travels faster than a hundred small ones.

``packed`` turns a list into columns where its items are alike, ``unpacked`` makes the same list again: equal values of
equal types. Arrays come back as rows of one array, which can be written to.
"""

from __future__ import annotations

from typing import Any

LARGE = 8192  # bytes from which an array travels on its own: to gather it would cost a copy

AS_THEY_ARE, ARRAYS, SCALARS, DICTS, TUPLES = range(5)


def packed(values: list[Any]) -> tuple[Any, ...]:
    """A list as columns, where its items have one type and shape; nothing but built-in types, arrays and the items."""
    if len(values) > 1:
        kind = type(values[0])
        if kind in (float, int, bool, str, type(None)) or any(type(value) is not kind for value in values):
            return AS_THEY_ARE, values
        if kind is dict:
            return _packed_dicts(values)
        if kind is tuple and values[0] and len({len(value) for value in values}) == 1:
            return TUPLES, [packed(list(column)) for column in zip(*values, strict=True)]
        if kind.__module__ == "numpy":
            return _packed_arrays(values, kind.__name__ == "ndarray")
    return AS_THEY_ARE, values


def unpacked(column: tuple[Any, ...]) -> list[Any]:
    """What :func:`packed` was given."""
    how, content = column[0], column[1]
    if how == AS_THEY_ARE:
        return content
    if how in (ARRAYS, SCALARS):
        return list(content if content.flags.writeable else content.copy())
    if how == DICTS:
        rows = zip(*[unpacked(each) for each in column[2]], strict=True)
        return [dict(zip(content, row, strict=True)) for row in rows]
    return list(zip(*[unpacked(each) for each in content], strict=True))


def _packed_dicts(values: list[dict[Any, Any]]) -> tuple[Any, ...]:
    keys = list(values[0])
    if not keys or any(list(value) != keys for value in values):
        return AS_THEY_ARE, values
    return DICTS, keys, [packed([value[key] for value in values]) for key in keys]


def _packed_arrays(values: list[Any], are_arrays: bool) -> tuple[Any, ...]:
    import numpy as np

    first = values[0]
    dtype, shape = first.dtype, first.shape
    if dtype.kind not in "biufc" or not first.nbytes or first.nbytes > LARGE:
        return AS_THEY_ARE, values
    if (are_arrays and not shape) or any(value.dtype != dtype or value.shape != shape for value in values):
        return AS_THEY_ARE, values
    return ARRAYS if are_arrays else SCALARS, np.array(values, dtype)
