"""Several episodes of one task as a single episode, in which an agent can infer the task.

The Bayes-adaptive decision process of VariBAD (Zintgraf et al. 2020, section 2.2): k episodes of at most H steps form
one of at most k * H, and only its end is terminal.
"""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from ragen.errors import ConfigError
from ragen.meta.task_set import TaskSet

Start = Literal["info", "observe"]


class VariBadWrapper(gym.Wrapper):  # type: ignore[type-arg]
    """k episodes of a task as one.

    Observations are the environment's state; then the task's vector if ``oracle``; then, if k > 1, a 1 where an inner
    episode has just ended and else a 0. Actions of a ``Box`` lie in [-1, 1], and are scaled to the environment's.

    Attributes:
        episodes_per_task: k.
        horizon_bamdp: Maximum number of steps in total, k * H; None if the environment has no limit H.
        n_tasks: Number of tasks; None if unlimited.
        tasks: The tasks.
        first_seed: Seed of the next reset without a seed.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        episodes_per_task: int,
        oracle: bool = False,
        start: Start = "info",
        tasks: TaskSet | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            env: The environment, with observations of a ``Box``.
            episodes_per_task: k, at least 1.
            oracle: Whether observations contain the task.
            start: The observation between two inner episodes: ``"info"`` returns the last state, and the next one's
                first state in ``info["start_state"]``; ``"observe"`` returns the first state, and the last one in
                ``info["final_state"]``.
            tasks: The tasks; by default, the environment's.

        Raises:
            ConfigError: An argument is invalid.
        """
        super().__init__(env)
        if episodes_per_task < 1 or start not in ("info", "observe"):
            raise ConfigError(
                f"episodes_per_task = {episodes_per_task}, start = {start!r}: expected at least 1, and info or observe."
            )
        self.episodes_per_task, self.oracle, self.start = episodes_per_task, oracle, start
        self.tasks = tasks or TaskSet.of_env(env.unwrapped)
        self.n_tasks = self.tasks.count
        has_limit = env.has_wrapper_attr("_max_episode_steps")
        self.horizon_bamdp = episodes_per_task * env.get_wrapper_attr("_max_episode_steps") if has_limit else None
        if isinstance(env.action_space, Box):
            low, high = env.action_space.low, env.action_space.high
            self._middle, self._reach = (high + low) / 2, (high - low) / 2
            self.action_space = Box(-1.0, 1.0, low.shape, np.float32)
        self.observation_space = self._space()
        self._task = np.zeros(0, np.float32)
        self.first_seed: int | None = None

    def reset(  # type: ignore[override]
        self, task: Any = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin with the first of k episodes.

        Args:
            task: The task: its index, its parameters, or None to sample one; may also be given as
                ``options["task"]``.
            seed: Seed of the environment's own generator.
            options: Further arguments of the environment's ``reset``.

        Raises:
            TaskError: There is no such task.
        """
        seed, self.first_seed = self.first_seed if seed is None else seed, None
        given = dict(options or {})
        task = self.tasks.parameters(given.pop("task", None) if task is None else task)
        if task is None:
            task = self.tasks.draw(np.random.default_rng(seed) if seed is not None else self.unwrapped.np_random)
        inner: Any = self.unwrapped
        if task is not None and hasattr(inner, "reset_task"):
            inner.reset_task(task)
        elif task is not None:
            given["task"] = task
        self._ended = 0
        state, info = self.env.reset(seed=seed, options=given or None)
        if self.oracle:
            self._task = inner.task_vector()
        return self._observed(state, 0.0), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Step; the episode ends after k inner ones. ``info["done_mdp"]`` is true at the end of an inner episode."""
        if isinstance(self.action_space, Box):
            within = np.clip(np.asarray(action, np.float64), -1.0, 1.0)
            action = (self._middle + self._reach * within).astype(self.env.action_space.dtype)
        state, reward, terminated, truncated, info = self.env.step(action)
        is_end = terminated or truncated
        info = {**info, "done_mdp": is_end}
        if hasattr(self.unwrapped, "is_goal_state"):
            info["is_goal_state"] = bool(self.unwrapped.is_goal_state())  # before another inner episode begins
        if is_end:
            self._ended += 1
            if self._ended < self.episodes_per_task:
                terminated = truncated = False
                begun, _ = self.env.reset()
                if self.start == "info":
                    info["start_state"] = begun
                else:
                    info["final_state"], state = state, begun
        return self._observed(state, float(is_end)), float(reward), terminated, truncated, info

    def _observed(self, state: Any, ended: float) -> np.ndarray:
        flag = [ended] if self.episodes_per_task > 1 else []
        return np.concatenate([np.asarray(state, np.float32).reshape(-1), self._task, flag], dtype=np.float32)

    def _space(self) -> Box:
        state = self.env.observation_space
        if not isinstance(state, Box):
            raise ConfigError(f"{self.env} has observations of {state}: expected a Box, as of FlattenObservation.")
        parts = [state]
        if self.oracle:
            space = getattr(self.unwrapped, "task_space", None)
            parts.append(space or Box(0.0, 1.0, self.unwrapped.task_vector().shape))  # type: ignore[attr-defined]
        if self.episodes_per_task > 1:
            parts.append(Box(0.0, 1.0, (1,)))
        low, high = (np.concatenate([getattr(part, end).reshape(-1) for part in parts]) for end in ("low", "high"))
        return Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
