"""Environments on OpenEnv servers, played here as if they were local."""

from __future__ import annotations

from ragen.env.openenv.config import OpenEnvEnvConfig
from ragen.env.openenv.env import OpenEnvEnv

__all__ = ["OpenEnvEnv", "OpenEnvEnvConfig"]
