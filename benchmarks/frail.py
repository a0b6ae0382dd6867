"""The environment of ``failed_episodes.py``; in a module of its own, since workers import it and need no torch."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from ragen.env import BaseEnv


class Frail(BaseEnv):
    """Each action costs something, and three times Go wins. The other actions are faults."""

    uses_global_rng = False
    gone_every = 23  # seeds that divide by this find no service

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        """Begin, if there is a service."""
        if seed is not None and seed % self.gone_every == 0:
            raise ConnectionError("the service is gone")
        self.gone = 0
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Go, stay, or fail."""
        if action == "Raise":
            raise ValueError("the state is broken")
        if action == "Hang":
            time.sleep(10**6)
        if action == "Die":
            os.kill(os.getpid(), signal.SIGKILL)
        self.gone += action == "Go"
        is_over = self.gone == 3
        return self.render(), -0.1 + is_over, is_over, {"success": is_over}

    def render(self, mode: str | None = None) -> str:
        """The number of steps."""
        return f"gone {self.gone} of 3"
