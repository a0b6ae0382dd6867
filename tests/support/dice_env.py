"""An environment for tests, in a module that imports little: worker processes load it quickly."""

import random
from dataclasses import dataclass
from pathlib import Path

from ragen.env.base import BaseEnv


class Dice(BaseEnv):
    """Draws from the process's own random numbers; breaks, if it is told to."""

    def __init__(self, config=None):
        self.config = config

    def reset(self, seed=None, mode=None):
        self.thrown = random.random()
        return self.render()

    def step(self, action):
        if action == "break":
            raise ValueError("broken dice")
        self.thrown = random.random()
        return self.render(), self.thrown, False, {"thrown": self.thrown}

    def render(self):
        return f"{self.thrown}"


@dataclass
class LogConfig:
    file: str = ""


class Logged(Dice):
    """Writes down that it was built, and that it was closed."""

    config_class = LogConfig
    uses_global_rng = False

    def __init__(self, config):
        super().__init__(config)
        self._log("built")

    def close(self):
        self._log("closed")

    def _log(self, line):
        with Path(self.config.file).open("a") as file:
            file.write(line + "\n")
