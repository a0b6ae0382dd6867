"""Whatever holds numbers, as an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from ragen.errors import InputError


def to_numpy(data: Any) -> np.ndarray:
    """A tensor, array, number, flag or list as an array; one without dimensions of a number.

    Raises:
        InputError: It is nothing of that kind.
    """
    if hasattr(data, "detach"):  # a torch tensor, wherever it is
        return data.detach().cpu().numpy()
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, list | tuple | int | float | bool | np.generic):
        return np.array(data)
    raise InputError(f"{type(data).__name__} cannot be made an array; expected a tensor, array, number or list.")
