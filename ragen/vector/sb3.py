"""Stable-Baselines3's ``VecEnv``; see :mod:`envlanes.gym.sb3`."""

from envlanes.gym.sb3 import LaneVecEnv

__all__ = ["LaneVecEnv"]
