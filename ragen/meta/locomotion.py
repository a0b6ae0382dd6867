"""MuJoCo's half cheetah and ant with rewards that depend on a task; they need the extra ``ragen-lanes[meta]``.

Rewards are computed from the ``info`` of gymnasium's environments, whose models and physics are used unchanged.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from ragen.extras import needs
from ragen.meta.tasks import TaskEnv

with needs("meta", "MuJoCo's half cheetah and ant"):
    import mujoco
    from gymnasium.envs.mujoco.ant_v5 import AntEnv
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

mujoco.set_mju_user_warning(logging.getLogger(__name__).debug)  # else it writes them to a file in the current folder


class Locomotion(TaskEnv):
    """Steps a model, whose reward is that of the task."""

    _changed: tuple[str, Any]  # a default of gymnasium's environment, by name
    _reward: Any

    def __init__(self, **arguments: Any) -> None:
        """Build it; arguments are those of gymnasium's environment."""
        name, value = self._changed
        super().__init__(**{name: value, **arguments})

    def step(self, action: Any) -> Any:
        """Step, with the task's reward."""
        shown, _, terminated, truncated, info = super().step(action)
        return shown, float(self._reward(info)), terminated, truncated, info


class HalfCheetahVel(Locomotion, HalfCheetahEnv):
    """Run at a target speed: a task is a velocity, uniform over [0, 3]."""

    task_space = Box(0.0, 3.0, (1,), np.float32)
    _changed = "ctrl_cost_weight", 0.05

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **_: Any) -> float:
        """A velocity."""
        return float(rng.uniform(0.0, 3.0))

    def _reward(self, info: Any) -> float:
        return -abs(info["x_velocity"] - self.task) + info["reward_ctrl"]


class HalfCheetahDir(HalfCheetahVel):
    """Run as fast as possible, forward or backward: a task is 1 or -1."""

    task_space = Box(-1.0, 1.0, (1,), np.float32)

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **_: Any) -> float:
        """A direction."""
        return float(rng.choice((-1.0, 1.0)))

    def _reward(self, info: Any) -> float:
        return self.task * info["x_velocity"] + info["reward_ctrl"]


class AntDir(Locomotion, AntEnv):
    """Run in a direction: a task is a point on the unit circle."""

    task_space = Box(-1.0, 1.0, (2,), np.float32)
    _changed = "include_cfrc_ext_in_observation", False  # 27 numbers

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **_: Any) -> tuple[float, float]:
        """A direction."""
        angle = rng.uniform(-math.pi, math.pi)
        return math.cos(angle), math.sin(angle)

    def _reward(self, info: Any) -> float:
        along = info["x_velocity"] * self.task[0] + info["y_velocity"] * self.task[1]
        return along + info["reward_ctrl"] + info["reward_contact"] + info["reward_survive"]
