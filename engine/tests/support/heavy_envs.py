"""An environment with what heavy ones have: temporary files, and a program that it shares with its neighbours."""

from __future__ import annotations

import subprocess
import tempfile
from typing import Any, ClassVar

from envlanes.resources import temporary_folder, worker_resource
from support.toy_envs import BaseEnv


def start_program() -> subprocess.Popen[bytes]:
    """A program that leaves the worker's process group, as browsers do."""
    return subprocess.Popen(["sleep", "1000"], start_new_session=True)


def end_program(program: subprocess.Popen[bytes]) -> None:
    program.kill()
    program.wait()


class Heavy(BaseEnv):
    """Its info says where its files are and which program it uses; nothing that is compared depends on either."""

    uses_global_rng: ClassVar[bool] = False

    def __init__(self, config: Any = None) -> None:
        self.program = worker_resource("program", start_program, end_program)

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.folder = tempfile.mkdtemp()
        with open(f"{self.folder}/file", "w") as file:
            file.write("something")
        return "begin"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        told = {"home": str(temporary_folder()), "folder": self.folder, "program": self.program.value.pid}
        return "played", 1.0, False, {"told": told}

    def render(self, mode: str | None = None) -> str:
        return "state"

    def close(self) -> None:
        self.program.release()
