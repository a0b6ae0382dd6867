"""Write Python programs; they are run against tests in a sandbox."""

from __future__ import annotations

from ragen.env.code.config import CodeEnvConfig
from ragen.env.code.env import CodeEnv

__all__ = ["CodeEnv", "CodeEnvConfig"]
