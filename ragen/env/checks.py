"""Checks of configurations, seeds and actions, with uniform messages."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any

from envlanes.ragen import seeds
from envlanes.ragen.seeds import SEED_LIMIT
from ragen.errors import ConfigError, InputError, StateError


def require(ok: bool, env_type: str, key: str, value: object, expected: str) -> None:
    """Refuse a configuration value.

    Args:
        ok: Whether the value is valid.
        env_type: The environment type.
        key: The key in ``env_config``.
        value: Its value.
        expected: A description of valid values.

    Raises:
        ConfigError: ``ok`` is false.
    """
    if not ok:
        raise ConfigError(f"{env_type}: env_config key {key}={value!r}, expected {expected}.")


def require_families(env_type: str, families: Any, known: Collection[str]) -> None:
    """Check that ``families`` of generated instances are None or a list of known ones.

    Raises:
        ConfigError: They are neither.
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
        seed: The argument of ``reset``.
        limit: The first seed that is too large; None for no limit.

    Raises:
        InputError: The seed is not an integer, or out of range.
    """
    if seed is None:
        return secrets.randbelow(SEED_LIMIT)
    return seeds.checked_seed(seed, f"{env_type}: seed", limit)


def check_action(env_type: str, action: Any, lookup: dict[int, str]) -> None:
    """Check that an action is a key of the lookup.

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
    """Check that the environment was reset.

    Raises:
        StateError: It was not.
    """
    if not was_reset:
        raise StateError(f"{env_type}: step was called before the first reset.")
