"""Household tasks in text: ALFWorld's official games if available, else tasks generated on its floor plans."""

from __future__ import annotations

from ragen.env.alfworld.config import AlfWorldEnvConfig
from ragen.env.alfworld.env import AlfWorldEnv

__all__ = ["AlfWorldEnv", "AlfWorldEnvConfig"]
