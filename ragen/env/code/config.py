"""The configuration of the code environment: problems, number of tries, limits of a program."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from ragen.env.checks import FILE, Rule, check, integer, number, or_null, require, some_of
from ragen.env.code.families import FAMILIES, LEVELS
from ragen.env.code.problems import GENERATED
from ragen.env.sandbox.host import RunLimits


@dataclass
class CodeEnvConfig:
    """Configuration of :class:`~ragen.env.code.env.CodeEnv`.

    Attributes:
        dataset: ``"generated"``, from the seed, or a JSONL file in DeepCoder's format.
        levels: Levels of generated problems: 1 (a line or two) to 3 (an algorithm).
        families: Names of families of generated problems; None for all families of the levels.
        tests: Number of tests of a generated problem; the first two are shown as examples.
        max_tries: Maximum number of programs per episode; the episode ends early when one passes all tests.
        reward: ``"share"``: the share of tests passed for the first time; ``"all"``: 1 when a program passes all.
        cpu_seconds: Processor time limit of a program in seconds, for all tests together.
        memory_mb: Memory limit of a program, in MiB.
        render_mode: ``"text"``.
    """

    dataset: str = GENERATED
    levels: list[int] = field(default_factory=lambda: list(LEVELS))
    families: list[str] | None = None
    tests: int = 8
    max_tries: int = 3
    reward: Literal["share", "all"] = "share"
    cpu_seconds: float = 2.0
    memory_mb: int = 256
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value; a file is read when an environment is created.

        Raises:
            ConfigError: A value is invalid.
        """
        known = self.dataset == GENERATED
        data = Rule(lambda data: known or FILE.fits(data), f"{GENERATED!r} or an existing JSONL file")
        check(
            self,
            dataset=data,
            levels=some_of(LEVELS),
            families=or_null(some_of(FAMILIES)),
            tests=integer(1, 100),
            cpu_seconds=number(0.1, 600),
            memory_mb=integer(64),
        )
        self.dataset = self.dataset if known else os.path.abspath(self.dataset)
        of_levels = any(FAMILIES[name].level in self.levels for name in self.families or FAMILIES)
        require(of_levels, self, "families", f"one of the levels {self.levels}")

    def limits(self) -> RunLimits:
        """The limits of a program."""
        return RunLimits(
            cpu_seconds=self.cpu_seconds,
            memory_mb=self.memory_mb,
            processes=32,
            wait_seconds=1.0,
            wall_seconds=4 * self.cpu_seconds + 8,
        )
