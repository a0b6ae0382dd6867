"""What configurations, seeds and actions must look like, said once and with one kind of message."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Collection
from typing import Any

from ragen.errors import ConfigError, InputError, StateError

SEED_LIMIT = 2**32  # what numpy's legacy seeding takes, and so what RAGEN's seeds are


def require(ok: bool, env_type: str, key: str, value: object, expected: str) -> None:
    """Refuse a configuration value.

    Args:
        ok: Whether the value is fine.
        env_type: The environment type the configuration is for.
        key: The key in ``env_config``.
        value: What the key says.
        expected: What would be fine, in words.

    Raises:
        ConfigError: ``ok`` is false.
    """
    if not ok:
        raise ConfigError(f"{env_type}: env_config key {key}={value!r}, expected {expected}.")


def require_families(env_type: str, families: Any, known: Collection[str]) -> None:
    """Refuse ``families`` of generated instances that are neither None nor a list of some that are known.

    Raises:
        ConfigError: They are not.
    """
    if families is None:
        return
    named = isinstance(families, list | tuple) and bool(families)
    known_ok = named and all(isinstance(name, str) and name in known for name in families)
    require(known_ok, env_type, "families", families, f"null or a list of some of {', '.join(known)}")


def is_integer(value: Any, low: int | None = None, high: int | None = None) -> bool:
    """Whether a value is an integer (``True`` and ``1.0`` are not) between two bounds, both included."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return (low is None or value >= low) and (high is None or value <= high)


def is_number(value: Any, low: float | None = None, high: float | None = None) -> bool:
    """Whether a value is a finite number between two bounds, both included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if value != value or value in (float("inf"), float("-inf")):
        return False
    return (low is None or value >= low) and (high is None or value <= high)


def checked_seed(env_type: str, seed: int | None, limit: int | None = SEED_LIMIT) -> int:
    """The seed as an int; None draws one from the system.

    Args:
        env_type: The environment type, for the message.
        seed: What ``reset`` was given.
        limit: The first seed that is too large; None for no limit.

    Raises:
        InputError: The seed is not an integer, or out of range.
    """
    if seed is None:
        return secrets.randbelow(SEED_LIMIT)
    try:
        number = operator.index(seed)
    except TypeError:
        raise InputError(f"{env_type}: reset got seed {seed!r}, expected an integer or None.") from None
    if number < 0 or (limit is not None and number >= limit):
        bound = "" if limit is None else f" and below {limit}"
        raise InputError(f"{env_type}: reset got seed {number}, expected at least 0{bound}.")
    return number


def check_action(env_type: str, action: Any, lookup: dict[int, str]) -> None:
    """Refuse an action that is not a key of the lookup.

    Raises:
        InputError: It is not.
    """
    try:
        known = action in lookup
    except TypeError:  # not hashable
        known = False
    if not known:
        names = ", ".join(f"{key} ({name})" for key, name in lookup.items())
        raise InputError(f"{env_type}: step got action {action!r}, expected one of {names}.")


def check_was_reset(env_type: str, was_reset: bool) -> None:
    """Refuse a step of an environment that was never reset.

    Raises:
        StateError: It was not.
    """
    if not was_reset:
        raise StateError(f"{env_type}: step was called before the first reset.")
