"""Arguments of a vector environment, checked before anything is started or stepped."""

from __future__ import annotations

from typing import Any

import numpy as np

Options = dict[str, Any] | None


def seeds_from(seed: Any, count: int) -> list[int | None]:
    """A seed for each sub-environment: ``seed + i`` of a number, None of None, or those of a list."""
    if seed is None:
        return [None] * count
    if isinstance(seed, int | np.integer):  # as gymnasium derives them
        return [int(seed) + index for index in range(count)]
    seeds = [None if each is None else int(each) for each in seed]
    if len(seeds) != count:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={count} but got length={len(seeds)}."
        )
    return seeds


def options_from(options: Any, count: int) -> dict[int, Options]:
    """The options of each sub-environment that is to be reset.

    Args:
        options: One mapping for all, which may hold a ``"reset_mask"`` besides, or one for each in a list. It is the
            caller's, and left as it is.
        count: Number of sub-environments.

    Raises:
        TypeError, ValueError: A mask or a list does not fit.
    """
    if isinstance(options, list | tuple):
        if len(options) != count:
            raise ValueError(f"options: expected one for each of {count} environments, got a list of {len(options)}.")
        return {index: None if each is None else dict(each) for index, each in enumerate(options)}
    if options is None or "reset_mask" not in options:
        return dict.fromkeys(range(count), options)
    mask = options["reset_mask"]
    # In the words of gymnasium, whose own tests look for them.
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        kind = getattr(mask, "dtype", type(mask))
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {kind}")
    if mask.shape != (count,):
        raise ValueError(f"`options['reset_mask']` must have shape `({count},)`, got {mask.shape}")
    if not mask.any():
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    others = {key: value for key, value in options.items() if key != "reset_mask"}
    return dict.fromkeys(np.flatnonzero(mask).tolist(), others)


def ids_from(ids: Any, count: int) -> list[int]:
    """Indices of some sub-environments, each once.

    Raises:
        ValueError: There is none, one twice, or one that does not exist.
    """
    found = [int(each) for each in ids]
    if not found or len(set(found)) != len(found) or not {*found} <= {*range(count)}:
        raise ValueError(f"ids = {found}: expected different indices from 0 to {count - 1}.")
    return found
