"""Errors for environments whose methods return something of the wrong form.

Most of these functions are called only after unpacking a value has failed, so that valid values cost nothing. The
message is the same in every process: it contains no object addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envlanes.errors import ReturnError, steady_repr

FOUR = "(observation, reward, done, info)"
FIVE = "(observation, reward, terminated, truncated, info)"
REWARD = "a finite number"
_GYMNASIUMS = "; five are gymnasium's: done is 'terminated or truncated'"
_LONGEST = 120  # characters that are shown of a value


def wrong_step(env: Any, returned: Any, expected: str = FOUR) -> ReturnError:
    """The error for a ``step`` with a wrong return value.

    Args:
        env: The environment.
        returned: The returned value.
        expected: The names of the values, in brackets.
    """
    names = expected.strip("()").split(", ")
    if not isinstance(returned, tuple | list):
        return wrong(env, "step", returned, f"a tuple {expected}")
    if len(returned) != len(names):
        hint = _GYMNASIUMS if expected == FOUR and len(returned) == 5 else ""
        return wrong(env, "step", returned, f"{len(names)} values {expected}{hint}")
    values = dict(zip(names, returned, strict=True))
    if not is_number(values["reward"]):
        return wrong(env, "step", values["reward"], REWARD, "reward")
    if not isinstance(values["info"], Mapping):
        return wrong(env, "step", values["info"], "a dict", "info")
    ends = [name for name in names[2:-1] if not is_flag(values[name])]
    if ends:
        return wrong(env, "step", values[ends[0]], "True or False", ends[0])
    return wrong(env, "step", returned, f"values {expected} that can be summed and merged over a turn's actions")


def wrong_reset(env: Any, returned: Any) -> ReturnError:
    """The error for a gymnasium ``reset`` that did not return an observation and an info.

    Args:
        env: The environment.
        returned: The returned value.
    """
    return wrong(env, "reset", returned, "a tuple (observation, info), the info a dict")


def wrong(env: Any, method: str, returned: Any, expected: str, part: str = "") -> ReturnError:
    """The error for a method with a wrong return value.

    Args:
        env: The environment.
        method: The method's name.
        returned: The returned value, or the part of it that is wrong.
        expected: The expected value, in words.
        part: The wrong part of the returned values; empty for all.
    """
    count = f"{len(returned)} values, " if isinstance(returned, tuple) and not part else ""
    kind = "" if count or returned is None else f" ({type(returned).__name__})"
    role = f" as {part}" if part else ""
    shown = " ".join(steady_repr(returned, _LONGEST).split())  # in one line, arrays too
    return ReturnError(f"{_name(env)}.{method}() returned {count}{shown}{kind}{role}; expected {expected}")


def unwrapped(value: Any) -> Any:
    """The value in a scalar of NumPy or torch, or in an array of one; any other value itself."""
    return value.item() if hasattr(value, "item") else value


def is_number(value: Any) -> bool:
    """Whether a value is a number, or an array of one; True and False are 1 and 0."""
    if isinstance(value, str | bytes):
        return False
    try:
        float(unwrapped(value))
    except Exception:  # of a class that a user wrote
        return False
    return True


def is_flag(value: Any) -> bool:
    """Whether a value is a bool, 0 or 1, or an array or scalar of one of these."""
    try:
        single = unwrapped(value)
        return isinstance(single, bool | int | float) and single in (0, 1)
    except Exception:  # an array of several, or a value of a class that a user wrote
        return False


def _name(env: Any) -> str:
    """The name of an environment's class, of that of the one that wrappers hide, or of a class itself."""
    try:
        return (env if isinstance(env, type) else type(getattr(env, "unwrapped", env))).__name__
    except Exception:  # a wrapper's property may need what is closed
        return type(env).__name__
