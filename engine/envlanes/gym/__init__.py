"""Gymnasium's vector environments in workers: many sub-environments per worker, and none is lost with it.

    from envlanes.gym import LaneVectorEnv, make_vec

    envs = make_vec("CartPole-v1", num_envs=128, workers=4)
    observations, infos = envs.reset(seed=0)
    observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    envs.close()

Reading order: ``lane_vector_env`` (sub-environments in an engine, and the public class), ``game`` (a turn of one of
gymnasium's environments), ``arguments``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from envlanes.gym.game import GYM, READ, GymGame, GymResult, GymTurn, IsMethod
    from envlanes.gym.lane_vector_env import LaneVectorEnv, SubEnvs
    from envlanes.gym.make import make_vec

__all__ = [
    "GYM",
    "READ",
    "GymGame",
    "GymResult",
    "GymTurn",
    "IsMethod",
    "LaneVectorEnv",
    "SubEnvs",
    "make_vec",
]

_GAME = ("GYM", "READ", "GymGame", "GymResult", "GymTurn", "IsMethod")
__getattr__, __dir__ = attach(
    __name__,
    {
        **dict.fromkeys(_GAME, "game"),
        "LaneVectorEnv": "lane_vector_env",
        "SubEnvs": "lane_vector_env",
        "make_vec": "make",
    },
)
