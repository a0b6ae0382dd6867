"""Several episodes of one task as a single episode, in which an agent can infer the task.

The Bayes-adaptive decision process of VariBAD (Zintgraf et al. 2020, section 2.2): k episodes of at most H steps form
one of at most k * H, and only its end is terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Tuple
from gymnasium.spaces.utils import flatten, flatten_space

from ragen.errors import ConfigError, TaskError


class VariBadWrapper(gym.Wrapper):  # type: ignore[type-arg]
    """k episodes of a task as one.

    Observations are the environment's state; then the task's vector if ``oracle``; then, if k > 1, a 1 where an inner
    episode has just ended and else a 0. Actions of a ``Box`` lie in [-1, 1], and are scaled to the environment's.

    Attributes:
        episodes_per_task: k.
        horizon_bamdp: Maximum number of steps in total, k * H; None if the environment has no limit H.
        n_tasks: Number of tasks; None if unlimited.
        tasks: The parameters of each task; None if unlimited. An environment that samples its tasks itself knows them
            by their indices, which are then their parameters.
        train_tasks, eval_tasks: Indices of the training tasks, and of the others.
        first_seed: Seed of the next reset without a seed.
    """

    first_seed: int | None = None

    def __init__(
        self,
        env: gym.Env[Any, Any],
        episodes_per_task: int,
        oracle: bool = False,
        start: str = "info",
        tasks: Sequence[Any] | None = None,
        train_tasks: range | None = None,
        sample_task: Callable[[np.random.Generator], Any] = lambda rng: None,
    ) -> None:
        """Wrap an environment.

        Args:
            env: The environment; its observations are flattened.
            episodes_per_task: k, at least 1.
            oracle: Whether observations contain the task.
            start: The observation between two inner episodes: ``"info"`` returns the last state, and the next one's
                first state in ``info["start_state"]``; ``"observe"`` returns the first state, and the last one in
                ``info["final_state"]``.
            tasks: The parameters of its tasks; by default, indices below its ``n_tasks`` if it has that.
            train_tasks: Indices of the training tasks; all by default.
            sample_task: Samples a task if they are unlimited; by default, the environment does.

        Raises:
            ConfigError: An argument is invalid.
        """
        super().__init__(env)
        if episodes_per_task < 1 or start not in ("info", "observe"):
            raise ConfigError(
                f"episodes_per_task = {episodes_per_task}, start = {start!r}: expected at least 1, and info or observe."
            )
        self.episodes_per_task, self.oracle, self.start = episodes_per_task, oracle, start
        self.tasks: Any = tasks or range(getattr(env.unwrapped, "n_tasks", None) or 0) or None
        count = len(self.tasks or ())
        self.n_tasks = count or None
        self.train_tasks = train_tasks or range(count)
        self.eval_tasks = range(len(self.train_tasks), count)
        self._sample_task, self.horizon_bamdp = sample_task, None
        if env.has_wrapper_attr("_max_episode_steps"):
            self.horizon_bamdp = episodes_per_task * env.get_wrapper_attr("_max_episode_steps")
        if isinstance(env.action_space, Box):
            self.action_space = Box(-1.0, 1.0, env.action_space.shape, np.float32)
        parts = [env.observation_space]
        if oracle:
            parts.append(env.unwrapped.task_space)  # type: ignore[attr-defined]
        if episodes_per_task > 1:
            parts.append(Box(0.0, 1.0, (1,)))
        whole: Any = flatten_space(Tuple(parts))
        self.observation_space = Box(whole.low.astype(np.float32), whole.high.astype(np.float32))

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
        given = {"task": task, **(options or {})}
        task = given.pop("task")
        if isinstance(task, int | np.integer):
            count = self.n_tasks or 0
            if task not in range(count):
                raise TaskError(f"task {task}: there are {count} with a number; give its parameters, or None.")
            task = self.tasks[task]
        if task is None:
            task = self.draw(self.unwrapped.np_random if seed is None else np.random.default_rng(seed))
        if task is not None:
            if hasattr(self.unwrapped, "reset_task"):
                self.unwrapped.reset_task(task)
            else:
                given["task"] = task
        self._ended = 0
        state, info = self.env.reset(seed=seed, options=given or None)
        return self._observed(state, False), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Step; the episode ends after k inner ones. ``info["done_mdp"]`` is true at the end of an inner episode."""
        if isinstance(self.action_space, Box):
            space: Any = self.env.action_space
            low, high = space.low, space.high
            scaled = (low + high + (high - low) * np.asarray(action, np.float64)) / 2
            action = np.clip(scaled, low, high).astype(low.dtype)
        state, reward, terminated, truncated, info = self.env.step(action)
        is_end = terminated or truncated
        info = {**info, "done_mdp": is_end}
        if hasattr(self.unwrapped, "is_goal_state"):
            info["is_goal_state"] = bool(self.unwrapped.is_goal_state())  # before another inner episode begins
        self._ended += is_end
        if is_end and self._ended < self.episodes_per_task:
            terminated = truncated = False
            begun, _ = self.env.reset()
            if self.start == "info":
                info["start_state"] = begun
            else:
                info["final_state"], state = state, begun
        return self._observed(state, is_end), float(reward), terminated, truncated, info

    def draw(self, rng: np.random.Generator) -> Any:
        """The parameters of a random task: one of the training tasks, or a new one if they are unlimited."""
        return self._sample_task(rng) if self.tasks is None else self.tasks[rng.choice(self.train_tasks)]

    def _observed(self, state: Any, is_end: bool) -> np.ndarray:
        task = self.unwrapped.task if self.oracle else []  # type: ignore[attr-defined]
        flag = [is_end] if self.episodes_per_task > 1 else []
        seen: Any = flatten(self.env.observation_space, state)
        return np.concatenate((seen, np.ravel(task), flag), dtype=np.float32)
