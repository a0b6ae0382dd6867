"""Inputs of the manager's calls, checked before anything is stepped or reset."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envlanes.errors import InputError, in_short
from envlanes.ragen.turn import Turn, named

INPUT_KEYS = "env_id", "actions"
TurnRequests = dict[int, tuple[Turn, Mapping[str, Any]]]  # the turns of a call with their inputs, by env_id
_ONLY_TEXT = frozenset({str})
_fields = operator.itemgetter(*INPUT_KEYS)


@dataclass
class EnvStatus:
    """The status of an environment's episode.

    Attributes:
        truncated: The episode ended without success: by the action limit, by the game, or by a failure.
        terminated: The episode is over.
        num_actions: Actions executed so far.
        rewards: Reward of each turn.
        seed: Seed of the episode.
    """

    truncated: bool = False
    terminated: bool = False
    num_actions: int = 0
    rewards: list[float] = field(default_factory=list)
    seed: int | None = None


def checked_turns(all_env_inputs: Sequence[Mapping[str, Any]], envs: Mapping[int, Mapping[str, Any]]) -> TurnRequests:
    """The turns requested by the inputs of ``step``.

    Args:
        all_env_inputs: The inputs.
        envs: The manager's entries by env_id.

    Raises:
        InputError: An input has the wrong form.
    """
    if not isinstance(all_env_inputs, Sequence) or isinstance(all_env_inputs, str | bytes):
        raise InputError(f"step got {in_short(all_env_inputs)}; expected a list of dicts.")
    requests: TurnRequests = {}
    for position, given in enumerate(all_env_inputs):
        try:
            env_id, actions = _fields(given if type(given) is dict else dict(given))
        except (KeyError, TypeError, ValueError):
            keys = " and ".join(INPUT_KEYS)
            raise InputError(f"step input {position} is {in_short(given)}; expected a dict with {keys}.") from None
        if type(env_id) is not int or env_id not in envs:
            env_id = _checked_env_id(position, env_id, envs)
        if env_id in requests:
            raise InputError(f"step input {position}: env_id = {env_id} occurs twice in this call.")
        is_plain = type(actions) is list and _ONLY_TEXT.issuperset(map(type, actions))  # nearly all are
        if not is_plain and not (isinstance(actions, list | tuple) and all(isinstance(each, str) for each in actions)):
            raise InputError(f"step input {position}: actions = {actions!r}; expected a list of strings.")
        entry = envs[env_id]
        status: EnvStatus = entry["status"]
        if status.terminated:
            raise InputError(
                f"step input {position}: the episode of env_id = {env_id} is over; step only the environments "
                f"that step() returned."
            )
        left = entry["max_actions_per_traj"] - status.num_actions
        requests[env_id] = named(Turn, (tuple(actions), left)), given
    return requests


def _checked_env_id(position: int, env_id: Any, envs: Collection[int]) -> int:
    index = operator.index(env_id) if hasattr(env_id, "__index__") and not isinstance(env_id, bool) else -1
    if index not in envs:
        raise InputError(f"step input {position}: env_id = {env_id!r}; expected an integer from 0 to {max(envs)}.")
    return index
