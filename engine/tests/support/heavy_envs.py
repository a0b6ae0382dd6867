"""An environment with what heavy ones have: temporary files, and a program that it shares with its neighbours."""

from __future__ import annotations

import subprocess
import tempfile
from typing import ClassVar

from envlanes.resources import temporary_folder, worker_resource
from support.toy_envs import BaseEnv


def start_program():
    """A program that leaves the worker's process group, as browsers do."""
    return subprocess.Popen(["sleep", "1000"], start_new_session=True)


def end_program(program):
    program.kill()
    program.wait()


class Heavy(BaseEnv):
    """Its info says where its files are and which program it uses; nothing that is compared depends on either."""

    uses_global_rng: ClassVar[bool] = False

    def __init__(self, config=None):
        self.program = worker_resource("program", start_program, end_program)

    def reset(self, seed=None, mode=None):
        self.folder = tempfile.mkdtemp()
        with open(f"{self.folder}/file", "w") as file:
            file.write("something")
        return "begin"

    def step(self, action):
        told = {"home": str(temporary_folder()), "folder": self.folder, "program": self.program.value.pid}
        return "played", 1.0, False, {"told": told}

    def render(self, mode=None):
        return "state"

    def close(self):
        self.program.release()
