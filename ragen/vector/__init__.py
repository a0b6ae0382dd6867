"""Gymnasium's vector environments on lanes: many sub-environments in a worker, and none lost with it.

    from ragen.vector import LaneVectorEnv, make_vec

    envs = make_vec("CartPole-v1", num_envs=128, workers=4)
    observations, infos = envs.reset(seed=0)
    observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    envs.close()

Reading order: ``lane_vector_env`` (what users see), ``fleet`` (sub-environments in an engine, and when each begins its
next episode), ``batch`` and ``infos`` (arrays from results), ``spaces``, ``arguments``, ``pending``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragen.vector.lane_vector_env import LaneVectorEnv
    from ragen.vector.make import make_vec

__all__ = ["LaneVectorEnv", "make_vec"]

_MODULES = {"LaneVectorEnv": "lane_vector_env", "make_vec": "make"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: nothing here slows an import of the package."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
