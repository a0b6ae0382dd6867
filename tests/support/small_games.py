"""Small games for tests of managers and rollouts, beside those of the engine's ``toy_envs``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.toy_envs import BaseEnv


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
