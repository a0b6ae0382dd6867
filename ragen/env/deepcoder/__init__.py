"""The code environment under RAGEN 2026's name and with its configuration."""

from __future__ import annotations

from ragen.env.deepcoder.config import DeepCoderEnvConfig
from ragen.env.deepcoder.env import DeepCoderEnv

__all__ = ["DeepCoderEnv", "DeepCoderEnvConfig"]
