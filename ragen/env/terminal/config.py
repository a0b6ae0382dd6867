"""The configuration of the terminal environment: tasks, number of commands, limits of a command."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from ragen.env.checks import FOLDER, Rule, check, integer, number, or_null, some_of
from ragen.env.sandbox.host import RunLimits
from ragen.env.terminal.families import FAMILIES

GENERATED = "generated"


@dataclass
class TerminalEnvConfig:
    """Configuration of :class:`~ragen.env.terminal.env.TerminalEnv`.

    Attributes:
        tasks: ``"generated"``, from the seed; or a folder with one folder per task, see docs/terminal.md.
        families: Names of families of generated tasks; None for all.
        files: Approximate number of files at the start of a generated task.
        max_steps: Maximum number of commands per episode; the files are checked after the last.
        reward: ``"share"``: the share of the task's goals reached; ``"all"``: 1 when all are.
        max_output: Maximum number of characters of output to show, taken from both ends.
        cpu_seconds: Processor time limit of a command and its descendants, in seconds.
        memory_mb: Memory limit of a command and its descendants together, in MiB.
        disk_mb: Limit of the total size of all files, in MiB.
        render_mode: ``"text"``.
    """

    tasks: str = GENERATED
    families: list[str] | None = None
    files: int = 12
    max_steps: int = 10
    reward: Literal["share", "all"] = "share"
    max_output: int = 2000
    cpu_seconds: float = 5.0
    memory_mb: int = 512
    disk_mb: int = 32
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value; folders of tasks are read when an environment is created.

        Raises:
            ConfigError: A value is invalid.
        """
        tasks = Rule(lambda value: value == GENERATED or FOLDER.fits(value), f"{GENERATED!r} or an existing folder")
        check(
            self,
            tasks=tasks,
            families=or_null(some_of(FAMILIES)),
            files=integer(4, 1000),
            max_output=integer(100),
            cpu_seconds=number(0.1, 600),
            memory_mb=integer(64),
            disk_mb=integer(1, 1024),
        )
        self.tasks = self.tasks if self.tasks == GENERATED else os.path.abspath(self.tasks)

    def limits(self) -> RunLimits:
        """The limits of a command."""
        return RunLimits(
            cpu_seconds=self.cpu_seconds,
            memory_mb=self.memory_mb,
            disk_mb=self.disk_mb,
            files_at_most=20_000,
            output_bytes=1 << 20,
            wait_seconds=1.0,
            wall_seconds=4 * self.cpu_seconds + 8,
        )
