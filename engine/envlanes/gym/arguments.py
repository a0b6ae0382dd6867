"""Arguments of a vector environment, checked before anything is started or stepped."""

from __future__ import annotations

from typing import Any

import numpy as np

from envlanes.errors import ConfigError
from envlanes.settings import Mode, Settings, default_workers

Options = dict[str, Any] | None
# Workers are never forks of this process, whose threads may hold locks: "fork" means forks of a clean one.
CONTEXTS = {None: "forkserver", "fork": "forkserver", "forkserver": "forkserver", "spawn": "spawn"}


def settings_from(
    context: str | None, worker: Any, max_concurrency: int | None, workers: int | str | None, **others: Any
) -> Settings:
    """The engine's settings; see :class:`~envlanes.gym.LaneVectorEnv`.

    Raises:
        ValueError: An argument is invalid.
    """
    if worker is not None:
        raise ConfigError(
            f"worker = {worker!r}: expected None, since a worker hosts many environments and cannot be replaced. Did "
            "you mean 'workers'?"
        )
    if context not in CONTEXTS:
        raise ConfigError(f"context = {context!r}: expected one of {', '.join(map(repr, CONTEXTS))}.")
    for name, value, least in ("max_concurrency", max_concurrency, 1), ("workers", workers, 0):
        is_count = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
        if value is not None and not is_count and (name, value) != ("workers", "auto"):
            raise ConfigError(f"{name} = {value!r}: expected a number of at least {least}, or None.")
    # One environment of each worker is at work at a time. "auto" has as many workers as pay.
    most = [default_workers() if workers is None else workers, max_concurrency]
    limit = min([int(count) for count in most if count and count != "auto"], default=None)
    mode: Mode = "auto" if workers == "auto" else workers != 0
    return Settings.of(use_lanes=mode, max_workers=limit, start_method=CONTEXTS[context], **others)


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
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (count,):
        raise ValueError(f"`options['reset_mask']` must have shape `({count},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
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
    if not found or len(set(found)) != len(found) or not all(0 <= each < count for each in found):
        raise ValueError(f"ids = {found}: expected different indices from 0 to {count - 1}.")
    return found
