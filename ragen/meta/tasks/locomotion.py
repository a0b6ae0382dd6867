"""MuJoCo's half cheetah and ant with rewards that depend on a task; they need the extra ``ragen-lanes[meta]``.

Rewards are computed from the ``info`` of gymnasium's environments, whose models and physics are used unchanged.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from ragen.errors import MissingExtraError, install_command
from ragen.meta.tasks.toy import TaskEnv

log = logging.getLogger(__name__)


class Locomotion(TaskEnv):
    """One of gymnasium's MuJoCo environments with a task's reward."""

    of = ""
    """Its name with gymnasium."""
    built_with: ClassVar[Mapping[str, Any]] = {}
    """Its default arguments."""
    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array", "depth_array"]}  # noqa: RUF012

    def __init__(self, **arguments: Any) -> None:
        """Build it.

        Args:
            arguments: Arguments of gymnasium's environment, such as ``render_mode``.

        Raises:
            MissingExtraError: MuJoCo is not installed.
        """
        try:
            _log_warnings()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                inner = gym.make(self.of, disable_env_checker=True, **{**self.built_with, **_kept(arguments)})
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            raise MissingExtraError(
                f"{type(self).__name__} needs MuJoCo, which is not installed: {install_command('meta')}."
            ) from error
        self._inner: Any = inner.unwrapped
        self.observation_space = self._inner.observation_space
        self.action_space = self._inner.action_space
        self.render_mode = self._inner.render_mode

    @property
    def np_random(self) -> np.random.Generator:
        """The generator of gymnasium's environment, the only one there is."""
        return self._inner.np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._inner.np_random = value

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of ``options["task"]``; see :meth:`TaskEnv.reset`."""
        shown, info = self._inner.reset(seed=seed)
        task = (options or {}).get("task")
        if task is not None or self.task is None:
            self.reset_task(task)
        return shown, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, with the task's reward."""
        shown, _, terminated, truncated, info = self._inner.step(action)
        return shown, float(self._reward(info)), terminated, truncated, info

    def render(self) -> Any:
        """Render gymnasium's environment."""
        return self._inner.render()

    def close(self) -> None:
        """Close it."""
        self._inner.close()

    def _reward(self, info: Mapping[str, Any]) -> float:
        raise NotImplementedError


class HalfCheetahVel(Locomotion):
    """Run at a target speed: a task is a velocity, uniform over [0, 3]."""

    of = "HalfCheetah-v5"
    built_with: ClassVar[Mapping[str, Any]] = {"ctrl_cost_weight": 0.05}
    task_space = Box(0.0, 3.0, (1,), np.float32)

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **_: Any) -> float:
        """A velocity."""
        return float(rng.uniform(0.0, 3.0))

    def _reward(self, info: Mapping[str, Any]) -> float:
        return -abs(info["x_velocity"] - self.task) + info["reward_ctrl"]


class HalfCheetahDir(Locomotion):
    """Run as fast as possible, forward or backward: a task is 1 or -1."""

    of = "HalfCheetah-v5"
    built_with: ClassVar[Mapping[str, Any]] = {"ctrl_cost_weight": 0.05}
    task_space = Box(-1.0, 1.0, (1,), np.float32)

    @classmethod
    def sample_task(cls, rng: np.random.Generator, **_: Any) -> float:
        """A direction."""
        return float(rng.choice((-1.0, 1.0)))

    def _reward(self, info: Mapping[str, Any]) -> float:
        return self.task * info["x_velocity"] + info["reward_ctrl"]


class AntDir(Locomotion):
    """Run in a direction: a task is a point on the unit circle.

    ``forward_backward=True`` draws only the two directions along the x axis.
    """

    of = "Ant-v5"
    built_with: ClassVar[Mapping[str, Any]] = {"include_cfrc_ext_in_observation": False}  # 27 numbers
    task_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, forward_backward: bool = False, **arguments: Any) -> None:
        """Build it; see :class:`Locomotion`."""
        super().__init__(**arguments)
        self._forward_backward = forward_backward

    @classmethod
    def sample_task(cls, rng: np.random.Generator, forward_backward: bool = False, **_: Any) -> tuple[float, float]:
        """A direction."""
        if forward_backward:
            return float(rng.choice((-1.0, 1.0))), 0.0
        angle = rng.uniform(-math.pi, math.pi)
        return math.cos(angle), math.sin(angle)

    def _draw(self) -> tuple[float, float]:
        return self.sample_task(self.np_random, self._forward_backward)

    def _reward(self, info: Mapping[str, Any]) -> float:
        along = info["x_velocity"] * self.task[0] + info["y_velocity"] * self.task[1]
        return along + info["reward_ctrl"] + info["reward_contact"] + info["reward_survive"]


def _kept(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _log_warnings() -> None:
    """Log MuJoCo's warnings, which it would otherwise write to ``MUJOCO_LOG.TXT`` in the current folder."""
    import mujoco

    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_log_warning)


def _log_warning(text: str) -> None:
    is_about_model_file = "deprecated" in text  # about gymnasium's own file, which the user cannot change
    log.log(logging.DEBUG if is_about_model_file else logging.WARNING, "MuJoCo: %s", text)
