"""The values that a ``step`` returns: whether the episode is over, its reward, and whether it was a success.

Most of these functions are called only after a value's usual types have been ruled out, so that valid values cost
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envlanes.returned import REWARD, is_flag, is_number, unwrapped, wrong

SUCCESS_KEYS = ("success", "is_success", "won", "task_success")  # of infos: those that trainers and gymnasium look for
NO_SUCCESS = (
    f"an episode of %s is over, and its last info has none of {', '.join(SUCCESS_KEYS)}, so it counts as no success: "
    "return info['success']."
)
LARGEST_REWARD = 2.0**60
"""Size of the largest reward. Training computes in float32, which ends at 2**128: below this, neither the sum of an
episode nor a square in the standard deviation of a group becomes infinite."""


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


def is_reward(value: Any) -> bool:
    """Whether a value is a number of at most :data:`LARGEST_REWARD` in size, or an array of one; NaN is not."""
    return is_number(value) and abs(float(unwrapped(value))) <= LARGEST_REWARD
