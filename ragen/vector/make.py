"""``make_vec``: a vector environment on lanes from the id of a registered environment."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from ragen.vector.lane_vector_env import LaneVectorEnv


class _Make:
    """Makes a registered environment; sent to workers, which may have to import what registers it."""

    def __init__(self, spec: EnvSpec, wrappers: Sequence[Callable[[Any], Any]], kwargs: dict[str, Any]) -> None:
        self._spec, self._wrappers, self._kwargs = spec, tuple(wrappers), kwargs
        self.__module__, self.__qualname__ = "gymnasium", spec.id

    def __call__(self) -> Any:
        env = gymnasium.make(self._spec, **self._kwargs)
        for wrapper in self._wrappers:
            env = wrapper(env)
        return env


def make_vec(
    id: str | EnvSpec,
    num_envs: int = 1,
    *,
    wrappers: Sequence[Callable[[Any], Any]] | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> LaneVectorEnv:
    """Make a vector environment, like ``gymnasium.make_vec``.

    Args:
        id: Of a registered environment, or its spec.
        num_envs: Number of sub-environments.
        wrappers: Put around each, the first one innermost.
        vector_kwargs: Arguments of :class:`LaneVectorEnv`.
        kwargs: Arguments of :class:`LaneVectorEnv` too (``workers``, ``autoreset_mode``, ...); all others are the
            environment's own.

    Returns:
        The vector environment; its ``spec`` records how it was made.
    """
    names = set(inspect.signature(LaneVectorEnv).parameters) - {"env_fns"}
    vector = {key: kwargs.pop(key) for key in list(kwargs) if key in names} | (vector_kwargs or {})
    spec = copy.deepcopy(id if isinstance(id, EnvSpec) else gymnasium.spec(id))
    build = _Make(spec, wrappers or (), kwargs)
    envs = LaneVectorEnv([build] * num_envs, **vector)
    recorded = {**spec.kwargs, **kwargs, "num_envs": num_envs, "vectorization_mode": "lanes", "vector_kwargs": vector}
    envs.spec = copy.deepcopy(spec)
    envs.spec.kwargs = recorded | {"wrappers": wrappers or ()}
    return envs
