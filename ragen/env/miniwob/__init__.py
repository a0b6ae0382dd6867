"""MiniWoB++: tasks on small web pages, in a real Chromium."""

from __future__ import annotations

from ragen.env.miniwob.config import MiniWobEnvConfig
from ragen.env.miniwob.env import MiniWobEnv

__all__ = ["MiniWobEnv", "MiniWobEnvConfig"]
