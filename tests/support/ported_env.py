"""An environment written for RAGEN, as it was and as it is ported; ``docs/ragen_users.md`` goes through it.

The game is Lights Out: a press toggles a lamp and its neighbours in its row, and all lamps have to be off.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from ragen.env.base import BaseDiscreteActionEnv, BaseEnvConfig
from ragen.utils import all_seed


@dataclass
class LightsOutConfig(BaseEnvConfig):
    lamps: int = 5
    presses: int = 3
    max_steps: int = 10
    action_lookup: dict[int, str] = field(default_factory=lambda: {n: f"Lamp {n}" for n in range(1, 6)})


class LightsOutAsWritten(BaseDiscreteActionEnv):
    """As its author had it in a RAGEN checkout."""

    config_class = LightsOutConfig

    def __init__(self, config: LightsOutConfig | None = None, **kwargs: Any) -> None:
        super().__init__()
        self.config = config or LightsOutConfig(**kwargs)
        self.lamps = [False] * self.config.lamps
        self.steps = 0

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        with all_seed(seed):
            self.lamps = [False] * self.config.lamps
            while not any(self.lamps):
                for _ in range(self.config.presses):
                    self._press(random.randint(1, self.config.lamps))
        self.steps = 0
        return self.render()

    def step(self, action: int) -> tuple[str, float, bool, dict[str, Any]]:
        self._press(action)
        self.steps += 1
        success = not any(self.lamps)
        done = success or self.steps >= self.config.max_steps
        info = {"action_is_effective": True, "action_is_valid": True, "success": success}
        return self.render(), float(success) - 0.1, done, info

    def render(self, mode: str | None = None) -> str:
        return "".join("*" if lamp else "." for lamp in self.lamps)

    def _press(self, number: int) -> None:
        for lamp in (number - 2, number - 1, number):
            if 0 <= lamp < len(self.lamps):
                self.lamps[lamp] = not self.lamps[lamp]


class LightsOut(LightsOutAsWritten):
    """Ported: a generator of its own, one reset for a whole group, and what it is said so."""

    uses_global_rng = False
    cost_hint = "cheap"

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        rng = random.Random(seed)  # draws what all_seed(seed) and random drew
        self.lamps = [False] * self.config.lamps
        while not any(self.lamps):
            for _ in range(self.config.presses):
                self._press(rng.randint(1, self.config.lamps))
        self.steps = 0
        return self.render()

    def save(self) -> Any:
        return self.lamps, self.steps

    def load(self, state: Any) -> None:
        self.lamps, self.steps = state
