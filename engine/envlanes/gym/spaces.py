"""Spaces of a vector environment, learned from its sub-environments where they live."""

from __future__ import annotations

import logging
import os
import pickle
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gym_spaces
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from envlanes.games.gym_game import Description
from envlanes.games.shared_buffer import SharedBuffer

log = logging.getLogger(__name__)

LARGE = 16_384  # bytes of an observation from which it is left in shared memory
_OF_FIXED_SIZE = (
    gym_spaces.Box,
    gym_spaces.Discrete,
    gym_spaces.MultiBinary,
    gym_spaces.MultiDiscrete,
    gym_spaces.OneOf,
    gym_spaces.Text,
)
_HINT = " If this is intentional, use `observation_mode='different'` instead."


class Spaces(NamedTuple):
    """The four spaces of a vector environment."""

    observation: Any
    single_observation: Any
    action: Any
    single_action: Any


def batched(mode: str | tuple[Any, Any], descriptions: list[Description]) -> Spaces:
    """The spaces of a vector environment.

    Args:
        mode: ``"same"``, ``"different"``, or the observation space and the single one.
        descriptions: Of all sub-environments for ``"different"``, else of the first one at least.

    Raises:
        TypeError, ValueError: The mode is none of those.
    """
    count = len(descriptions)
    single_observation, single_action = pickle.loads(descriptions[0].spaces)
    action = batch_space(single_action, count)
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(each, Space) for each in mode):
            raise TypeError(f"Expected both elements of observation_mode to be Spaces, got {mode}")
        return Spaces(mode[0], mode[1], action, single_action)
    if mode == "same":
        return Spaces(batch_space(single_observation, count), single_observation, action, single_action)
    if mode == "different":
        each = [pickle.loads(description.spaces)[0] for description in descriptions]
        return Spaces(batch_differing_spaces(each), each[0], action, single_action)
    raise ValueError(
        "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation space, "
        f"actual got {mode}"
    )


def raise_if_differing(mode: Any, spaces: Spaces, fits: list[tuple[bool, bool]]) -> None:
    """Refuse sub-environments whose spaces do not fit together.

    Args:
        mode: That of observations.
        spaces: The vector environment's.
        fits: Of each sub-environment, whether its observation space and its action space fit.

    Raises:
        RuntimeError: Some do not; the message says which.
    """
    for index, what in enumerate(("observation", "action")):
        strangers = [env for env, fit in enumerate(fits) if not fit[index]]
        if strangers:
            expected = spaces.single_observation if index == 0 else spaces.single_action
            rule = "are not equivalent" if index or mode == "same" else "do not share a common shape and dtype"
            hint = "" if index or mode != "same" else _HINT
            raise RuntimeError(
                f"the sub-environments {what} spaces {rule}. Expected {expected}, which those of environments "
                f"{strangers} are not.{hint}"
            )


def refuse_shared_memory(space: Space) -> None:
    """Refuse ``shared_memory=True`` for spaces whose observations have no fixed size.

    Raises:
        ValueError: The space is none of gymnasium's own.
        TypeError: Its observations have a shape of their own each.
    """
    if isinstance(space, gym_spaces.Graph | gym_spaces.Sequence):
        raise TypeError(
            f"{space} has a dynamic shape so its not possible to make a static shared memory. "
            "Use `shared_memory=False`."
        )
    if isinstance(space, gym_spaces.Dict | gym_spaces.Tuple):
        for part in space.spaces.values() if isinstance(space, gym_spaces.Dict) else space.spaces:
            refuse_shared_memory(part)
    elif not isinstance(space, _OF_FIXED_SIZE):
        raise ValueError(
            f"shared_memory=True needs one of gymnasium's own spaces, and {space} is none: use `shared_memory=False`."
        )


def buffer_for(space: Space[Any], count: int) -> SharedBuffer | None:
    """Shared memory for observations that are large arrays; None where a pipe does as well, or there is none."""
    if not isinstance(space, gym_spaces.Box) or space.dtype is None or not hasattr(os, "memfd_create"):
        return None
    if int(np.prod(space.shape)) * space.dtype.itemsize < LARGE:
        return None
    try:
        return SharedBuffer(count, space.shape, space.dtype.str)
    except OSError as error:
        log.warning("no shared memory is available for observations (%s); they are sent through pipes.", error)
        return None
