"""Text adventures that TextWorld generates by seed: cooking, coin collecting, treasure hunting."""

from __future__ import annotations

from ragen.env.textworld.config import TextWorldEnvConfig
from ragen.env.textworld.env import TextWorldEnv

__all__ = ["TextWorldEnv", "TextWorldEnvConfig"]
