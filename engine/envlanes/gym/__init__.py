"""Gymnasium's vector environments in workers: many sub-environments per worker, and none is lost with it.

    from envlanes.gym import LaneVectorEnv, make_vec

    envs = make_vec("CartPole-v1", num_envs=128, workers=4)
    observations, infos = envs.reset(seed=0)
    observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    envs.close()

Reading order: ``lane_vector_env`` (the public class), ``sub_envs`` (sub-environments in an engine, and when each begins
its next episode), ``batch`` (arrays from results), ``spaces``, ``arguments``, ``pending``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from envlanes.gym.lane_vector_env import LaneVectorEnv
    from envlanes.gym.make import make_vec
    from envlanes.gym.sub_envs import SubEnvs

__all__ = ["LaneVectorEnv", "SubEnvs", "make_vec"]

__getattr__, __dir__ = attach(__name__, {"LaneVectorEnv": "lane_vector_env", "SubEnvs": "sub_envs", "make_vec": "make"})
