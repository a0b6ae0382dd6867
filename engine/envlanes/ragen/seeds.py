"""Seeds: which ones are valid, and those of a manager's groups."""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from typing import Any

from envlanes.errors import InputError, in_short

SEED_LIMIT = 2**32  # the limit of NumPy's legacy generators, and so of RAGEN's seeds
DEFAULT_VAL_SEED = 123


def checked_seed(seed: Any, name: str = "seed", limit: int | None = SEED_LIMIT) -> int:
    """A seed as an int.

    Args:
        seed: An integer, also one of NumPy's.
        name: Its name, with which the message begins.
        limit: The first integer that is too large; None for no limit.

    Raises:
        InputError: It is not an integer, or out of range.
    """
    number = -1 if isinstance(seed, bool) or not hasattr(seed, "__index__") else operator.index(seed)
    if number < 0 or (limit is not None and number >= limit):
        valid = "an integer of at least 0" if limit is None else f"an integer from 0 to {limit - 1}"
        raise InputError(f"{name} = {in_short(seed)}: expected {valid}.")
    return number


def first_seed(mode: str, base_seed: int | None, counted: int) -> int:
    """The seed of the first group for a ``reset`` without a seed.

    Args:
        mode: ``"train"`` advances seeds from reset to reset, ``"val"`` uses the same seeds each time.
        base_seed: The mode's configured seed; None draws one (train), or is 123 (val).
        counted: The offset by earlier resets.
    """
    if mode != "train":
        return base_seed if base_seed is not None else DEFAULT_VAL_SEED
    # From the global generator and within RAGEN's range: a program that seeds it gets the episodes that it gets there.
    return random.randint(0, 1_000_000) if base_seed is None else base_seed + counted


def counted_on(mode: str, base_seed: int | None, counted: int, given: int | None, groups: int) -> int:
    """The offset after one more reset; after an explicit seed it continues from there, as in RAGEN."""
    if mode != "train" or base_seed is None:
        return counted
    return counted + groups if given is None else given - base_seed + 1


def group_seeds(first: int, numbers: Sequence[int]) -> list[int]:
    """The seeds of groups or of their members, by RAGEN's rule: each further group's seed is one higher.

    Args:
        first: Seed of group 0.
        numbers: The group of each.

    Raises:
        InputError: A seed is negative, or not below :data:`SEED_LIMIT`.
    """
    seeds = [first + number for number in numbers]
    if first < 0 or max(seeds) >= SEED_LIMIT:
        raise InputError(
            f"seed = {first}: {len(seeds)} groups would get the seeds {min(seeds)} to {max(seeds)}; seeds go from 0 to "
            f"{SEED_LIMIT - 1}."
        )
    return seeds
