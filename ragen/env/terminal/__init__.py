"""A shell in a sandbox, and tasks to be done with it."""

from __future__ import annotations

from ragen.env.terminal.config import TerminalEnvConfig
from ragen.env.terminal.env import TerminalEnv

__all__ = ["TerminalEnv", "TerminalEnvConfig"]
