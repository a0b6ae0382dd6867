"""Environments and backends for benchmarks that take the time that real ones take, by waiting.

A module that imports little: worker processes load it.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass

from ragen.env.base import BaseEnv


@dataclass
class UnevenConfig:
    """The duration of a turn: log-normal, so that a few turns take many times the usual.

    Attributes:
        median: Seconds of the usual turn.
        sigma: The spread; at 1.2 one turn in twenty takes more than seven times the median.
        most: No turn takes longer, in seconds.
        turns: An episode has about so many turns, between half and twice as many.
    """

    median: float = 0.02
    sigma: float = 1.2
    most: float = 1.0
    turns: int = 6


class Uneven(BaseEnv):
    """A game in which every turn has to be waited for, as a browser, a sandbox or a search engine is."""

    config_class = UnevenConfig
    uses_global_rng = False
    cost_hint = "io"

    def __init__(self, config: UnevenConfig | None = None) -> None:
        """Take the settings."""
        self.config = config or UnevenConfig()

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        """Begin an episode of random length."""
        self._rng = random.Random(seed)
        self._left = self._rng.randint(max(1, self.config.turns // 2), 2 * self.config.turns)
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, bool]]:
        """Wait, and come one room further."""
        wait = min(self.config.most, self.config.median * math.exp(self._rng.gauss(0, self.config.sigma)))
        time.sleep(wait)
        self._left -= 1
        done = self._left <= 0
        return self.render(), float(done), done, {"success": done}

    def render(self) -> str:
        """The progress."""
        return f"{self._left} rooms lie ahead."
