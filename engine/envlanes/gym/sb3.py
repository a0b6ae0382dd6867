"""An adapter from :class:`LaneVectorEnv` to Stable-Baselines3's ``VecEnv`` interface.

    from stable_baselines3 import PPO
    from envlanes.gym import make_vec
    from envlanes.gym.sb3 import LaneVecEnv

    model = PPO("MlpPolicy", LaneVecEnv(make_vec("CartPole-v1", 8, autoreset_mode="SameStep")))

Stable-Baselines3 is imported with this module, and nowhere else in the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import VecEnv

from envlanes.errors import ConfigError
from envlanes.gym.game import IsMethod
from envlanes.gym.lane_vector_env import LaneVectorEnv
from envlanes.interrupts import holds_interrupts


class LaneVecEnv(VecEnv):  # type: ignore[misc]
    """A ``VecEnv`` over a :class:`LaneVectorEnv`.

    Attributes:
        envs: The vector environment.
    """

    def __init__(self, envs: LaneVectorEnv) -> None:
        """Take over a vector environment, which is closed with this one.

        Args:
            envs: A vector environment that resets its sub-environments in the step that ends their episodes, as in
                ``VecEnv``.

        Raises:
            ConfigError: It does not.
        """
        if envs.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise ConfigError(
                f"autoreset_mode = {envs.autoreset_mode}: expected AutoresetMode.SAME_STEP, as in VecEnv."
            )
        self.envs = envs
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    @holds_interrupts
    def reset(self) -> Any:
        """Begin new episodes, with the seeds and options set since the last reset; returns observations."""
        # All of VecEnv's own, which are for the next reset alone.
        seeds = None if all(seed is None for seed in self._seeds) else list(self._seeds)
        options = [dict(each) if each else None for each in self._options] if any(self._options) else None
        observations, _ = self.envs.reset(seed=seeds, options=options)
        self.reset_infos = list(self.envs.each_info)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: Any) -> None:
        """Store the actions; :meth:`step_wait` plays them, and can be called again if it was interrupted."""
        self._actions = actions  # an interrupted `step_wait` can be repeated only if nothing has begun here

    @holds_interrupts
    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Observations, rewards, dones, and an info for each; the last info of an episode has its last observation."""
        observations, rewards, terminated, truncated, _ = self.envs.step(self._actions)
        over = terminated | truncated  # the next row shows the next episode then
        all_infos = []
        for index, row in enumerate(self.envs.each_info):
            if over[index]:
                self.reset_infos[index] = {k: v for k, v in row.items() if k not in ("final_obs", "final_info")}
                row = {**row.get("final_info", {}), "terminal_observation": row.get("final_obs")}
            all_infos.append({**row, "TimeLimit.truncated": bool(truncated[index] and not terminated[index])})
        return observations, rewards.astype(np.float32), over, all_infos  # the type of DummyVecEnv's rewards

    def close(self) -> None:
        """Close the vector environment."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of some sub-environments; instead of a method, a function that calls it where they live."""
        ids = self._get_indices(indices)

        def method(index: int) -> Callable[..., Any]:
            return lambda *args, **kwargs: self.env_method(attr_name, *args, indices=index, **kwargs)[0]

        found = zip(ids, self.envs.ask(ids, "read", attr_name), strict=True)
        return [method(index) if type(each) is IsMethod else each for index, each in found]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of some sub-environments."""
        self.envs.set_some(dict.fromkeys(self._get_indices(indices), value), attr_name)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Call a method of some sub-environments."""
        return list(self.envs.call_some(self._get_indices(indices), method_name, *args, **kwargs))

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Whether some sub-environments are wrapped in a class, such as ``Monitor``."""
        return list(self.envs.ask(self._get_indices(indices), "is_wrapped", wrapper_class))

    def get_images(self) -> Sequence[Any]:
        """The rendering of each sub-environment."""
        return list(self.envs.render())
