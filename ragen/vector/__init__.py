"""Gymnasium's vector environments, beside RAGEN's manager; see :mod:`envlanes.gym`."""

from envlanes.gym import LaneVectorEnv, make_vec

__all__ = ["LaneVectorEnv", "make_vec"]
