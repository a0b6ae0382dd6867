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
SHOWN = "text, a uint8 array of shape (H, W, 3), or a list of such arrays"
REWARD = "a finite number"
SUCCESS_KEYS = ("success", "is_success", "won", "task_success")  # of infos: those that trainers and gymnasium look for
NO_SUCCESS = (
    f"an episode of %s is over, and its last info has none of {', '.join(SUCCESS_KEYS)}, so it counts as no success: "
    "return info['success']."
)
LARGEST_REWARD = 2.0**60
"""Size of the largest reward. Training computes in float32, which ends at 2**128: below this, neither the sum of an
episode nor a square in the standard deviation of a group becomes infinite."""
_GYMNASIUMS = "; five are gymnasium's: done is 'terminated or truncated'"
_LONGEST = 120  # characters that are shown of a value


def checked_done(env: Any, done: Any) -> bool:
    """Whether an episode is over, as a step has returned it: a bool, 0, 1, or an array or scalar of one of these.

    Raises:
        ReturnError: It is something else, such as a text, whose truth value says nothing.
    """
    if not is_flag(done):
        raise wrong(env, "step", done, "True or False", "done")
    return bool(done)


def check_success(env: Any, info: Mapping[str, Any], key: str = "success") -> None:
    """Check that an info's success is a bool or a number, or an array or scalar of one; None is not known.

    A fraction is a success too, as is whatever is not 0.

    Raises:
        ReturnError: It is something else, such as ``"no"`` or NaN, which would count as a success.
    """
    success = info.get(key)
    if success is not None and not (is_flag(success) or is_reward(success)):
        raise wrong(env, "step", success, "True or False", f"info[{key!r}]")


def success_of(info: Mapping[str, Any]) -> bool | None:
    """Whether the info of an episode's last turn reports success; None if it does not say.

    Without ``success``, the first of the other :data:`SUCCESS_KEYS` with a truth value decides.
    """
    success = info.get("success")
    if success is None:
        success = next((info[key] for key in SUCCESS_KEYS if is_flag(info.get(key))), None)
    return None if success is None else bool(success)


def checked_reward(env: Any, reward: Any) -> float:
    """The reward of a step as a float.

    Raises:
        ReturnError: It is not a finite number.
    """
    if not is_reward(reward):
        raise wrong(env, "step", reward, REWARD, "reward")
    return float(unwrapped(reward))


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


def is_reward(value: Any) -> bool:
    """Whether a value is a number of at most :data:`LARGEST_REWARD` in size, or an array of one; NaN is not."""
    return is_number(value) and abs(float(unwrapped(value))) <= LARGEST_REWARD


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
