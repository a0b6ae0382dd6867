"""Environments with the interface of ``ParallelEnvWrapper`` that are known through and through.

Red takes a host of a type that is drawn in every step. Restoring the type that pays gives 1, everything else nothing;
what the others of a step do has no influence. Episodes are cut at ``max_steps``, or end by themselves if told so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ragen.cage2.layout import FIXES


class StandInEnvs:
    """n environments whose episodes follow from a seed, an environment's number and its episode's."""

    simulator = "stand-in"
    built: list[StandInEnvs] = []  # noqa: RUF012 (shared on purpose; tests empty it)

    def __init__(
        self,
        n_envs: int = 25,
        scenario_path: str | None = None,
        red_agent_type: Any = "RedMeanderAgent",
        *,
        max_steps: int = 100,
        seed: int = 0,
        paying: int = 1,
        truncated: bool = True,
        failing: tuple[int, ...] = (),
        **others: Any,
    ) -> None:
        self.n_envs, self.max_steps, self.red_agent_type, self.others = n_envs, max_steps, red_agent_type, others
        self.paying, self.truncated, self.failing, self.seed = paying, truncated, failing, seed
        self.numbers = [-1] * n_envs
        self.is_closed = False
        StandInEnvs.built.append(self)

    def reset(self, seed: int | None = None) -> np.ndarray:
        if seed is not None:
            self.seed, self.numbers = seed, [-1] * self.n_envs
        self.rngs, self.steps, self.returns = [None] * self.n_envs, [0] * self.n_envs, [0.0] * self.n_envs
        self.compromised = np.zeros((self.n_envs, 5), bool)
        return np.stack([self._begin(env_id) for env_id in range(self.n_envs)])

    def step(self, actions):
        shown, rewards, dones, infos = [], [], [], []
        for env_id, action in enumerate(actions):
            before = tuple(map(bool, self.compromised[env_id]))
            reward = float(FIXES.get(int(action)) == self.paying)
            self.steps[env_id] += 1
            self.returns[env_id] += reward
            done = self.steps[env_id] == self.max_steps
            observation = self._show(env_id)
            info = {"compromised_before": before, "compromised": tuple(map(bool, self.compromised[env_id]))}
            if done:
                episode = {"r": self.returns[env_id], "l": self.steps[env_id]}
                info |= {"final_observation": observation, "episode": episode, "truncated": self.truncated}
                if env_id in self.failing:
                    info["env_error"] = "it failed"
                observation = self._begin(env_id)
            for kept, new in zip((shown, rewards, dones, infos), (observation, reward, done, info), strict=True):
                kept.append(new)
        return np.stack(shown), np.array(rewards), np.array(dones), infos

    def _begin(self, env_id: int) -> np.ndarray:
        self.numbers[env_id] += 1
        self.rngs[env_id] = np.random.default_rng((self.seed, env_id, self.numbers[env_id]))
        self.steps[env_id], self.returns[env_id] = 0, 0.0
        return self._show(env_id)

    def _show(self, env_id: int) -> np.ndarray:
        self.compromised[env_id] = self.rngs[env_id].random(5) < 0.5
        observation = np.zeros(52, np.float32)
        observation[:5] = self.compromised[env_id]
        observation[5:] = self.rngs[env_id].random(47)
        return observation

    def close(self) -> None:
        self.is_closed = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
