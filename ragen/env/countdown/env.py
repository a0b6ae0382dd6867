"""Countdown: one answer, an arithmetic expression that uses each number once and has the target as its value.

The rules are RAGEN's, but only an expression of the given numbers, ``+ - * /``, parentheses and signs is right, and its
value is exact (see :mod:`ragen.env.countdown.arithmetic`). RAGEN passes any text to ``eval``, whose comments, powers,
decimals and roundings make wrong answers right.
"""

from __future__ import annotations

from typing import Any

from ragen.env.base import BaseLanguageBasedEnv, StepResult, snapshots
from ragen.env.checks import check_was_reset, checked_seed
from ragen.env.countdown.config import CountdownEnvConfig
from ragen.env.countdown.puzzles import Puzzle, load_puzzles
from ragen.env.countdown.scoring import reaches, uses_each_once
from ragen.env.text import TextObservation


class CountdownEnv(TextObservation, BaseLanguageBasedEnv):
    """Reach a target number with each given number once.

    Attributes:
        puzzle: The :class:`Puzzle` of this episode; None before the first reset.
        index: Its index among the puzzles.
    """

    config_class = CountdownEnvConfig
    uses_global_rng = False
    cost_hint = "cheap"
    action_hint = "an expression with each number once, such as: (3 + 4) * 5"

    def __init__(self, config: CountdownEnvConfig | None = None) -> None:
        """Take a configuration and read its puzzles, unless this process has read them.

        Raises:
            ConfigError: The puzzles cannot be read, or none is left.
        """
        self.config = config or CountdownEnvConfig()
        self._source = self.config.source()
        self.puzzle: Any = None
        self.index: int | None = None
        self._puzzles()

    def _puzzles(self, mode: str | None = None) -> tuple[Puzzle, ...]:
        part = None if self.config.train_path else mode or "train"
        # Not kept here, since a copy must be small when pickled.
        return load_puzzles(self._source, self.config.max_instances, part)

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        """Take the puzzle at the index ``seed``, modulo their number; see :meth:`BaseEnv.reset`.

        Of the package's puzzles, training and validation have their own.
        """
        puzzles = self._puzzles(mode)
        self.index = checked_seed("countdown", seed, limit=None) % len(puzzles)
        self.puzzle = puzzles[self.index]
        self.observation = f"Target: {self.puzzle.target}, nums: {list(self.puzzle.numbers)}"
        return self.observation

    def step(self, action: str) -> StepResult:
        """Score an answer; the episode is over after it.

        Args:
            action: Any text.

        Returns:
            The score as text, the score (0 unless each number is used once; else ``format_score``, or ``score`` if the
            value is right), True, and info.

        Raises:
            StateError: The environment was never reset.
        """
        check_was_reset("countdown", self.puzzle is not None)
        numbers, target = self.puzzle
        complete = uses_each_once(action, numbers)
        right = complete and reaches(action, target)
        reward = self.config.score if right else self.config.format_score if complete else 0
        self.observation = f"Your answer get {reward} points."
        info = {"action_is_effective": reward > 0, "action_is_valid": True, "success": right}
        return self.observation, reward, True, info

    save, load = snapshots("puzzle", "index", "observation")
