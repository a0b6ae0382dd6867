"""Small text games: each does what its configuration says, and no more."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

built = 0


class BaseEnv:
    """What a text environment needs not define."""

    config_class: type | None = None
    uses_global_rng = True

    def render(self, mode: str | None = None) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def rollout_info(self) -> dict[str, Any]:
        return {}


class Numbered(BaseEnv):
    """Shows how many objects of its class there were before it, and how many turns they have played."""

    built = turns = 0

    def __init__(self, config: Any = None) -> None:
        self.number = Numbered.built
        Numbered.built += 1

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        Numbered.turns += 1
        return self.render(), 0.0, False, {}

    def render(self, mode: str | None = None) -> str:
        return f"object {self.number}, turn {Numbered.turns}"


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

    def __init__(self, config: CounterConfig) -> None:
        global built
        built += 1
        self.config = config
        self.closed = 0
        self._seed, self._mode, self._count = 0, "", 0

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self._seed, self._mode, self._count = seed or 0, mode or "", 0
        return self.render()

    def step(self, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
        self._count += action
        info = {"count": self._count, "odd": self._count % 2 == 1, "success": self._count == self.config.goal}
        return self.render(), action / 10, action == 0 or self._count >= self.config.goal, info | self.config.tells

    def render(self, mode: str | None = None) -> Any:
        if self.config.images:
            return [np.full((4, 6, 3), self._count + index, np.uint8) for index in range(self.config.images)]
        return f"{self._mode} seed {self._seed} count {self._count}"

    def plus(self, number: int) -> int:
        """The count and a number."""
        return self._count + number

    def rollout_info(self) -> dict[str, Any]:
        return {"goal": self.config.goal, "penalty": "not this one's to say"}


@dataclass
class EchoConfig:
    """Nothing to set, and no action names."""


class Echo(BaseEnv):
    """Any text is an action; the episode ends with the text ``end``."""

    config_class = EchoConfig
    uses_global_rng = False

    def __init__(self, config: EchoConfig) -> None:
        self.heard: list[str] = []

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.heard = []
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.heard.append(action)
        return self.render(), 1, action == "end", {}

    def render(self, mode: str | None = None) -> str:
        return repr(self.heard)


class Proposes(Echo):
    """Proposes what to say next, as its state has it."""

    def example_action(self, rng: Random) -> str:
        return ("one", "two", "three", "four")[len(self.heard)]


@dataclass
class PagesConfig:
    """Which page of which episode is far too long; none without a seed."""

    seed: int | None = None
    page: int = 1


class Pages(BaseEnv):
    """Shows a page after another; the fourth action ends it with success."""

    config_class = PagesConfig
    uses_global_rng = False

    def __init__(self, config: PagesConfig) -> None:
        self.config = config

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.seed, self.page = seed, 0
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.page += 1
        return self.render(), 1.0, self.page == 4, {"success": self.page == 4}

    def render(self, mode: str | None = None) -> str:
        is_long = (self.seed, self.page) == (self.config.seed, self.config.page)
        return f"page {self.page} of {self.seed}" + " and so on" * (20_000 if is_long else 0)
