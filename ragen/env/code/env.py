"""Code: write a Python program, see which tests it passes, and try again.

A program runs in the sandbox of :mod:`ragen.env.sandbox`, which receives the inputs of the tests. The expected results
stay in this process, where results are compared. A verdict depends on the program, its inputs and counted processor
time; a run that lasts several times as long without using it is stopped, and passes no test.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any, ClassVar

from ragen.env.base import BaseLanguageBasedEnv, StepResult, snapshots
from ragen.env.code import problems
from ragen.env.code.config import CodeEnvConfig
from ragen.env.code.families import FAMILIES
from ragen.env.code.problems import GENERATED, Problem
from ragen.env.game import PickledBySnapshot, TextGame
from ragen.env.sandbox.host import PROGRAMS, InSandbox, require_sandbox

READ_LIMIT = 100_000
"""Maximum length of a program, in characters."""

_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.S | re.M)
_HEX = re.compile(r"0x[0-9a-fA-F]{6,}")


def strip_fences(action: str) -> str:
    """The program in an answer: its last fenced block, or the whole answer if there is none."""
    blocks: list[str] = _FENCED.findall(action)
    return (blocks[-1] if blocks else action).strip("\n")


class CodeEnv(PickledBySnapshot, InSandbox, TextGame, BaseLanguageBasedEnv):
    """Asks for a program that passes a problem's tests.

    Attributes:
        problem: The problem; None before the first reset.
        tries: Number of programs tried in this episode.
        passed: For each test, whether a program of this episode has passed it.
    """

    config_class: ClassVar[Any] = CodeEnvConfig
    cost_hint = "heavy"
    profile = PROGRAMS
    problem: Any = None  # a Problem once reset
    _drawn: tuple[int, str] | None = None
    action_hint = "a Python program"

    def __init__(self, config: CodeEnvConfig | None = None) -> None:
        """Check that problems can be read and that a sandbox is available.

        Raises:
            ConfigError: The problems cannot be read.
            SandboxError: A sandbox cannot run here.
        """
        super().__init__(config)
        require_sandbox(self.profile)
        if self.config.dataset != GENERATED:
            problems.rows_of(self.config.dataset)

    def _begin(self, seed: int, mode: str | None) -> None:
        """Draw a problem.

        Raises:
            SandboxError: A sandbox cannot run here.
        """
        self.hold_sandbox()
        self._drawn = seed, "train" if mode in (None, "train") else "val"
        self._draw()
        self.tries, self.passed = 0, (False,) * len(self.problem.tests)
        self.observation = self._introduced()

    def _introduced(self) -> str:
        return self.problem.text + (f"\n{self.problem.prelude}" if self.problem.prelude else "")

    def _draw(self) -> None:
        self.problem = None if self._drawn is None else self._problem_of(*self._drawn)

    save, load = snapshots("seed", "_drawn", "tries", "passed", "observation", after=_draw)

    def _problem_of(self, seed: int, split: str) -> Problem:
        config = self.config
        if config.dataset == GENERATED:
            families = tuple(config.families or FAMILIES)
            return problems.generate(seed, split, tuple(config.levels), families, config.tests)
        rows = problems.rows_of(config.dataset)
        index = Random(seed).randrange(len(rows))
        return problems.problem_of_row(rows[index], f"row {index + 1} of {config.dataset}")

    def _play(self, action: str) -> StepResult:
        """Try a program.

        Args:
            action: A program, fenced or not; any text.

        Returns:
            The observation: which tests passed, and the first that failed; the reward; whether the episode is over; and
            info with ``success`` (all tests passed), ``passed_tests``, ``total_tests`` and ``runnable``.

        Raises:
            SandboxError: The sandbox had ended, or could not prepare the run.
        """
        program = strip_fences(action)
        valid = bool(program.strip()) and len(program) <= READ_LIMIT
        verdict = (
            self._run(program) if valid else problems.Verdict((False,) * len(self.passed), _refused(program), False)
        )
        before = self.passed
        self.passed = tuple(map(max, before, verdict.passed))
        self.tries += 1
        success = all(verdict.passed)
        newly = (sum(self.passed) - sum(before)) / len(before)
        reward = float(success) if self.config.reward == "all" else newly
        done = success or self.tries >= self.config.max_tries
        self.observation = self._report(verdict, done)
        info = {
            "action_is_valid": valid,
            "action_is_effective": self.passed != before,
            "success": success,
            "passed_tests": sum(verdict.passed),
            "total_tests": len(verdict.passed),
            "runnable": verdict.runnable,
        }
        return self.observation, reward, done, info

    def _run(self, program: str) -> problems.Verdict:
        source = _with_prelude(self.problem.prelude, program)
        job = {"kind": "program", "source": source, "tests": self.problem.inputs(), "shown_bytes": problems.LONGEST}
        return problems.judge(self.problem, self.run_inside(job, self.config.limits()))

    def _report(self, verdict: problems.Verdict, done: bool) -> str:
        numbers = [str(number) for number, ok in enumerate(verdict.passed, 1) if ok]
        listed = f" ({', '.join(numbers)})" if 0 < len(numbers) < len(verdict.passed) <= 50 else ""
        lines = [f"Tests passed: {len(numbers)} of {len(verdict.passed)}{listed}."]
        if verdict.failure:
            lines.append(_HEX.sub("0x...", verdict.failure))
        if not done:
            lines.append(f"Tries left: {self.config.max_tries - self.tries}.")
        return "\n".join(lines)

    def example_action(self, rng: Random) -> str:
        """A program: a correct one, a wrong one, or one that fails."""
        name = self.problem.name or "f"
        programs = [
            self.problem.solution or "print(input())",
            f"def {name}(*args):\n    return args[0] if args else None",
            f"def {name}(*args):\n    raise ValueError(args)",
            "def f(:",
            "import time\ntime.sleep(3)\nprint(time.time())",
        ]
        return rng.choice(programs)


def _refused(program: str) -> str:
    if not program.strip():
        return "The reply contains no program."
    return f"The program has {len(program)} characters, more than {READ_LIMIT}."


def _with_prelude(prelude: str, program: str) -> str:
    """Append a program to its prelude, whether it is the rest of a method, a method, or a separate function."""
    prelude = prelude.rstrip()
    if not prelude or re.search(r"^class Solution\b", program, re.M):
        return program
    if program[:1] not in (" ", "\t") and prelude.endswith(
        ":"
    ):  # the program is not the body of the prelude's function
        last = prelude.rpartition("\n")[2]
        prelude += "\n" + " " * (len(last) - len(last.lstrip()) + 4) + "pass"
        if re.match(r"def \w+\(self\b", program):
            program = "".join(f"    {line}\n" if line.strip() else "\n" for line in program.splitlines())
    return f"{prelude}\n{program}"
