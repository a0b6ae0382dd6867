"""An environment with what heavy ones have: temporary files, and a program that it shares with its neighbours."""

from __future__ import annotations

import subprocess
import tempfile
from functools import cache
from typing import ClassVar

from envlanes.temporary import temporary_folder
from support.toy_envs import BaseEnv

users = []


@cache
def program():
    """A program that leaves the worker's process group, as browsers do; one for all environments of a process."""
    return subprocess.Popen(["sleep", "1000"], start_new_session=True)


class Heavy(BaseEnv):
    """Its info says where its files are and which program it uses; nothing that is compared depends on either."""

    uses_global_rng: ClassVar[bool] = False

    def __init__(self, config=None):
        self.program = program()
        users.append(self)

    def reset(self, seed=None, mode=None):
        self.folder = tempfile.mkdtemp()
        with open(f"{self.folder}/file", "w") as file:
            file.write("something")
        return "begin"

    def step(self, action):
        told = {"home": str(temporary_folder()), "folder": self.folder, "program": self.program.pid}
        return "played", 1.0, False, {"told": told}

    def render(self, mode=None):
        return "state"

    def close(self):
        users.remove(self)
        if not users:
            self.program.kill()
            self.program.wait()
            program.cache_clear()
