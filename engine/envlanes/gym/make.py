"""``make_vec``: a vector environment in workers from the id of a registered environment."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from envlanes.errors import ConfigError, did_you_mean
from envlanes.gym.lane_vector_env import LaneVectorEnv


def _make(spec: EnvSpec, wrappers: Sequence[Callable[[Any], Any]], kwargs: dict[str, Any]) -> Any:
    """Build a registered environment; its module may have to be imported in workers."""
    return reduce(lambda env, wrapper: wrapper(env), wrappers, gymnasium.make(spec, **kwargs))


def make_vec(
    id: str | EnvSpec,
    num_envs: int = 1,
    *,
    wrappers: Sequence[Callable[[Any], Any]] | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> LaneVectorEnv:
    """Create a vector environment, like ``gymnasium.make_vec``.

    Args:
        id: The id of a registered environment, or its spec.
        num_envs: Number of sub-environments.
        wrappers: Wrappers for each, the first one innermost.
        vector_kwargs: Arguments of :class:`LaneVectorEnv`.
        kwargs: Also arguments of :class:`LaneVectorEnv` (``workers``, ``autoreset_mode``, ...); all others are passed
            to the environment.

    Returns:
        The vector environment; its ``spec`` records how it was created.

    Raises:
        ConfigError: An argument is invalid, or neither takes one that is named much like one of the vector's.
    """
    names = set(inspect.signature(LaneVectorEnv).parameters)
    # An environment's own argument of such a name could not be told apart: it is given by its registration.
    vector = {key: kwargs.pop(key) for key in list(kwargs) if key in names} | (vector_kwargs or {})
    spec = copy.deepcopy(id if isinstance(id, EnvSpec) else gymnasium.spec(id))
    build: Any = partial(_make, spec, tuple(wrappers or ()), kwargs)
    build.__module__, build.__qualname__ = "gymnasium", spec.id  # the name in messages
    try:
        envs = LaneVectorEnv([build] * num_envs, **vector)
    except TypeError as error:  # perhaps from the environment, since it knows no such argument
        for key in kwargs:
            if f"'{key}'" in str(error) and (meant := did_you_mean(key, names)):
                raise ConfigError(f"make_vec got {key!r}, which {spec.id} does not take.{meant}") from error
        raise
    recorded = {
        "num_envs": num_envs,
        "vectorization_mode": "lanes",
        "vector_kwargs": vector,
        "wrappers": wrappers or (),
    }
    envs.spec = copy.deepcopy(spec)
    envs.spec.kwargs |= {**kwargs, **recorded}
    return envs
