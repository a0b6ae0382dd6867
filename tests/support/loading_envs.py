"""An environment whose resets in the main process wait until a worker has loaded it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


class LoadedConfig:
    """Writes a file once it is unpickled in another process."""

    def __init__(self, folder: str) -> None:
        self.folder, self.main = folder, os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if os.getpid() != self.main:
            Path(self.folder, "loaded").touch()


class WaitsForLoading:
    """Observations are the process and the time of the reset."""

    cost_hint = "heavy"
    uses_global_rng = False

    def __init__(self, config: LoadedConfig) -> None:
        self.config = config

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        began, is_main = time.monotonic(), os.getpid() == self.config.main
        end = began + 60
        while is_main and time.monotonic() < end and not Path(self.config.folder, "loaded").exists():
            time.sleep(0.01)
        time.sleep(0.2 * is_main)  # for the worker's reply
        self.state = f"{int(is_main)} {began}"
        return self.state

    def step(self, action: Any) -> Any:
        return self.state, 0.0, False, {}

    def render(self, mode: str | None = None) -> Any:
        return self.state
