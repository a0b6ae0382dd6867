"""Answer questions from the passages that a search engine finds."""

from __future__ import annotations

from ragen.env.search.config import SearchEnvConfig
from ragen.env.search.env import SearchEnv

__all__ = ["SearchEnv", "SearchEnvConfig"]
