"""Arguments of a vector environment, checked before anything is started or stepped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from envlanes.errors import ConfigError
from envlanes.settings import Mode, Settings, default_workers

Options = dict[str, Any] | None
OptionsSource = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | Callable[[int, int], Options] | None
SeedsSource = Sequence[int | None] | Callable[[int, int], int | None] | None

CONTEXTS = {None: "forkserver", "fork": "forkserver", "forkserver": "forkserver", "spawn": "spawn"}


def settings_from(
    context: str | None, worker: Any, max_concurrency: int | None, workers: int | str | None, **others: Any
) -> Settings:
    """The engine's settings.

    Args:
        context: Of ``multiprocessing``; workers are never forks of this process.
        worker: Refused: workers here have no loop of their own to replace.
        max_concurrency: Maximum number of environments at work at the same time: one for each worker.
        workers: Maximum number of workers; 0 for none, ``"auto"`` where it was measured to pay, and as many as pay;
            None for the default.
        others: Further settings of the engine.

    Raises:
        ValueError: An argument is invalid.
    """
    if worker is not None:
        raise ConfigError("worker: a worker hosts many environments and cannot be replaced; leave it out.")
    if context not in CONTEXTS:
        raise ConfigError(f"context = {context!r}: expected one of {', '.join(map(repr, CONTEXTS))}.")
    if max_concurrency is not None:
        if isinstance(max_concurrency, bool) or not isinstance(max_concurrency, int | np.integer):
            raise ValueError(f"`max_concurrency` must be an integer or None, got {type(max_concurrency)}.")
        if max_concurrency < 1:
            raise ValueError(f"`max_concurrency` must be a positive or None, got {max_concurrency}.")
    is_count = isinstance(workers, int | np.integer) and not isinstance(workers, bool) and workers >= 0
    if workers not in (None, "auto") and not is_count:
        raise ConfigError(f"workers = {workers!r}: expected a number of at least 0, 'auto' or None.")
    use_lanes: Mode = "auto" if workers == "auto" else workers != 0
    counted = int(workers) if is_count and workers else None if workers == "auto" else default_workers()
    most = min([int(count) for count in (counted, max_concurrency) if count is not None], default=None)
    return Settings.of(use_lanes=use_lanes, max_workers=most, start_method=CONTEXTS[context], **others)


def seeds_from(seed: Any, count: int) -> list[int | None]:
    """A seed for each sub-environment: ``seed + i`` of a number, None of None, or those of a list."""
    if seed is None:
        return [None] * count
    if isinstance(seed, int | np.integer):
        return [int(seed) + index for index in range(count)]
    seeds = [None if each is None else int(each) for each in seed]
    if len(seeds) != count:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={count} but got length={len(seeds)}."
        )
    return seeds


def options_from(options: Any, count: int) -> tuple[list[int], list[Options]]:
    """Which sub-environments are to be reset, and the options of each.

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
        return list(range(count)), [None if each is None else dict(each) for each in options]
    if options is None or "reset_mask" not in options:
        return list(range(count)), [options] * count
    given = {key: value for key, value in options.items() if key != "reset_mask"}
    return np.flatnonzero(_checked_mask(options["reset_mask"], count)).tolist(), [given] * count


def _checked_mask(mask: Any, count: int) -> np.ndarray:
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
    return mask


def ids_from(ids: Any, count: int) -> list[int]:
    """Indices of some sub-environments, each once.

    Raises:
        ValueError: There is none, one twice, or one that does not exist.
    """
    found = [int(each) for each in ids]
    if not found or len(set(found)) != len(found) or not all(0 <= each < count for each in found):
        raise ValueError(f"ids = {found}: expected different indices from 0 to {count - 1}.")
    return found


def options_source(given: OptionsSource, count: int) -> Callable[[int, int], Options]:
    """Returns the options of an autoreset, by the index of the sub-environment and the number of its episode."""
    if given is None or callable(given):
        return given or nothing
    if isinstance(given, Mapping):
        same = dict(given)
        return lambda index, episode: same
    if len(given) != count:
        raise ConfigError(f"autoreset_options: expected one for each of {count} environments, got {len(given)}.")
    each = [None if item is None else dict(item) for item in given]
    return lambda index, episode: each[index]


def seeds_source(given: SeedsSource, count: int) -> Callable[[int, int], int | None]:
    """Returns the seed of an autoreset likewise."""
    if given is None or callable(given):
        return given or nothing
    if len(given) != count:
        raise ConfigError(f"autoreset_seeds: expected one for each of {count} environments, got {len(given)}.")
    each = list(given)
    return lambda index, episode: each[index]


def nothing(index: int, episode: int) -> None:
    """Returns None: an autoreset has no options, and no seed."""
    return None
