"""Small text games: each does what its configuration says, and no more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

built = 0


class BaseEnv:
    """Methods that a text environment need not define."""

    config_class: type | None = None
    uses_global_rng = True

    def render(self, mode=None):
        raise NotImplementedError

    def close(self):
        pass

    def rollout_info(self):
        return {}


@dataclass
class CounterConfig:
    """Count to the goal: reaching it is a success, passing it is not."""

    goal: int = 5
    tells: dict[str, Any] = field(default_factory=dict)
    images: int = 0
    action_lookup: dict[int, str] = field(default_factory=lambda: {1: "One", 2: "Two", 0: "Stop"})


class Counter(BaseEnv):
    config_class = CounterConfig
    uses_global_rng = False

    def __init__(self, config):
        global built
        built += 1
        self.config = config
        self.closed = 0
        self._seed, self._mode, self._count = 0, "", 0

    def reset(self, seed=None, mode=None):
        self._seed, self._mode, self._count = seed or 0, mode or "", 0
        return self.render()

    def step(self, action):
        self._count += action
        info = {"count": self._count, "odd": self._count % 2 == 1, "success": self._count == self.config.goal}
        return self.render(), action / 10, action == 0 or self._count >= self.config.goal, info | self.config.tells

    def render(self, mode=None):
        if self.config.images:
            return [np.full((4, 6, 3), self._count + index, np.uint8) for index in range(self.config.images)]
        return f"{self._mode} seed {self._seed} count {self._count}"

    def plus(self, number):
        """The count and a number."""
        return self._count + number

    def rollout_info(self):
        return {"goal": self.config.goal, "penalty": "not this one's to say"}


@dataclass
class EchoConfig:
    """Nothing to set, and no action names."""


class Echo(BaseEnv):
    """Any text is an action; the episode ends with the text ``end``."""

    config_class = EchoConfig
    uses_global_rng = False

    def __init__(self, config):
        self.heard: list[str] = []

    def reset(self, seed=None, mode=None):
        self.heard = []
        return self.render()

    def step(self, action):
        self.heard.append(action)
        return self.render(), 1, action == "end", {}

    def render(self, mode=None):
        return repr(self.heard)
